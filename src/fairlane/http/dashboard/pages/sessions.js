// Sessions: running and waiting tasks, context usage; stop one run or all.

import { h, morph } from "../dom.js";
import { enc, get, post } from "../api.js";
import { badge, number, percent, plural, sessionLink, taskLink, time, words } from "../format.js";
import { button, card, confirmed, curl, empty, head, loading, problem, table } from "../pieces.js";
import { listPage } from "../lists.js";
import { watch } from "../live.js";

export const show = (root) => listPage(root, { name: "sessions", title: "Sessions", rows: list });

function list(sessions, again) {
  if (!sessions.length) {
    return h("section.card", null, empty("No session is active",
      "Tasks with the same session key run in order, one at a time. Send a message to start one:",
      curl("-X POST", "/sessions/chat:7/messages", { message: "Hello", handler: "echo" })));
  }
  return h("section.card", null, table([
    { name: "Session", cell: (one) => sessionLink(one.sessionKey) },
    { name: "Running", class: "right", cell: (one) => number(one.running) },
    { name: "Waiting", class: "right", cell: (one) => number(one.waiting) },
    { name: "Merging", class: "right", cell: (one) => number(one.debouncing) },
    { name: "At once", class: "right", cell: (one) => [number(one.effectiveConcurrency),
      one.throttled && " (throttled)"] },
    { name: "Context", cell: (one) => (one.usage ? [meter(one), percent(part(one))] : "–") },
    { name: "", class: "right", cell: (one) => h("div.actions", null, stops(one.sessionKey, one.running, one.waiting,
      again)) },
  ], sessions, { key: (one) => one.sessionKey, label: "Sessions" }));
}

function stops(key, running, waiting, again) {
  const said = (answer) => `${plural(answer.stopped.length, "run")} stopped, ${answer.drained.length} dropped`;
  const act = (verb, question) => confirmed({ ...question, danger: true },
    () => post(`/sessions/${enc(key)}/${verb}`), said).then(again);
  return [
    button("Stop", () => act("stop", { title: `Stop the oldest run of ${key}?`, text: "The other tasks continue.",
      confirm: "Stop it" }),
      { class: "small", disabled: !running, "aria-label": `Stop the oldest run of ${key}`,
        needs: "POST /sessions/{key}/stop" }),
    button("Stop all", () => act("stopall", {
      title: `Stop all of ${key}?`, confirm: "Stop all",
      text: `${plural(running, "run")} will be cancelled and ${plural(waiting, "waiting task")} dropped.`,
    }), { class: "small danger-text", disabled: !running && !waiting, "aria-label": `Stop all of ${key}`,
      needs: "POST /sessions/{key}/stopall" }),
  ];
}

// --- one session ------------------------------------------------------------------------------

export function showOne(root, { id }) {
  const watcher = watch(async () => {
    try {
      const session = await get(`/sessions/${enc(id)}`);
      morph(root, page(root, session, watcher.now));
    } catch (error) {
      if (error.status !== 404) throw error;
      morph(root, h("div", { class: root.className }, crumbs(id), head(id), gone(id, error)));
    }
  });
  morph(root, h("div", { class: root.className }, crumbs(id), head(id), loading()));
  return watcher.end;
}

const crumbs = (id) => h("p.crumbs", null, h("a", { href: "#/sessions" }, "Sessions"), " / ", h("span.mono", null, id));

function gone(id, error) {
  return [problem(error), h("section.card", null, empty("The session is idle and no longer stored",
    "The server stores no session without running or waiting tasks. Send a message to start it again:",
    curl("-X POST", `/sessions/${enc(id)}/messages`, { message: "Hello", handler: "echo" })),
  h("p", null, h("a", { href: `#/tasks?sessionKey=${enc(id)}` }, "Its past tasks")))];
}

function page(root, session, again) {
  const key = session.sessionKey;
  return h("div", { class: root.className }, crumbs(key),
    head(key, stops(key, session.running.length, session.waiting.length, again)),
    h("div.columns.wide-left", null,
      h("div.stack", null,
        card(`Running (${session.running.length})`, null, tasks(session.running, "No task is running.")),
        card(`Waiting (${session.waiting.length})`, h("a", { href: `#/tasks?sessionKey=${enc(key)}` },
          "All of its tasks"),
          tasks(session.waiting, "No task is waiting."))),
      card("Facts", null, usage(session), h("dl.facts", null, facts(session)))));
}

function tasks(list, none) {
  if (!list.length) return h("p.muted", null, none);
  return h("ul.plain", null, list.map((task) => h("li", { key: task.taskId, "data-row": true },
    task.position && h("span.muted", null, `${task.position}.`), badge(task.state, task.gate), taskLink(task.taskId),
    h("span.muted", null, task.lane), task.startedAt && time(task.startedAt))));
}

function usage(session) {
  if (!session.usage) return null;
  const { tokens, contextWindow } = session.usage;
  return h("p.usage", null, meter(session),
    `${percent(part(session))} of the context: ${number(tokens)} of ${number(contextWindow)} tokens`);
}

const part = ({ usage: { tokens, contextWindow } }) => (contextWindow ? tokens / contextWindow : 0);

const meter = (session) => h("span.meter", { class: session.throttled ? "hot" : "", "aria-hidden": "true" },
  h("i", { style: { width: `${Math.min(100, part(session) * 100)}%` } }));

function facts(session) {
  const rows = [["may run", session.why], ["generation", session.generation],
    ...Object.entries(session.settings).map(([name, value]) => [words(name), value]),
      ["waiting for more messages", session.debouncing], ["scheduled for later", session.later]];
  if (session.cutoff) rows.push(["stopped before", time(session.cutoff)]);
  return rows.map(([name, value]) =>
    [h("dt", null, name), h("dd", null, value instanceof Node ? value : String(value))]);
}
