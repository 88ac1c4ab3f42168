// Puts the page together.

const THEMES = ["auto", "light", "dark"];

async function start() {
  applyLabels();
  setTheme(THEMES.includes(remembered("theme")) ? remembered("theme") : "auto");
  if (!("DecompressionStream" in window)) {
    find("loading").textContent = t("browser_too_old");
    return;
  }
  const page = await unpack("page");
  const parts = page.parts.map((info, number) => new Part(number, info));
  const opened = parts[Math.max(0, page.first)] ?? new Part(-1, { step: "", rank: "", run: "", series: {}, notes: [], groups: [], records: 0, finding: null });
  const store = new Store({
    part: null, selected: -1, module: ALL_MODULES, query: "", statuses: new Set(), direction: "all",
    sort: null, tab: "records", measure: 0, language,
  });
  const actions = {};
  const tree = new TreeView(store, page);
  const records = new RecordList(store, page);
  actions.reveal = (place) => { if (place >= 0) records.reveal(place); };
  actions.jump = (step) => records.jump(step);
  actions.openPart = (part, changes = {}) => openPart(store, part, changes);
  actions.expand = (module) => tree.reveal(module);
  actions.first = () => goToFirst(store, page, parts, actions);
  new DetailView(store, page, actions.reveal);
  new Overview(store, page, parts, actions);
  new TrendView(store, page, parts);
  new HeatMap(store, page, parts, actions);
  installTools(store, page, parts, actions);
  installKeyboard(store, actions);
  find("workspace").hidden = false;
  await openPart(store, opened, {});
  await actions.first();
  find("loading").hidden = true;
  find("list").focus({ preventScroll: true });
  document.documentElement.dataset.ready = "true";
}

async function openPart(store, part, changes) {
  if (part.number < 0) return;
  await part.load();
  store.set({ part, selected: -1, sort: null, ...changes });
}

// Opens the step and rank where the first finding is, its module in the tree and its record in the list.
async function goToFirst(store, page, parts, actions) {
  if (page.first < 0) return;
  const part = parts[page.first];
  if (store.get("part") !== part) await openPart(store, part, {});
  store.set({ query: "", statuses: new Set(), direction: "all", module: ALL_MODULES, sort: null });
  actions.reveal(part.info.finding.position);
  actions.expand(part.info.finding.module);
}

function installTools(store, page, parts, actions) {
  const chooser = find("part");
  chooser.replaceChildren(...parts.map((part) => element("option", { value: part.number }, partLabel(part))));
  chooser.addEventListener("change", () => actions.openPart(parts[Number(chooser.value)]));
  const search = find("search");
  search.addEventListener("input", () => store.set({ query: search.value }));
  const direction = find("direction");
  direction.addEventListener("change", () => store.set({ direction: direction.value }));
  find("first").addEventListener("click", actions.first);
  find("first").hidden = page.first < 0;
  find("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  });
  find("language").addEventListener("click", () => {
    setLanguage(LANGUAGES[(LANGUAGES.indexOf(language) + 1) % LANGUAGES.length]);
    store.set({ language });
  });
  find("help-open").addEventListener("click", showKeys);
  for (const tab of ["records", "trend", "ranks"]) find(`tab-${tab}`).addEventListener("click", () => store.set({ tab }));
  store.on(["part"], () => { chooser.value = store.get("part").number; });
  store.on(["query"], () => { if (search.value !== store.get("query")) search.value = store.get("query"); });
  store.on(["direction", "language"], () => renderDirection(store));
  store.on(["part", "statuses", "language"], () => renderStatuses(store, page));
  store.on(["tab"], () => renderTabs(store));
  store.on(["language"], () => renderTexts(page));
  renderDirection(store);
  renderTabs(store);
  renderTexts(page);
}

function partLabel(part) {
  const icon = part.info.finding ? "✕ " : "";
  return `${icon}${part.label}`;
}

function renderTexts(page) {
  find("kind").textContent = t(page.kind);
  find("language").textContent = language === "zh" ? "EN" : "中文";
  find("first").textContent = t(page.kind === "report" ? "first_nan" : "first_divergence");
  find("sides").replaceChildren(...page.sides.flatMap(([side, path]) => [element("dt", {}, t(side)), element("dd", { title: path }, element("bdi", {}, path))]));
  renderTheme();
}

function renderDirection(store) {
  const options = DIRECTIONS.map((name) => element("option", { value: name }, t(name)));
  find("direction").replaceChildren(...options);
  find("direction").value = store.get("direction");
}

// One button per status that occurs, with the number of its records.
function renderStatuses(store, page) {
  const part = store.get("part");
  if (!part) return;
  const counts = new Array(page.statuses.length).fill(0);
  for (const code of part.status) counts[code] += 1;
  const buttons = page.statuses.map((status, code) => {
    if (!counts[code]) return null;
    const pressed = store.get("statuses").has(code);
    const toggle = () => {
      const next = new Set(store.get("statuses"));
      if (!next.delete(code)) next.add(code);
      store.set({ statuses: next });
    };
    return element("button", {
      type: "button", class: `chip ${status.tone}`, "aria-pressed": String(pressed), "data-status": status.key, onclick: toggle,
    }, `${ICONS[status.tone]} ${t(status.key)} `, element("b", {}, String(counts[code])));
  });
  find("statuses").replaceChildren(...buttons.filter(Boolean).reverse());
}

function renderTabs(store) {
  for (const tab of ["records", "trend", "ranks"]) {
    const chosen = store.get("tab") === tab;
    find(`tab-${tab}`).setAttribute("aria-selected", chosen);
    find(`view-${tab}`).hidden = !chosen;
  }
  document.body.dataset.tab = store.get("tab");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  remember("theme", theme);
  renderTheme();
}

function renderTheme() {
  const theme = document.documentElement.dataset.theme;
  find("theme").textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  find("theme").setAttribute("aria-label", `${t("switch_theme")}: ${t(`theme_${theme}`)}`);
}

start();
