// Handlers: runs, failures, waits and durations of the last hours, and the time that agents used.

import { h, morph } from "../dom.js";
import { enc, get, query as asQuery } from "../api.js";
import { dated, number, percent, span } from "../format.js";
import { byHour } from "../charts.js";
import { card, empty, head, loading, table } from "../pieces.js";
import { segments } from "../lists.js";
import { watch } from "../live.js";

const WINDOWS = [["1h", "Last hour"], ["24h", "24 hours"], ["7d", "7 days"]];

export function show(root, { query }) {
  const seen = { window: query.window ?? "24h", agentId: query.agentId };
  const choose = (window) => {
    seen.window = window;
    history.replaceState(history.state, "", `#/handlers${asQuery({ window, agentId: seen.agentId })}`);
    draw();
    watcher.now();
  };
  const draw = () => morph(root, h("div", { class: root.className },
    head(seen.agentId ? `Handlers of ${seen.agentId}` : "Handlers",
      seen.agentId && h("a.button", { href: "#/handlers" }, "All agents"),
      segments("window", WINDOWS, seen.window, choose)),
    seen.found ? page(seen.found, seen.agentId) : loading()));
  const watcher = watch(async () => {
    const { window, agentId } = seen;
    const found = await get("/handlers", { window, agentId });
    if (window === seen.window) seen.found = found;
    draw();
  }, { lazyMs: 5000, onlyLazy: true });
  draw();
  return watcher.end;
}

function page(found, agentId) {
  if (!found.handlers.length) {
    return h("section.card", null, empty("Nothing has run in this time",
      "Runs, failures and durations of handlers appear here, and stay over restarts."));
  }
  return [h("p.muted", null, `Since ${dated(Date.parse(found.since))}: full hours and the current one.`),
    card("Handlers", null, handlers(found)), !agentId && card("Agents", null, agents(found))];
}

const spans = (middle, high) => (middle === null ? "–" : `${span(middle)} / ${span(high)}`);

// The columns that handlers and agents share.
const TOTALS = [
  { name: "Started", class: "right", cell: (one) => number(one.starts) },
  { name: "Done", class: "right", cell: (one) => number(one.done) },
  { name: "Failures", class: "right", cell: failures },
  { name: "Wait 50 / 95 %", class: "right", cell: (one) => spans(one.waitP50Ms, one.waitP95Ms) },
  { name: "Run 50 / 95 %", class: "right", cell: (one) => spans(one.runP50Ms, one.runP95Ms) },
];

function failures(one) {
  if (!one.failures) return "0";
  const text = `${number(one.failed)} failed, ${number(one.parked)} parked, ${number(one.retried)} attempts repeated`;
  return h("span.error", { title: text }, `${number(one.failures)} (${percent(one.failureRate)})`);
}

const handlers = (found) => table([
  { name: "Handler", cell: (one) => h("a", { href: `#/tasks?${one.kind === "handler" ? `handler=${enc(one.name)}`
    : `kind=${enc(one.kind)}`}` }, one.name) },
  ...TOTALS,
  { name: "Time used", class: "right", cell: (one) => span(one.ranMs) },
  ...(found.window === "1h" ? [] : [{ name: "By hour",
    cell: (one) => byHour(one.endedByHour, one.failuresByHour, Date.parse(found.since)) }]),
  { name: "", class: "right", cell: (one) => one.failed + one.parked > 0 && one.kind === "handler"
    && h("div.actions", null, h("a", { href: `#/failures?handler=${enc(one.name)}` }, "Errors"),
      h("a", { href: `#/tasks?handler=${enc(one.name)}&state=failed,parked` }, "Failed tasks")) },
], found.handlers, { key: (one) => `${one.kind} ${one.name}`, label: "Handlers" });

function agents(found) {
  const all = found.agents.reduce((sum, one) => sum + one.ranMs, 0) || 1;
  return table([
    { name: "Agent", cell: (one) => (one.agentId === null ? "all others"
      : h("a", { href: `#/handlers${asQuery({ agentId: one.agentId, window: found.window })}` }, one.agentId)) },
    ...TOTALS,
    { name: "Time used", class: "right", cell: (one) => span(one.ranMs) },
    { name: "Share", class: "right", cell: (one) => percent(one.ranMs / all) },
  ], found.agents, { key: (one) => one.agentId ?? "", label: "Agents" });
}
