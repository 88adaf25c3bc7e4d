// Creates DOM nodes and updates a tree in place. Data only becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function create(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

export function h(tag, attributes, ...children) {
  return create(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return create(document.createElementNS(SVG, tag), attributes, children);
}

// Text with `commands` in backticks, as reasons and hints have them.
export function prose(text) {
  return String(text ?? "").split("`").map((part, index) => (index % 2 ? h("code", null, part) : part));
}

// Make `old` equal to `fresh`, and keep focus, scroll positions and input of the user.
export function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

export function morphChildren(old, fresh) {
  const focused = document.activeElement;
  const keyed = new Map();
  for (const child of old.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = child.dataset?.key;
    const same = key ? keyed.get(key) : at?.dataset?.key ? null : at;
    if (same && same.nodeName === child.nodeName) {
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      morph(same, child);
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}
