// Forms: fields with labels, hints and errors at the field that the server or the page refuses.

import { h, fill, sheet, toast } from "./dom.js";
import { problem } from "./pieces.js";

// A field with its label, a hint, and a place for its error. `name` is the name in the request.
export function field(label, input, { hint, wide } = {}) {
  const about = `about-${input.name}`;
  input.setAttribute("aria-describedby", about);
  return h("div.about", { class: wide ? "wide" : "" }, h("label.field", null, h("span", null, label), input),
    h("small", { id: about, "data-hint": hint ?? "" }, hint));
}

export const text = (name, props) => h("input", { type: "text", name, autocomplete: "off", spellcheck: "false",
  ...props });

// A text field that suggests values.
export function choice(name, values, props) {
  const list = `known-${name}`;
  return [text(name, { ...props, list }), h("datalist", { id: list }, values.map((value) => h("option", { value })))];
}

export function select(name, options, chosen) {
  return h("select", { name }, options.map(([value, label]) =>
    h("option", { value, selected: value === chosen }, label ?? value)));
}

export function area(name, value, rows = 6) {
  const element = h("textarea", { name, rows, spellcheck: "false" });
  element.value = value;
  return element;
}

export class FieldError extends Error {
  constructor(name, message) {
    super(message);
    this.details = { problems: [{ path: name, error: message }] };
  }
}

// The value of a field with JSON; undefined if it is empty.
export function json(form, name, label) {
  const given = form.elements[name].value.trim();
  if (!given) return undefined;
  let value;
  try {
    value = JSON.parse(given);
  } catch (error) {
    throw new FieldError(name, `${label} must be JSON: ${error.message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new FieldError(name, `${label} must be an object, such as {"city": "Oslo"}`);
  }
  return value;
}

const UNITS = { ms: 1, s: 1000, m: 60000, min: 60000, h: 3600000, d: 86400000 };

// The value of a field with a duration such as 30s, 5m or 2h, in milliseconds; a number is seconds.
export function duration(form, name, label) {
  const given = form.elements[name].value.trim();
  if (!given) return undefined;
  const [, amount, unit] = /^(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?$/.exec(given) ?? [];
  if (amount === undefined) throw new FieldError(name, `${label} must be a duration such as 30s, 5m or 2h`);
  return Math.round(Number(amount) * UNITS[unit ?? "s"]);
}

export const word = (form, name) => form.elements[name].value.trim() || undefined;

// Send a form. Errors appear at their fields, others in `outcome`.
export async function send(form, outcome, doing) {
  clear(form, outcome);
  try {
    return await doing();
  } catch (error) {
    if (!error.details) throw error;
    refuse(form, outcome, error);
    return undefined;
  }
}

function clear(form, outcome) {
  fill(outcome);
  for (const input of form.elements) {
    input.removeAttribute("aria-invalid");
    const about = input.name && form.querySelector(`#about-${input.name}`);
    if (about) { about.className = ""; about.textContent = about.dataset.hint; }
  }
}

function refuse(form, outcome, error) {
  const named = /(?:field|invalid|missing required field) '?(\w+)/.exec(error.message)?.[1];
  const problems = error.details.problems?.length ? error.details.problems
    : [{ path: named ?? "", error: error.message }];
  const rest = problems.filter(({ path, error: message }) => {
    const name = (path ?? "").split(".")[0];
    const input = name && form.elements[name];
    const about = input && form.querySelector(`#about-${name}`);
    if (!about || input.closest("[hidden]")) return true;
    input.setAttribute("aria-invalid", "true");
    about.className = "error";
    about.textContent = message;
    return false;
  });
  if (rest.length) fill(outcome, problem({ message: rest.length > 1 ? "Refused" : rest[0].error,
    details: { problems: rest } }));
  form.querySelector("[aria-invalid]")?.focus();
}

// A dialog with a form. It stays open and shows the errors if the server refuses it. `fields` are
// labels from `field`; `act(form)` sends and may return text to show.
export function dialog({ title, about, verb, danger, wide }, fields, act) {
  const outcome = h("div", { "aria-live": "polite" });
  const form = h("form.form", { onsubmit: async (event) => {
    event.preventDefault();
    const done = await send(form, outcome, () => act(form));
    if (done === undefined) return;
    box.close();
    if (typeof done === "string") toast(done);
  } }, about && h("p.muted", null, about), fields, outcome,
  h("div.actions", null, h(danger ? "button.danger" : "button.primary", { type: "submit" }, verb)));
  const box = sheet(title, form);
  if (wide) box.classList.add("wide");
  form.querySelector("input, select, textarea")?.focus();
  return box;
}
