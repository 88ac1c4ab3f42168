// The tree of modules, with the gravest status of what is inside and a number of each.

const ALL_MODULES = "";

function buildTree(part, statuses) {
  const root = treeNode(ALL_MODULES, "", statuses);
  const nodes = new Map([[ALL_MODULES, root]]);
  const of = part.modules.map((path) => nodeFor(path, nodes, statuses));
  for (let place = 0; place < part.names.length; place++) {
    for (let node = of[part.module[place]]; node; node = node.parent) node.counts[part.status[place]] += 1;
  }
  return { root, nodes };
}

function treeNode(path, name, statuses, parent = null) {
  return { path, name, parent, children: [], counts: new Array(statuses.length).fill(0) };
}

function nodeFor(path, nodes, statuses) {
  const known = nodes.get(path);
  if (known) return known;
  const cut = path.lastIndexOf(".");
  const parent = nodeFor(cut < 0 ? ALL_MODULES : path.slice(0, cut), nodes, statuses);
  const node = treeNode(path, path.slice(cut + 1), statuses, parent);
  parent.children.push(node);
  nodes.set(path, node);
  return node;
}

function isWithin(module, path) {
  return path === ALL_MODULES || module === path || module.startsWith(`${path}.`);
}

class TreeView {
  constructor(store, page) {
    this.store = store;
    this.page = page;
    this.open = new Set([ALL_MODULES]);
    this.shown = [];
    this.container = find("tree");
    this.list = new VirtualList(this.container, { rowHeight: 26, render: (row, index) => this.renderRow(row, index) });
    this.container.addEventListener("keydown", (event) => this.key(event));
    store.on(["part"], () => this.rebuild());
    store.on(["language", "selected"], () => this.list.refresh());
    store.on(["module"], () => this.select());
  }

  rebuild() {
    this.tree = buildTree(this.store.get("part"), this.page.statuses);
    for (const child of this.tree.root.children) if (this.tree.root.children.length === 1) this.open.add(child.path);
    this.select();
  }

  select() {
    let node = this.tree.nodes.get(this.store.get("module"))?.parent;
    for (; node; node = node.parent) this.open.add(node.path);
    this.flatten();
    const place = this.place();
    if (place >= 0) this.list.show(place);
  }

  // Opens the tree down to a module, without choosing it.
  reveal(path) {
    let node = this.tree.nodes.get(path);
    if (!node) return;
    for (node = node.parent; node; node = node.parent) this.open.add(node.path);
    this.flatten();
    this.list.show(this.shown.findIndex(([shown]) => shown.path === path));
  }

  flatten() {
    this.shown = [];
    const walk = (node, depth) => {
      this.shown.push([node, depth]);
      if (this.open.has(node.path)) for (const child of node.children) walk(child, depth + 1);
    };
    walk(this.tree.root, 0);
    this.list.setCount(this.shown.length);
    this.container.setAttribute("aria-activedescendant", `tree-${Math.max(0, this.place())}`);
  }

  place() {
    return this.shown.findIndex(([node]) => node.path === this.store.get("module"));
  }

  toggle(node, open = !this.open.has(node.path)) {
    if (open) this.open.add(node.path);
    else this.open.delete(node.path);
    this.flatten();
  }

  renderRow(row, index) {
    const [node, depth] = this.shown[index];
    const opened = this.open.has(node.path);
    const worst = node.counts.findLastIndex((count) => count > 0);
    const status = this.page.statuses[Math.max(0, worst)];
    row.id = `tree-${index}`;
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", depth + 1);
    row.setAttribute("aria-selected", node.path === this.store.get("module"));
    if (node.children.length) row.setAttribute("aria-expanded", opened);
    if (node.path !== ALL_MODULES && node.path === this.moduleOfSelected()) row.setAttribute("aria-current", "location");
    row.style.paddingInlineStart = `${8 + depth * 14}px`;
    row.title = `${node.path || t("whole_step")}\n${this.describe(node)}`;
    row.addEventListener("click", () => this.store.set({ module: node.path }));
    const twisty = element("span", { class: "twisty", "aria-hidden": "true" }, node.children.length ? (opened ? "▾" : "▸") : "");
    twisty.addEventListener("click", (event) => {
      event.stopPropagation();
      this.toggle(node);
    });
    row.append(
      twisty,
      element("span", { class: `dot ${status.tone}`, "aria-hidden": "true" }),
      element("span", { class: "name" }, node.name || t("whole_step")),
      element("span", { class: "extra" }, this.extra(node)),
    );
  }

  moduleOfSelected() {
    const { part, selected } = this.store.values;
    return part.modules[part.module[selected]];
  }

  describe(node) {
    const parts = node.counts.map((count, code) => (count ? `${count} ${t(this.page.statuses[code].key)}` : ""));
    return parts.filter(Boolean).reverse().join(", ");
  }

  // Beside a name: how many records are grave; in a report without any, the norm of the module's output.
  extra(node) {
    const grave = node.counts.reduce((sum, count, code) => sum + (this.page.statuses[code].tone === "bad" ? count : 0), 0);
    if (grave) return String(grave);
    if (this.page.kind !== "report") return "";
    const values = this.store.get("part").info.series[node.path];
    return values ? formatNumber(values[0], 4) : "";
  }

  key(event) {
    const place = Math.max(0, this.place());
    const [node] = this.shown[place];
    const target = keyTarget(event.key, place, this.shown.length, this.list.pageSize);
    if (target !== null) this.store.set({ module: this.shown[target][0].path });
    else if (event.key === "ArrowRight" && node.children.length) {
      if (this.open.has(node.path)) this.store.set({ module: node.children[0].path });
      else this.toggle(node, true);
    } else if (event.key === "ArrowLeft") {
      if (this.open.has(node.path) && node.children.length) this.toggle(node, false);
      else if (node.parent) this.store.set({ module: node.parent.path });
    } else if (event.key === "Enter" || event.key === " ") this.toggle(node);
    else return;
    event.preventDefault();
  }
}
