// Texts in two languages. `t(key)` gives a text; elements with data-label attributes get theirs by themselves.

const LANGUAGES = ["en", "zh"];
const texts = JSON.parse(find("labels").textContent);
let language = LANGUAGES.includes(remembered("language"))
  ? remembered("language")
  : navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";

function t(key, values = {}) {
  const text = texts[language][key] ?? texts.en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

// Where a limit comes from, as compare says it.
function sourceText(source) {
  const table = "default for ";
  return source.startsWith(table) ? t("default_for", { what: source.slice(table.length) }) : t(source);
}

function setLanguage(next) {
  language = next;
  remember("language", next);
  applyLabels();
}

function applyLabels() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-label]")) node.textContent = t(node.dataset.label);
  const attributes = { labelTitle: "title", labelAria: "aria-label", labelPlaceholder: "placeholder" };
  for (const [data, attribute] of Object.entries(attributes)) {
    const selector = `[data-${data.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}]`;
    for (const node of document.querySelectorAll(selector)) node.setAttribute(attribute, t(node.dataset[data]));
  }
}
