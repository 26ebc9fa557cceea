// Format times, durations and numbers for people.

import { h } from "./dom.js";

const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const EXACT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const number = (value) => NUMBER.format(value);
export const compact = (value) => (value < 10000 ? NUMBER.format(value) : COMPACT.format(value));
export const percent = (share) => `${Math.round(share * 100)} %`;
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export function rate(value) {
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : compact(Math.round(value));
}

// "850 ms", "12 s", "4 min", "3 h", "2 d"
export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1).replace(".0", "")} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 600) return `${(seconds / 60).toFixed(1).replace(".0", "")} min`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function relative(at, now = Date.now()) {
  const ms = at - now;
  if (Math.abs(ms) < 1500) return "now";
  const said = Math.abs(ms) < 60000 ? `${Math.round(Math.abs(ms) / 1000)} s`
    : Math.abs(ms) < 600000 ? `${Math.round(Math.abs(ms) / 60000)} min` : span(Math.abs(ms));
  return ms < 0 ? `${said} ago` : `in ${said}`;
}

export const exact = (at) => `${EXACT.format(at)} · ${new Date(at).toISOString()}`;

// A time: relative in the text, exact in the tooltip. `tick` keeps the times on the page current.
export function time(moment) {
  if (!moment) return "–";
  const at = typeof moment === "number" ? moment : Date.parse(moment);
  const iso = new Date(at).toISOString();
  return h("time", { datetime: iso, title: exact(at) }, relative(at));
}

export function tick(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const text = relative(Date.parse(element.dateTime), now);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function clock(at, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withSeconds && { second: "2-digit" }) };
  return new Date(at).toLocaleTimeString("en-GB", options);
}

// "18 Nov 2026, 14:05"
const DATED = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
export const dated = (at) => DATED.format(at);

export const LABELS = {
  waiting_dependency: "waiting", queued: "queued", assigned: "assigned", running: "running", parked: "parked",
  done: "done", failed: "failed", cancelled: "cancelled", rejected: "rejected",
};
export const STATES = Object.keys(LABELS);
LABELS.given_up = "given up"; // of a delivery

export const badge = (state, extra) =>
  h("span.badge", { class: `s-${state}` }, h("i", { "aria-hidden": "true" }), LABELS[state] ?? state,
    extra && h("small", null, extra));

export const shortId = (id) => (id.length > 22 ? `${id.slice(0, 8)}…${id.slice(-6)}` : id);

export const taskLink = (id, text) => h("a.mono", { href: `#/tasks/${encodeURIComponent(id)}`, title: id },
  text ?? shortId(id));
export const sessionLink = (key) => h("a.mono", { href: `#/sessions/${encodeURIComponent(key)}` }, key);
export const batchLink = (id) => h("a.mono", { href: `#/batches/${encodeURIComponent(id)}`, title: id }, shortId(id));

// A short title of a task.
export function title(task) {
  if (task.instruction) return cut(task.instruction, 120);
  const what = task.action ?? task.handler ?? task.kind;
  const where = task.selector ?? task.ref ?? task.tabId;
  return where ? `${what} ${cut(where, 80)}` : cut(what, 120);
}

// The arguments of a task, in one line.
export const args = (task) => (task.params && Object.keys(task.params).length ? cut(JSON.stringify(task.params), 100)
  : "");

export function cut(text, most) {
  const line = String(text).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

// "maxConcurrent" as separate words.
export const words = (name) => name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

export const pretty = (value) => JSON.stringify(value, null, 2);
