// Building and changing the page. Text goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) =>
  dress(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  dress(document.createElementNS(SVG, tag), attributes, children);

// Set only what differs: a screen reader and a text selection are not disturbed by equal text.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function put(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

// Make a part of the page again only when what it shows has changed.
const shown = new WeakMap();

export function remake(node, data, make) {
  const key = JSON.stringify(data);
  if (shown.get(node) === key) return;
  shown.set(node, key);
  const held = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  node.replaceChildren(...[make(data)].flat().filter(Boolean));
  if (held) node.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
}

export function facts(node, rows) {
  remake(node, rows, () =>
    rows.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]));
}

export function sign(severity) {
  const [mark, word] = SIGNS[severity] ?? SIGNS.log;
  return el("span", { class: `sign ${severity}` },
    el("span", { "aria-hidden": "true", text: mark }), el("span", { text: word }));
}

const SIGNS = {
  log: ["·", "note"],
  warning: ["▲", "warning"],
  alarm: ["■", "alarm"],
  critical: ["◆", "critical"],
};
