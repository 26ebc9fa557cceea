// All elements are built here. Text is set as text, so nothing that a caller of the API has written
// is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = ["value", "checked", "disabled"];
const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown", "onpointermove", "onpointerleave"];

// h("a.button", {href: "#/tasks", onclick: f, style: {width: "4em"}, key: id}, "text", child, [more])
export function h(tag, props, ...children) {
  return build(document.createElement(tag.split(".")[0]), tag, props, children);
}

export function svg(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag.split(".")[0]), tag, props, children);
}

function build(element, tag, props, children) {
  const classes = tag.split(".").slice(1);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "key") element.$key = value;
    else if (name === "keep") element.$keep = value;
    else if (name === "class") classes.push(value);
    else if (name === "style") style(element, value);
    else if (name === "href") element.setAttribute("href", safeAddress(value));
    else if (name.startsWith("on")) element[name] = value;
    else if (PROPERTIES.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  if (classes.length) element.setAttribute("class", classes.join(" "));
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Through the object model: attributes named style are refused by the page's own policy.
function style(element, values) {
  element.$style = values;
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
}

// Links lead only to places in this page, never to an address that a caller has written.
function safeAddress(address) {
  return address.startsWith("#") ? address : "#";
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// Make `old` look like `fresh` and keep equal parts, so that focus, selection, scroll position and
// typed text survive a redraw. Children with a key are matched by it.
export function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return old;
  }
  if (old.$keep && old.$keep === fresh.$keep) return old;
  morphAttributes(old, fresh);
  for (const name of HANDLERS) if (old[name] !== fresh[name]) old[name] = fresh[name];
  if (old.tagName === "INPUT" || old.tagName === "BUTTON") {
    if (old !== document.activeElement && "value" in fresh && old.value !== fresh.value) old.value = fresh.value;
    if (old.checked !== fresh.checked) old.checked = fresh.checked;
    if (old.disabled !== fresh.disabled) old.disabled = fresh.disabled;
  }
  morphChildren(old, fresh);
  return old;
}

function morphAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (name !== "style" && !fresh.hasAttribute(name)
      && !(name === "open" && old.tagName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of Object.keys(old.$style ?? {})) {
    if (!(name in (fresh.$style ?? {}))) old.style.removeProperty(name);
  }
  if (fresh.$style) style(old, fresh.$style);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child.$key !== undefined) keyed.set(child.$key, child);
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const found = next.$key === undefined ? unkeyed(place, next) : keyed.get(next.$key);
    if (!found) {
      old.insertBefore(next, place);
      continue;
    }
    keyed.delete(next.$key);
    if (found === place) place = place.nextSibling;
    else old.insertBefore(found, place);
    morph(found, next);
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function unkeyed(place, next) {
  const same = place && place.$key === undefined && place.nodeType === next.nodeType
    && place.nodeName === next.nodeName;
  return same ? place : null;
}

// A message at the edge of the page that disappears by itself; screen readers announce it.
export function toast(text, kind = "info") {
  const line = h("div.toast", { class: kind, role: kind === "error" ? "alert" : "status" }, text);
  toasts().append(line);
  setTimeout(() => line.remove(), kind === "error" ? 9000 : 4000);
}

function toasts() {
  return document.querySelector(".toasts") ?? document.body.appendChild(h("div.toasts"));
}

// A modal question; resolves to whether the user confirmed it.
export function ask({ title, text, confirm, danger = false }) {
  return new Promise((resolve) => {
    const yes = h(danger ? "button.danger" : "button.primary", { type: "button", onclick: () => box.close("yes") },
      confirm);
    const no = h("button", { type: "button", onclick: () => box.close("") }, "Keep as it is");
    const box = h("dialog.ask", { "aria-labelledby": "ask-title" },
      h("h2", { id: "ask-title" }, title), text && h("p", null, text), h("div.actions", null, no, yes));
    open(box).then(() => resolve(box.returnValue === "yes"));
    no.focus();
  });
}

// A dialog with any content, closed by Escape or its button.
export function sheet(title, ...children) {
  const box = h("dialog.sheet", { "aria-labelledby": "sheet-title" },
    h("header", null, h("h2", { id: "sheet-title" }, title),
      h("button.quiet", { type: "button", "aria-label": "Close", onclick: () => box.close() }, "✕")),
    ...children);
  open(box);
  return box;
}

// Open dialogs share one entry in the history of the window, so that the Back button closes the topmost
// one. A dialog may replace another: the entry is removed only when none is open.
const dialogs = [];
let leaving = null;

addEventListener("popstate", () => { if (!leaving && !history.state?.dialog) dialogs.at(-1)?.close(); });

// Show a dialog. Resolves when it is closed and the history is as it was.
function open(box) {
  dialogs.push(box);
  document.body.append(box);
  box.showModal();
  settle();
  return new Promise((resolve) => {
    box.addEventListener("close", () => {
      dialogs.splice(dialogs.indexOf(box), 1);
      box.remove();
      settle().then(resolve);
    });
  });
}

// Add or remove the entry, after a removal that is still on its way.
async function settle() {
  while (leaving) await leaving;
  const entered = Boolean(history.state?.dialog);
  if (dialogs.length && !entered) history.pushState({ dialog: true }, "");
  if (dialogs.length || !entered) return;
  leaving = new Promise((done) => { addEventListener("popstate", done, { once: true }); });
  history.back();
  await leaving;
  leaving = null;
}
