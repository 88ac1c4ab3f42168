// One record in full: where it was called, and each of its values on both sides.

const STATISTICS = ["max", "min", "mean", "norm"];

class DetailView {
  constructor(store, page, reveal) {
    this.store = store;
    this.page = page;
    this.reveal = reveal;
    this.container = find("detail");
    store.on(["selected", "part", "language"], () => this.render());
  }

  async render() {
    const { part, selected } = this.store.values;
    if (selected < 0 || selected >= part.names.length) {
      this.container.replaceChildren(element("p", { class: "empty" }, t("select_a_record")));
      return;
    }
    const detail = await part.detail(selected);
    if (this.store.get("part") !== part || this.store.get("selected") !== selected) return;
    this.container.replaceChildren(
      this.title(part, selected),
      ...this.message(part, selected, detail),
      this.values(detail),
      this.place(part, detail),
    );
    this.showFirstFault();
  }

  // Values that pass may be many: the first one that does not is scrolled to.
  showFirstFault() {
    const fault = this.container.querySelector("tbody.fault");
    this.container.scrollTop = 0;
    if (!fault) return;
    const hidden = fault.getBoundingClientRect().bottom - this.container.getBoundingClientRect().bottom;
    const title = this.container.querySelector("h2").offsetHeight; // stays in sight
    if (hidden > 0) this.container.scrollTop = Math.min(hidden + 12, fault.offsetTop - title);
  }

  title(part, place) {
    const status = this.page.statuses[part.status[place]];
    const other = part.other[place];
    return element("h2", {},
      element("span", { class: `badge ${status.tone}` }, `${ICONS[status.tone]} ${t(status.key)}`),
      element("code", {}, part.names[place]),
      ...(other ? [element("span", { class: "other" }, "↔ ", element("code", {}, other))] : []),
      element("span", { class: "position" }, t("position", { number: place + 1, all: part.names.length })));
  }

  message(part, place, detail) {
    const lines = [];
    if (this.page.kind === "comparison") {
      const sides = detail.sides.map((name, side) => (name === null ? t(side ? "only_target" : "only_golden") : ""));
      lines.push(...sides.filter(Boolean));
    } else {
      const note = t(`note_${this.page.statuses[part.status[place]].key}`);
      if (!note.startsWith("note_")) lines.push(note);
    }
    if (detail.message) lines.push(detail.message);
    if (detail.source) lines.push(`${t("threshold_from")}: ${sourceText(detail.source)}`);
    return lines.length ? [element("p", { class: "message" }, lines.join(" · "))] : [];
  }

  values(detail) {
    const both = detail.sides.length > 1;
    const heads = ["value", ...(both ? ["side"] : []), "dtype", "shape", ...STATISTICS, "other"];
    const head = element("tr", {}, heads.map((key) => element("th", { scope: "col", class: STATISTICS.includes(key) ? "number" : "" }, t(`column_${key}`))));
    const rows = detail.leaves.map((leaf) => this.leafRows(leaf, both));
    return element("div", { class: "table-frame", tabindex: "0", "data-values": detail.leaves.length },
      element("table", {}, element("thead", {}, head), ...rows.map((group, place) => element("tbody", { class: this.tone(detail.leaves[place]) }, group))));
  }

  tone(leaf) {
    const tone = leaf.status === undefined ? "good" : this.page.statuses[leaf.status].tone;
    return tone === "good" || tone === "quiet" ? "" : `fault ${tone}-edge`;
  }

  leafRows(leaf, both) {
    const same = leaf.decision?.[1] === 0 && !leaf.message;
    const extra = both && !same ? this.comparison(leaf) : [];
    const span = leaf.sides.length + extra.length;
    const name = element("th", { scope: "rowgroup", rowspan: span, class: "leaf" }, ...this.leafName(leaf));
    const rows = leaf.sides.map((entry, side) => this.entryRow(entry, both ? (side ? "golden" : "target") : null));
    rows[0].prepend(name);
    return [...rows, ...extra];
  }

