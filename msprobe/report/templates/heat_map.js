// Modules against ranks in one step: a rank that stands out is a column, or a cell, of another colour.

const MOST_ROWS = 60;
const SHADES = 6;

class HeatMap {
  constructor(store, page, parts, actions) {
    this.store = store;
    this.page = page;
    this.parts = parts;
    this.actions = actions;
    this.container = find("view-ranks");
    store.on(["part", "module", "measure", "tab", "language"], () => this.render());
  }

  render() {
    if (this.store.get("tab") !== "ranks") return;
    const { part, module } = this.store.values;
    const columns = this.parts.filter((other) => other.info.step === part.info.step);
    const rows = this.rows(columns, module);
    const title = t("ranks_of_step", { step: part.info.step || "–", module: module || t("whole_step") });
    const hint = t(this.page.kind === "report" ? "heat_of_report" : "heat_of_comparison");
    const content = rows.length ? this.table(columns, rows) : element("p", { class: "empty" }, t("nothing_to_plot"));
    this.container.replaceChildren(plotHead(this.store, this.page, title), element("p", { class: "hint" }, hint), content);
  }

  rows(columns, module) {
    const keys = [...new Set(columns.flatMap((part) => Object.keys(part.info.series)))].filter((key) => isWithin(key, module));
    const rows = keys.map((key) => {
      const values = columns.map((part) => toNumber(part.info.series[key]?.[this.store.get("measure")] ?? null));
      return { key, values, shades: this.shades(values) };
    });
    if (rows.length <= MOST_ROWS) return rows;
    const worst = new Set(rows.toSorted((a, b) => Math.max(...b.shades) - Math.max(...a.shades)).slice(0, MOST_ROWS));
    return rows.filter((row) => worst.has(row));
  }

  // 0 is harmless. Comparison: how far beyond the threshold. Report: how far from the median of the ranks.
  shades(values) {
    if (this.page.kind === "comparison") {
      return values.map((value) => {
        if (value === null || value <= 0) return 0;
        return Number.isFinite(value) ? clamp(Math.floor(Math.log10(value) + 1)) : SHADES;
      });
    }
    const finite = values.filter((value) => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
    const middle = finite.length ? finite[finite.length >> 1] : 0;
    return values.map((value) => {
      if (value === null) return 0;
      if (!Number.isFinite(value)) return SHADES;
      const apart = Math.abs(value - middle) / (Math.abs(middle) || 1);
      return apart < 1e-6 ? 0 : clamp(Math.floor(Math.log10(apart)) + 5, SHADES - 1);
    });
  }

  table(columns, rows) {
    const { part } = this.store.values;
    const head = element("tr", {}, element("th", { scope: "col" }, t("module")),
      columns.map((column) => element("th", { scope: "col", class: column === part ? "current" : "" }, column.column)));
    const body = rows.map((row) => element("tr", {}, element("th", { scope: "row", title: row.key }, row.key || t("whole_step")),
      row.values.map((value, place) => element("td", { class: `heat shade-${row.shades[place]}` }, this.cell(columns[place], row.key, value)))));
    return element("div", { class: "table-frame heat-frame", tabindex: "0" },
      element("table", { class: "heat-map" }, element("thead", {}, head), element("tbody", {}, body)));
  }

  cell(part, key, value) {
    const text = value === null ? "–" : Number.isFinite(value) ? formatNumber(value, 3) : String(value);
    const open = () => this.actions.openPart(part, { module: key, tab: "records" });
    return element("button", { type: "button", title: `${key || t("whole_step")}, ${part.column}: ${text}`, onclick: open }, text);
  }
}

function clamp(shade, most = SHADES) {
  return Math.min(most, Math.max(0, shade));
}
