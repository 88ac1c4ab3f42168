// How numbers go over the steps: of one module on every rank, or of the modules that change most on one rank.

const MOST_LINES = 8;

class TrendView {
  constructor(store, page, parts) {
    this.store = store;
    this.page = page;
    this.parts = parts;
    this.container = find("view-trend");
    store.on(["part", "module", "measure", "tab", "language"], () => this.render());
  }

  render() {
    if (this.store.get("tab") !== "trend") return;
    const module = this.store.get("module");
    const steps = [...new Set(this.parts.map((part) => part.info.step))];
    const own = this.parts.some((part) => module in part.info.series);
    const lines = own ? this.linesOfModule(module, steps) : this.linesOfRank(steps);
    const title = own
      ? t("trend_of_module", { module: module || t("whole_step") })
      : t(`trend_of_${this.page.kind}`, { rank: this.store.get("part").column });
    const content = lines.length
      ? [linePlot(steps, lines, title, this.page.kind === "comparison" ? 1 : null), legend(lines), valueTable(steps, lines)]
      : [element("p", { class: "empty" }, t("nothing_to_plot"))];
    if (steps.length === 1) content.unshift(element("p", { class: "hint" }, t("one_step_only")));
    this.container.replaceChildren(plotHead(this.store, this.page, title), ...content);
  }

  value(part, key) {
    return toNumber(part?.info.series[key]?.[this.store.get("measure")] ?? null);
  }

  linesOfModule(module, steps) {
    const columns = [...new Set(this.parts.map((part) => part.column))];
    const lines = columns.map((column) => ({
      label: column,
      values: steps.map((step) => this.value(this.parts.find((part) => part.column === column && part.info.step === step), module)),
    }));
    return lines.filter((line) => line.values.some((value) => value !== null));
  }

  linesOfRank(steps) {
    const column = this.store.get("part").column;
    const mine = steps.map((step) => this.parts.find((part) => part.column === column && part.info.step === step));
    const keys = [...new Set(mine.flatMap((part) => Object.keys(part?.info.series ?? {})))]
      .filter((key) => isWithin(key, this.store.get("module")));
    const lines = keys.map((key) => ({ label: key || t("whole_step"), values: mine.map((part) => this.value(part, key)) }));
    const known = lines.filter((line) => line.values.some((value) => value !== null));
    const weight = new Map(known.map((line) => [line, this.weight(line.values)]));
    return known.sort((a, b) => weight.get(b) - weight.get(a)).slice(0, MOST_LINES);
  }

  // The largest ratio in a comparison; how much a number changes in a report. What is not finite comes first.
  weight(values) {
    const known = values.filter((value) => value !== null);
    if (known.some((value) => !Number.isFinite(value))) return Infinity;
    if (this.page.kind === "comparison") return Math.max(...known);
    const sizes = known.map(Math.abs);
    return Math.max(...sizes) / (Math.min(...sizes) || Number.MIN_VALUE);
  }
}

function plotHead(store, page, title) {
  const choices = page.measures.map((name, number) =>
    element("option", { value: number, selected: number === store.get("measure") }, t(`measure_${name}`)));
  const choose = (event) => store.set({ measure: Number(event.target.value) });
  return element("header", { class: "plot-head" }, element("h2", {}, title),
    element("label", {}, `${t("measure")} `, element("select", { onchange: choose }, choices)));
}

function valueTable(columns, lines) {
  const head = element("tr", {}, element("th", { scope: "col" }, ""), columns.map((name) => element("th", { scope: "col", class: "number" }, name)));
  const rows = lines.map((line) => element("tr", {}, element("th", { scope: "row" }, line.label),
    line.values.map((value) => element("td", { class: `number${value !== null && !Number.isFinite(value) ? " alarming" : ""}` },
      value === null ? "–" : Number.isFinite(value) ? formatNumber(value) : String(value)))));
  return element("div", { class: "table-frame", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, rows)));
}
