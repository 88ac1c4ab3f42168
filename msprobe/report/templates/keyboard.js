// Keys that work anywhere on the page, and the list of all keys.

const KEYS = [
  ["↑ ↓ PgUp PgDn Home End", "key_move"],
  ["← →", "key_tree"],
  ["n / p", "key_jump"],
  ["g", "key_first"],
  ["/", "key_search"],
  ["1 2 3", "key_tabs"],
  ["Enter", "key_detail"],
  ["Esc", "key_escape"],
  ["?", "key_help"],
];

function installKeyboard(store, actions) {
  const pressed = {
    n: () => actions.jump(1),
    p: () => actions.jump(-1),
    g: actions.first,
    "/": () => find("search").focus(),
    1: () => store.set({ tab: "records" }),
    2: () => store.set({ tab: "trend" }),
    3: () => store.set({ tab: "ranks" }),
    "?": showKeys,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
    const typing = event.target.matches("input, select, textarea");
    if (event.key === "Escape" && typing) {
      store.set({ query: "" });
      find("list").focus();
    } else if (!typing && pressed[event.key]) {
      pressed[event.key]();
      event.preventDefault();
    }
  });
}

function showKeys() {
  find("keys").replaceChildren(...KEYS.flatMap(([key, label]) => [element("dt", {}, element("kbd", {}, key)), element("dd", {}, t(label))]));
  find("help").showModal();
}
