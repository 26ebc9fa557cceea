// Building blocks of pages: headings, empty states with an example, tables, and actions.

import { h, ask, toast } from "./dom.js";
import { refusal, who } from "./api.js";

export function head(title, ...tools) {
  return h("div.head", null, h("h1", null, title), h("div.actions", null, tools));
}

export function card(title, tools, ...children) {
  return h("section.card", { "aria-label": typeof title === "string" ? title : null },
    h("header", null, h("h2", null, title), tools && h("div.actions", null, tools)), ...children);
}

// An empty state: what the list will show, and a command that creates an item.
export function empty(title, text, command, ...more) {
  return h("div.empty", null, h("h3", null, title), h("p", null, text), command && copyable(command), ...more);
}

export function copyable(text) {
  return h("div.copy", null, h("pre", { tabindex: "0", "aria-label": "Command" }, text),
    h("button", { type: "button", onclick: (event) => copy(text, event.currentTarget) }, "Copy"));
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } catch {
    toast("The browser blocks copying; select the text instead", "error");
  }
}

// The curl command for a request, with a token if the server needs one.
export function curl(asked, path, body) {
  const parts = [`curl ${asked} ${location.origin}${path}`];
  if (who.tokensRequired) parts.push('-H "Authorization: Bearer $FAIRLANE_TOKEN"');
  if (body !== undefined) parts.push(`-H 'content-type: application/json' -d '${JSON.stringify(body)}'`);
  return parts.join(" \\\n  ");
}

export const me = () => who.agent ?? "me";

export const problem = (error) => h("div.problem", { role: "alert" }, h("b", null, error.message),
  error.details?.problems?.length > 1 && h("ul", null,
    error.details.problems.map((one) => h("li", null, typeof one === "string" ? one : one.error))));

export const loading = () => h("p.loading", { role: "status" }, "Reading…");

// `columns`: [{name, cell(row), class?}]. The keys j and k move between rows.
export function table(columns, rows, { key, label }) {
  return h("div.scroll.cards", { tabindex: "0", role: "region", "aria-label": label }, h("table", null,
    h("thead", null, h("tr", null,
      columns.map((column) => h("th", { scope: "col", class: column.class }, column.name)))),
    h("tbody", null, rows.map((row) => h("tr", { key: key(row), "data-row": true },
      columns.map((column) => h("td", { class: column.class, "data-name": column.name }, column.cell(row))))))));
}

// The part of the work that is done, from the progress that a run reported: a number, or an object with
// `done` or `percent`, and `total` if `done` is a count. null if it has neither.
export function partDone(progress) {
  const given = typeof progress === "number" ? { done: progress } : progress ?? {};
  const part = Number.isFinite(given.percent) ? given.percent / 100 : given.done / (given.total ?? 1);
  return Number.isFinite(part) && part >= 0 && part <= 1 ? part : null;
}

export function progressBar(progress) {
  const part = partDone(progress);
  if (part === null) return null;
  const label = `${Math.round(part * 100)} % done`;
  return h("span.done-part", { role: "progressbar", "aria-label": "Progress", "aria-valuenow": Math.round(part * 100),
    "aria-valuemin": 0, "aria-valuemax": 100, title: label }, h("i", { style: { width: `${part * 100}%` } }));
}

// `needs` is the route that the button calls, as in "POST /tasks/{id}/cancel". If the user may not
// call it, the button says why.
export function button(text, act, { needs, ...props } = {}) {
  const why = needs && refusal(needs);
  return h("button", { type: "button", ...props, ...(why && { disabled: true, title: why }), onclick: act }, text);
}

// Run an action and show its success or its error. Resolves to the response, or undefined.
export async function attempt(doing, said) {
  try {
    const answer = await doing();
    if (said) toast(typeof said === "function" ? said(answer) : said);
    return answer;
  } catch (error) {
    toast(error.message, "error");
    return undefined;
  }
}

export async function confirmed(question, doing, said) {
  return (await ask(question)) ? attempt(doing, said) : undefined;
}

// Pages of a list by cursor. It keeps the cursors of earlier pages, to go back to them.
export class Pager {
  constructor() { this.cursors = [undefined]; }
  get cursor() { return this.cursors.at(-1); }
  get first() { return this.cursors.length === 1; }
  forward(cursor) { this.cursors.push(cursor); }
  back() { if (!this.first) this.cursors.pop(); }
  reset() { this.cursors = [undefined]; }

  controls(next, turned) {
    if (this.first && !next) return null;
    return h("nav.pager", { "aria-label": "Pages of the list" },
      button("← Newer", () => { this.back(); turned(); }, { disabled: this.first }),
      h("span", null, `Page ${this.cursors.length}`),
      button("Older →", () => { this.forward(next); turned(); }, { disabled: !next }));
  }
}
