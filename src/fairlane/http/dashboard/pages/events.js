// The newest events, live. Events that happened while the page was hidden are skipped.

import { h, morph } from "../dom.js";
import { get, query as asQuery } from "../api.js";
import { clock, cut, exact, taskLink, batchLink } from "../format.js";
import { button, curl, empty, head } from "../pieces.js";
import { watch, lastEvent } from "../live.js";

const SHOWN_MAX = 200;
const REACH = 400; // number of past events to show at first, and to catch up on
const REACH_FILTERED = 5000;
const TYPES = ["task.created", "task.started", "task.completed", "task.failed", "task.retrying", "task.parked",
  "task.cancelled",
  "task.rejected", "task.progress", "task.step", "task.signal", "task.suspended", "task.released", "task.requeued", "task.unblocked", "batch.completed",
    "cron.fired", "approval.opened", "approval.decided", "approval.expired", "resource.closed", "resource.opened"];
const TONES = { created: "queued", started: "running", completed: "done", failed: "failed", retrying: "parked",
  parked: "parked", cancelled: "cancelled", rejected: "rejected", fired: "waiting_dependency" };

export function show(root, { query }) {
  const seen = { events: [], after: null, paused: false, type: query.type ?? "", agentId: query.agentId ?? "" };
  const restart = () => {
    Object.assign(seen, { events: [], after: null, loaded: false });
    history.replaceState(history.state, "", `#/events${asQuery({ type: seen.type, agentId: seen.agentId })}`);
    watcher.now();
  };
  const draw = () => morph(root, page(root, seen, draw, restart));
  const watcher = watch(async () => {
    if (seen.paused || lastEvent === null) return;
    const { type, agentId } = seen;
    const after = Math.max(seen.after ?? 0, lastEvent - (type || agentId ? REACH_FILTERED : REACH), 0);
    const found = await get("/events", { after, limit: SHOWN_MAX * 2, type, agentId });
    if (type !== seen.type || agentId !== seen.agentId) return;
    seen.after = found.nextAfter;
    seen.loaded = true;
    seen.events = [...found.events.reverse(), ...seen.events].slice(0, SHOWN_MAX);
    draw();
  }, { lazyMs: 10000 });
  draw();
  return watcher.end;
}

function page(root, seen, draw, restart) {
  const types = h("select", { "aria-label": "Type", onchange: (event) => { seen.type = event.currentTarget.value;
    restart(); } },
    h("option", { value: "" }, "All types"),
      TYPES.map((type) => h("option", { value: type, selected: type === seen.type }, type)));
  const agent = h("input", {
    type: "search", placeholder: "Agent", "aria-label": "Agent", value: seen.agentId,
    onchange: (event) => { seen.agentId = event.currentTarget.value.trim(); restart(); },
  });
  const pause = button(seen.paused ? "Resume" : "Pause",
    () => { seen.paused = !seen.paused; draw(); if (!seen.paused) restart(); },
    { "aria-pressed": String(seen.paused) });
  return h("div", { class: root.className }, head("Events", agent, types, pause),
    h("section.card", null, seen.events.length ? h("ol.tail", null, seen.events.map(line)) : nothing(seen)));
}

function nothing(seen) {
  if (seen.type || seen.agentId) return empty("No matching events", "Matching events appear here as they happen.");
  return empty("Nothing has happened yet", "Every change of a task appears here and in the event stream:",
    curl("-N", "/events"));
}

function line(event) {
  const at = Date.parse(event.timestamp);
  const [, verb] = event.type.split(".");
  const about = [event.error, event.progress !== undefined && JSON.stringify(event.progress),
    event.worker && event.type === "task.started" && `on ${event.worker}`].filter(Boolean).join(" ");
  return h("li", { key: event.id, class: `s-${TONES[verb] ?? event.state ?? "queued"}` },
    h("span.muted", null, `#${event.id}`), h("time", { title: exact(at) }, clock(at)), h("span.type", null, event.type),
    h("span", null, event.taskId ? taskLink(event.taskId) : event.batchId ? batchLink(event.batchId) : ""),
    h("span", null, h("span.muted", null, [event.agentId, event.lane].filter(Boolean).join(" · ")), " ",
      h("span", { class: event.error ? "error" : "muted" }, cut(about, 200))));
}
