// Making elements. Text is always set as text: names in a dump can hold anything.

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  fill(node, properties, children);
  return node;
}

function shape(tag, properties = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(node, properties, children);
  return node;
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
}

// Where in a compiled program something is: [graph, node].
function fxNode([graph, node]) {
  return [`${t("fx_graph", { graph })} `, element("code", {}, node)];
}

function find(id) {
  return document.getElementById(id);
}

function remember(key, value) {
  try {
    localStorage.setItem(`msprobe.${key}`, value);
  } catch {
    // a page opened from a file may have no storage: the choice then lasts as long as the page
  }
}

function remembered(key) {
  try {
    return localStorage.getItem(`msprobe.${key}`);
  } catch {
    return null;
  }
}
