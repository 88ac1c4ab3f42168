// The answer first: where two runs part, or where NaN begins, and what leads there.

const LONGEST_CHAIN = 8;

class Overview {
  constructor(store, page, parts, actions) {
    this.store = store;
    this.page = page;
    this.parts = parts;
    this.actions = actions;
    this.container = find("overview");
    store.on(["part", "language"], () => this.render());
  }

  render() {
    const { part } = this.store.values;
    const finding = part.info.finding;
    const notes = [...this.page.notes, ...part.info.notes];
    this.container.className = `overview ${finding ? "bad" : "good"}`;
    this.container.replaceChildren(
      ...(finding ? this.finding(part, finding) : [this.nothing(part)]),
      ...this.groups(part),
      ...(notes.length ? [element("ul", { class: "notes" }, notes.map((note) => element("li", {}, note)))] : []),
    );
    this.container.hidden = false;
  }

  nothing(part) {
    const key = part.info.records === 0 ? "no_records" : this.page.kind === "report" ? "all_finite" : "no_divergence";
    const elsewhere = this.page.first >= 0 && this.parts[this.page.first] !== part
      ? [" ", element("button", { type: "button", class: "link", onclick: this.actions.first },
        t("first_elsewhere", { part: this.parts[this.page.first].label }))]
      : [];
    return element("p", { class: "headline" }, element("strong", {}, t(key)), ...elsewhere);
  }

  finding(part, finding) {
    const first = this.parts[this.page.first] === part;
    const title = this.page.kind === "report" ? t(finding.title) : `${t(first ? "first_divergence" : "divergence")}: ${t(finding.title)}`;
    const facts = [
      element("button", { type: "button", class: "link record", onclick: () => this.actions.reveal(finding.position) }, finding.record),
      ...(finding.place ? [element("code", {}, finding.place)] : []),
      element("span", {}, part.label),
      ...this.page.facts.filter(([, value]) => value).map(([key, value]) => element("span", {}, `${t(key)} ${t(value)}`)),
    ];
    return [
      element("p", { class: "headline" }, element("strong", {}, title), ...facts),
      element("p", {}, finding.explanation, ...(finding.call_site ? [" ", element("code", {}, finding.call_site)] : []),
        ...(finding.fx ? [" · ", ...fxNode(finding.fx)] : [])),
      ...this.chain(part, finding),
    ];
  }

  // The records on the way, in order; each leads to its place in the list.
  chain(part, finding) {
    if (finding.chain.length < 2) return [];
    const isReport = this.page.kind === "report";  // a NaN begins the chain, a divergence ends it
    const shown = isReport ? finding.chain.slice(0, LONGEST_CHAIN) : finding.chain.slice(-LONGEST_CHAIN);
    const rest = finding.chain.length - shown.length;
    const links = shown.map(([name, status, , handsOn]) => {
      const { tone } = this.page.statuses[status];
      const go = () => part.load().then(() => this.actions.reveal(part.positionOf(name)));
      return element("li", {}, element("button", { type: "button", class: `link ${tone}`, title: handsOn || name, onclick: go }, `${ICONS[tone]} ${name}`));
    });
    if (rest && isReport) links.push(element("li", {}, t("and_more", { number: rest })));
    else if (rest) links.unshift(element("li", {}, t("more_before", { number: rest })));
    const label = t(isReport ? "nan_path" : "leads_to_it");
    return [element("div", { class: "chain" }, element("span", {}, label), element("ol", {}, links))];
  }

  groups(part) {
    if (!part.info.groups.length) return [];
    const rows = part.info.groups.map(([module, direction, records, first, last, number]) =>
      element("tr", {}, ...[module || t("whole_step"), t(direction), records, first, last, formatNumber(number)].map((text) => element("td", {}, String(text)))));
    const heads = ["module", "direction", "records", "from", "to", "column_number"].map((key) => element("th", { scope: "col" }, t(key)));
    return [element("details", { class: "groups" },
      element("summary", {}, t("inherit_only", { number: part.info.groups.reduce((sum, group) => sum + group[2], 0) })),
      element("div", { class: "table-frame", tabindex: "0" }, element("table", {}, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, rows))))];
  }
}
