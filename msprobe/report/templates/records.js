// The list of records: filtered by text, status, direction and module; sorted by any column.

const DIRECTIONS = ["all", "forward", "backward", "parameters_grad"];
const ICONS = { good: "✓", quiet: "–", warn: "▲", info: "◇", bad: "✕" };

function filterRecords(part, { query, statuses, direction, module }) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const inModule = part.modules.map((path) => isWithin(path, module));
  const mark = direction === "all" ? "" : `.${direction}`;
  const kept = [];
  for (let place = 0; place < part.names.length; place++) {
    if (!inModule[part.module[place]]) continue;
    if (statuses.size && !statuses.has(part.status[place])) continue;
    if (mark && !part.names[place].includes(mark)) continue;
    if (words.every((word) => part.lower[place].includes(word))) kept.push(place);
  }
  return kept;
}

function sortRecords(part, kept, sort) {
  if (!sort) return kept;
  const value = sort.column === "status"
    ? (place) => part.status[place]
    : (place) => sortKey(part.cell(sort.column, place));
  const keys = new Map(kept.map((place) => [place, value(place)]));
  const sign = sort.descending ? -1 : 1;
  return kept.toSorted((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    return x === y ? a - b : (x < y ? -1 : 1) * sign;
  });
}

function sortKey(value) {
  const number = toNumber(value);
  if (number === null) return typeof value === "string" ? value : -Infinity;
  return Number.isNaN(number) ? Infinity : number; // NaN is the gravest number there is
}

class RecordList {
  constructor(store, page) {
    this.store = store;
    this.page = page;
    this.kept = [];
    this.container = find("list");
    this.header = element("div", { class: "row head", role: "row" });
    this.list = new VirtualList(this.container, {
      rowHeight: 28,
      render: (row, index) => this.renderRow(row, index),
      header: this.header,
    });
    this.container.classList.add(page.kind);
    this.container.addEventListener("keydown", (event) => this.key(event));
    store.on(["part", "query", "statuses", "direction", "module", "sort"], () => this.filter());
    store.on(["language"], () => this.filter());
    store.on(["selected"], () => this.select());
  }

  filter() {
    const part = this.store.get("part");
    this.kept = sortRecords(part, filterRecords(part, this.store.values), this.store.get("sort"));
    this.renderHeader();
    this.container.setAttribute("aria-rowcount", this.kept.length + 1);
    this.container.scrollTop = 0;
    this.list.setCount(this.kept.length);
    const scope = [t("records_shown", { shown: this.kept.length, all: part.names.length })];
    if (this.store.get("module")) scope.push(this.store.get("module"));
    if (part.info.mode) scope.push(part.info.mode);
    find("scope").replaceChildren(...scope.map((text) => element("span", {}, text)), ...this.clearButton());
    this.select();
  }

  clearButton() {
    const { query, statuses, direction, module } = this.store.values;
    if (!query && !statuses.size && direction === "all" && !module) return [];
    const clear = () => this.store.set({ query: "", statuses: new Set(), direction: "all", module: ALL_MODULES });
    return [element("button", { type: "button", class: "link", onclick: clear }, t("clear_filters"))];
  }

  renderHeader() {
    const columns = [["status", "text", ""], ["record", "text", t("record")]];
    this.page.columns.forEach((column, number) => columns.push([number, column.kind, t(`column_${column.key}`)]));
    this.header.replaceChildren(...columns.map(([column, kind, text]) => this.headerCell(column, kind, text)));
  }

  headerCell(column, kind, text) {
    const sort = this.store.get("sort");
    const sorted = sort?.column === column ? (sort.descending ? "descending" : "ascending") : "none";
    const cell = element("div", { role: "columnheader", class: `cell ${kind}`, "aria-sort": sorted });
    if (column === "record") {
      cell.append(text);
      return cell;
    }
    const mark = { none: "", ascending: " ▴", descending: " ▾" }[sorted];
    const label = column === "status" ? t("status") : text;
    const next = { none: { column, descending: true }, descending: { column, descending: false }, ascending: null }[sorted];
    cell.append(element("button", {
      type: "button", title: t("sort_by", { column: label }), onclick: () => this.store.set({ sort: next }),
    }, (column === "status" ? "●" : label) + mark));
    return cell;
  }

  renderRow(row, index) {
    const part = this.store.get("part");
    const place = this.kept[index];
    const status = this.page.statuses[part.status[place]];
    row.id = `record-${place}`;
    row.setAttribute("role", "row");
    row.setAttribute("aria-rowindex", index + 2);
    row.setAttribute("aria-selected", place === this.store.get("selected"));
    row.addEventListener("click", () => this.store.set({ selected: place }));
    const other = part.other[place];
    row.append(
      statusCell(status, "gridcell"),
      element("div", { class: "cell record", role: "gridcell", title: other ? `${part.names[place]}\n${other}` : part.names[place] },
        part.names[place], ...(other ? [element("span", { class: "other" }, ` ↔ ${other}`)] : [])),
      ...this.page.columns.map((column, number) => this.valueCell(part.cell(number, place), column.kind)),
    );
  }

  valueCell(value, kind) {
    const shown = kind === "number" ? formatNumber(value) : kind === "label" ? t(value ?? "") : value ?? "";
    const alarming = kind === "number" && isNotFinite(value) ? " alarming" : "";
    return element("div", { class: `cell ${kind}${alarming}`, role: "gridcell", title: String(value ?? "") }, shown);
  }

  select() {
    const selected = this.store.get("selected");
    for (const row of this.container.querySelectorAll('[aria-selected="true"]')) row.setAttribute("aria-selected", "false");
    this.container.setAttribute("aria-activedescendant", `record-${selected}`);
    const index = this.kept.indexOf(selected);
    if (index < 0) return;
    this.list.show(index);
    this.list.rows.get(index)?.setAttribute("aria-selected", "true");
  }

  // Selects a record, and drops filters that hide it.
  reveal(place) {
    if (!this.kept.includes(place)) {
      this.store.set({ query: "", statuses: new Set(), direction: "all", module: ALL_MODULES });
    }
    this.store.set({ selected: place, tab: "records" });
  }

  // Selects the next record that is not harmless, or the one before.
  jump(step) {
    const part = this.store.get("part");
    const start = this.kept.indexOf(this.store.get("selected"));
    for (let index = start + step; index >= 0 && index < this.kept.length; index += step) {
      const { tone } = this.page.statuses[part.status[this.kept[index]]];
      if (tone !== "good" && tone !== "quiet") {
        this.store.set({ selected: this.kept[index], tab: "records" });
        return;
      }
    }
  }

  key(event) {
    const index = this.kept.indexOf(this.store.get("selected"));
    const target = keyTarget(event.key, index, this.kept.length, this.list.pageSize);
    if (target !== null) {
      this.store.set({ selected: this.kept[target] });
      this.list.show(target); // it may be selected already, and scrolled away
    } else if (event.key === "Enter") find("detail").focus();
    else return;
    event.preventDefault();
  }
}

function statusCell(status, role) {
  return element("div", { class: `cell status ${status.tone}`, role, title: t(status.key), "aria-label": t(status.key) }, ICONS[status.tone]);
}
