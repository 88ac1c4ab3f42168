// Lines in SVG. The colours are classes, so that they follow the theme.

const PLOT = { width: 1100, height: 300, left: 78, right: 16, top: 14, bottom: 34 };
const LINE_COLOURS = 8;

// Decides between a linear and a logarithmic axis, and gives its function and ticks.
function axis(values) {
  const finite = values.filter(Number.isFinite);
  const low = Math.min(...finite, Infinity), high = Math.max(...finite, -Infinity);
  if (!finite.length) return { place: () => 0.5, ticks: [] };
  if (low > 0 && high / low > 50) {
    const from = Math.floor(Math.log10(low)), to = Math.max(from + 1, Math.ceil(Math.log10(high)));
    const every = Math.ceil((to - from) / 6);
    const ticks = [];
    for (let power = from; power <= to; power += every) ticks.push(10 ** power);
    return { place: (value) => (Math.log10(value) - from) / (to - from), ticks };
  }
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const step = niceStep((high - low + 2 * margin) / 5);
  const from = Math.floor((low - margin) / step) * step, to = Math.ceil((high + margin) / step) * step;
  const ticks = [];
  for (let tick = from; tick <= to + step / 2; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return { place: (value) => (value - from) / (to - from), ticks };
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const part = rough / power;
  return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

// `lines` is [{label, values}], one value per name in `columns`: a number, NaN, an infinity, or null.
// `limit` is drawn as a broken line; null for none.
function linePlot(columns, lines, title, limit = null) {
  const { width, height, left, right, top, bottom } = PLOT;
  const values = lines.flatMap((line) => line.values).filter((value) => value !== null && (limit === null || value > 0));
  const scale = axis(limit === null ? values : [...values, limit]);
  const x = (place) => left + (columns.length < 2 ? 0.5 : place / (columns.length - 1)) * (width - left - right);
  const y = (value) => height - bottom - Math.max(0, scale.place(value)) * (height - top - bottom);
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMinYMid meet", role: "img", "aria-label": title });
  for (const tick of scale.ticks) {
    picture.append(
      shape("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      shape("text", { class: "tick", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, formatNumber(tick, 4)),
    );
  }
  if (limit !== null) {
    picture.append(shape("line", { class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit) }),
      shape("text", { class: "tick", x: width - right, y: y(limit) - 5, "text-anchor": "end" }, t("limit")));
  }
  const every = Math.ceil(columns.length / 16);
  columns.forEach((name, place) => {
    if (place % every) return;
    picture.append(shape("text", { class: "tick", x: x(place), y: height - 12, "text-anchor": "middle" }, name));
  });
  lines.forEach((line, number) => picture.append(drawLine(line, number % LINE_COLOURS, columns, x, y)));
  return picture;
}

function drawLine(line, colour, columns, x, y) {
  const group = shape("g", { class: `line colour-${colour}` });
  let path = "";
  line.values.forEach((value, place) => {
    if (value === null) return;
    if (!Number.isFinite(value)) {
      path += " ";
      group.append(shape("text", { class: "cross", x: x(place), y: PLOT.top + 10, "text-anchor": "middle" },
        "✕", shape("title", {}, `${line.label}, ${columns[place]}: ${value}`)));
      return;
    }
    path += `${path === "" || path.endsWith(" ") ? "M" : "L"}${x(place).toFixed(1)},${y(value).toFixed(1)}`;
    group.append(shape("circle", { cx: x(place), cy: y(value), r: 3.5 },
      shape("title", {}, `${line.label}, ${columns[place]}: ${formatNumber(value)}`)));
  });
  group.prepend(shape("path", { d: path.trim() || "M0,0", fill: "none" }));
  return group;
}

function legend(lines) {
  return element("ul", { class: "legend" }, lines.map((line, number) =>
    element("li", {}, element("span", { class: `swatch colour-${number % LINE_COLOURS}`, "aria-hidden": "true" }), line.label)));
}
