// A Gantt chart of tasks: waits, runs, suspensions, steps and messages, in plain SVG, with the same
// facts as a table.

import { h, svg } from "./dom.js";
import { badge, clock, cut, exact, span, taskLink, time } from "./format.js";
import { table } from "./pieces.js";

const WIDTH = 1000;
const HEIGHT = 20;
const LEAST = 3; // width of a span that took next to no time
const TABLE_MAX = 400;
const FOR = {
  queue: "waits in line", retry: "waits for the next attempt", dependency: "waits for its dependencies",
  delay: "delayed", session: "waits for its turn in the session", batch: "waits for its turn in the batch",
  resource: "waits for a resource", approval: "waits for an approval", debounce: "waits for further messages",
};
const OUTCOMES = { completed: "done", failed: "failed", retrying: "failed", parked: "failed", cancelled: "cancelled" };
const LEGEND = [["queued", "waiting"], ["running", "running"], ["done", "run that ended well"],
  ["failed", "failed run"], ["waiting", "suspended"], ["parked", "parked"]];

// `found` is the response of GET /tasks/{id}/timeline or /batches/{id}/timeline.
export function gantt(found, here = null) {
  const rows = found.timelines.map((one) => ({ ...one, spans: one.spans.map((part) => timed(part, found.now)) }));
  const range = reach(rows, Date.parse(found.now));
  const shown = rows.filter((row) => row.role !== "dependency" || row.spans.some((part) => part.end > range.from));
  const label = `${shown.length === 1 ? "One task" : `${shown.length} tasks`} over ${span(range.until - range.from)}`;
  return h("figure.gantt", { "aria-label": `Timeline: ${label}` },
    h("figcaption.legend", null, LEGEND.map(([tone, text]) =>
      h("span", { class: tone }, h("i", { "aria-hidden": "true" }), text))),
    h("div.lines", { tabindex: "0", role: "group", "aria-label": label }, shown.map((row) => line(row, range, here))),
    axis(range), h("details.as-table", null, h("summary", null, "The same as a table"), asTable(shown)));
}

const timed = (part, now) => ({ ...part, start: Date.parse(part.startAt), end: Date.parse(part.endAt ?? now) });

// The time that the chart covers. Dependencies are cut off at the start of the task itself.
function reach(rows, now) {
  const own = rows.filter((row) => row.role !== "dependency");
  const times = own.flatMap((row) => [Date.parse(row.createdAt), ...row.spans.map((part) => part.end)]);
  const from = Math.min(now, ...times);
  return { from, until: Math.max(from + 1, ...times) };
}

function line(row, range, here) {
  const x = (at) => Math.min(WIDTH, Math.max(0, ((at - range.from) / (range.until - range.from)) * WIDTH));
  const ran = row.spans.filter((part) => part.kind === "run").reduce((sum, part) => sum + part.end - part.start, 0);
  return h("div.line-of", { key: row.taskId, class: row.role === "self" ? "self" : "", "data-row": true },
    h("span.name", null, row.taskId === here ? h("b", null, cut(row.title, 40))
      : taskLink(row.taskId, cut(row.title, 40)), row.role !== "member" && row.role !== "self"
      && h("small", null, row.role)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      row.spans.map((part) => bar(part, x)), row.marks.map((one) => mark(one, x))),
    h("span.ran", { title: "Time that its runs took" }, ran ? span(ran) : "–"));
}

function bar(part, x) {
  const [left, right] = [x(part.start), x(part.end)];
  const width = Math.max(LEAST, right - left);
  const thin = part.kind === "run" || part.kind === "parked" ? 0 : 6;
  return svg("rect", { class: tone(part), x: Math.min(left, WIDTH - width).toFixed(1), width: width.toFixed(1),
    y: thin, height: HEIGHT - 2 * thin }, svg("title", null, said(part)));
}

function tone(part) {
  if (part.kind === "run") return part.endAt ? OUTCOMES[part.outcome] ?? "running" : "running";
  if (part.kind === "parked") return "parked";
  return part.kind === "suspended" || part.reason === "approval" ? "waiting" : "queued";
}

function mark(one, x) {
  const at = x(Date.parse(one.at)).toFixed(1);
  return svg("g.mark", { class: `m-${one.kind.split(" ")[0]}` }, svg("title", null, markText(one)),
    svg("line", { x1: at, x2: at, y1: 0, y2: HEIGHT }));
}

const markText = (one) => `${one.kind}${one.name ? ` ${one.name}` : ""} at ${clock(Date.parse(one.at))}`;

const said = (part) => `${what(part)}: ${span(part.end - part.start)}, from ${clock(part.start)}${
  part.error ? ` (${cut(part.error, 200)})` : ""}`;

function what(part) {
  if (part.kind === "run") {
    return `attempt ${part.attempt ?? ""} ${part.outcome ?? (part.endAt ? "ended" : "running")}`
      + `${part.worker ? ` on ${part.worker}` : ""}`;
  }
  if (part.kind === "suspended") return `suspended${part.reason ? `: ${part.reason}` : ""}`;
  return part.kind === "parked" ? "parked" : FOR[part.reason] ?? "waits";
}

function axis({ from, until }) {
  const parts = [0, 0.25, 0.5, 0.75, 1];
  return h("div.scale", { "aria-hidden": "true" }, h("div.axis", null, parts.map((part) =>
    h("span", { title: exact(from + part * (until - from)) },
      part ? `+${span(part * (until - from))}` : clock(from)))));
}

function asTable(rows) {
  const facts = rows.flatMap((row) => [
    ...row.spans.map((part) => ({ row, at: part.start, text: what(part), ms: part.end - part.start, error: part.error })),
    ...row.marks.map((one) => ({ row, at: Date.parse(one.at), text: `${one.kind} ${one.name ?? ""}` })),
  ]).slice(0, TABLE_MAX);
  return table([
    { name: "Task", cell: ({ row }) => taskLink(row.taskId, cut(row.title, 40)) },
    { name: "State", cell: ({ row }) => badge(row.state) },
    { name: "What", cell: ({ text, error }) => [text, error && h("span.error", null, ` ${cut(error, 120)}`)] },
    { name: "From", class: "narrow", cell: ({ at }) => time(at) },
    { name: "For", class: "right", cell: ({ ms }) => (ms === undefined ? "–" : span(ms)) },
  ], facts, { key: ({ row, at, text }) => `${row.taskId} ${at} ${text}`, label: "Timeline as a table" });
}
