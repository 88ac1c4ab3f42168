// Numbers as they come from the data: a number, null, or the name of one that is not finite.

const NOT_FINITE = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };

function toNumber(value) {
  if (typeof value === "number") return value;
  if (typeof value === "boolean") return Number(value);
  if (typeof value !== "string" || value === "") return null;
  if (value in NOT_FINITE) return NOT_FINITE[value];
  const number = Number(value); // a large integer comes as text
  return Number.isNaN(number) ? null : number;
}

function isNotFinite(value) {
  return typeof value === "string" && value in NOT_FINITE;
}

function formatNumber(value, digits = 5) {
  if (value === null || value === undefined) return "–";
  if (isNotFinite(value)) return value === "NaN" ? "NaN" : value === "Infinity" ? "+∞" : "−∞";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(digits - 1) : value.toPrecision(digits);
  return text.replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "").replace("-", "−").replace("e+", "e");
}

function formatPercent(value) {
  const number = toNumber(value);
  if (number === null) return "–";
  return Number.isFinite(number) ? `${formatNumber(number * 100, 4)} %` : formatNumber(value);
}

function numberIn(text) {
  const match = /(\d+)$/.exec(text);
  return match ? Number(match[1]) : -1;
}