  leafName(leaf) {
    const status = leaf.status === undefined ? null : this.page.statuses[leaf.status];
    return [
      ...(status ? [element("span", { class: `status ${status.tone}`, title: t(status.key) }, `${ICONS[status.tone]} `)] : []),
      leaf.name,
      ...(leaf.other ? [element("div", { class: "other" }, `↔ ${leaf.other}`)] : []),
    ];
  }

  entryRow(entry, side) {
    const cells = side ? [element("td", { class: `side ${side}` }, t(side))] : [];
    if (entry === null) {
      return element("tr", {}, ...cells, element("td", { colspan: 7, class: "empty" }, t("not_there")));
    }
    const [kind, dtype, dims, max, min, mean, norm, nan, inf, , checksum, file, value, reason] = entry;
    const rest = [
      nan ? `${nan} NaN` : "", inf ? `${inf} Inf` : "", checksum ?? "", file ?? "",
      value === null ? "" : kind === "scalar" ? `= ${value}` : "", reason,
    ].filter(Boolean).join(" · ");
    const text = dims === null ? "" : `[${dims.join(", ")}]`;
    return element("tr", {}, ...cells, element("td", {}, dtype), element("td", {}, text),
      ...[max, min, mean, norm].map((number) => this.number(number)), element("td", { class: "rest" }, rest));
  }

  number(value, format = formatNumber) {
    return element("td", { class: `number${isNotFinite(value) ? " alarming" : ""}`, title: String(value ?? "") }, format(value));
  }

  // Rows below both sides: relative differences of the statistics, metrics of the elements, and the verdict.
  comparison(leaf) {
    const rows = [];
    if (leaf.relative) {
      rows.push(element("tr", { class: "relative" }, element("td", { colspan: 3 }, t("relative_difference")),
        ...leaf.relative.map((value) => this.number(value, formatPercent)), element("td", {})));
    }
    const facts = [...this.decision(leaf), ...this.metrics(leaf)];
    if (facts.length) {
      rows.push(element("tr", { class: "facts" }, element("td", { colspan: 8 }, ...facts.map((fact) => element("span", {}, fact)))));
    }
    return rows;
  }

  decision(leaf) {
    const [measure, number, threshold, source] = leaf.decision;
    const facts = leaf.message ? [leaf.message] : [];
    if (measure && number !== null) {
      const limit = threshold === null ? "" : ` (${t("limit")} ${formatNumber(threshold)}${source ? `, ${sourceText(source)}` : ""})`;
      facts.push(`${t(measure)} ${formatNumber(number)}${limit}`);
    }
    return facts;
  }

  metrics(leaf) {
    if (!leaf.metrics) return [];
    const { values, worst, pair } = leaf.metrics;
    const facts = this.page.metrics
      .map((name, place) => [name, values[place]])
      .filter(([name, value]) => value !== null && !(name === "nonfinite_mismatches" && value === 0))
      .map(([name, value]) => `${t(`metric_${name}`)} ${formatNumber(value)}`);
    if (worst) facts.push(`${t("worst_at")} [${worst.join(", ")}]: ${formatNumber(pair[0], 9)} / ${formatNumber(pair[1], 9)}`);
    return facts;
  }

  place(part, detail) {
    const facts = [];
    if (detail.site) facts.push([t("called_at"), element("code", {}, detail.site)]);
    if (detail.fx) facts.push([t("compiled"), element("span", {}, ...fxNode(detail.fx))]);
    if (detail.parent) facts.push([t("inside"), this.recordLink(part, detail.parent)]);
    const stack = detail.stack.length
      ? [element("details", {}, element("summary", {}, t("stack", { frames: detail.stack.length })),
        element("ol", { class: "stack" }, detail.stack.map((frame) => element("li", {}, frame.replaceAll(/\s*\n\s*/g, "\n    ")))))]
      : [];
    return element("div", { class: "place" },
      element("dl", {}, facts.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)])), ...stack);
  }

  recordLink(part, name) {
    const place = part.positionOf(name);
    if (place < 0) return element("code", {}, name);
    return element("button", { type: "button", class: "link", onclick: () => this.reveal(place) }, name);
  }
}
