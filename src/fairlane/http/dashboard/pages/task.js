// One task: why it waits, its history, its request and its result.

import { h, fill, morph } from "../dom.js";
import { get, post, enc } from "../api.js";
import { badge, batchLink, cut, exact, LABELS, percent, pretty, relative, sessionLink, span, taskLink, time, title,
  words } from "../format.js";
import { graph } from "../charts.js";
import { gantt } from "../gantt.js";
import { attempt, button, card, confirmed, head, partDone, problem, progressBar, table } from "../pieces.js";
import { watch } from "../live.js";
import { stepTable } from "./steps.js";

const GRAPH_MAX = 40;
const GRAPH_MS = 5000; // between two fetches of the graph of an open task
const ENDED = ["done", "failed", "cancelled", "rejected"];
const OUTPUT_SHOWN = 200000;

export function show(root, { id }) {
  const seen = { id };
  const output = h("pre.output", { tabindex: "0", keep: "output", "aria-label": "Output", role: "log" });
  const follower = follow(id, output, () => draw());
  let ended = false;
  const draw = () => { if (!ended && (seen.task || seen.error)) morph(root, page(root, seen, output, watcher.now)); };
  const watcher = watch(async () => {
    try {
      const last = seen.task?.state;
      Object.assign(seen, await facts(id));
      if (last !== seen.task.state || Date.now() > seen.drawAgainAt) {
        seen.nodes = await around(seen.task);
        seen.drawAgainAt = ENDED.includes(last) ? Infinity : Date.now() + GRAPH_MS;
      }
    } catch (error) {
      if (error.status !== 404) throw error;
      seen.error = error;
    }
    draw();
  }, { lazyMs: 3000 });
  return () => { ended = true; watcher.end(); follower.close(); };
}

async function facts(id) {
  const [task, why, events, deliveries, chart] = await Promise.all([
    get(`/tasks/${enc(id)}`), get(`/tasks/${enc(id)}/why`), get(`/tasks/${enc(id)}/events`),
    get("/deliveries", { taskId: id }), get(`/tasks/${enc(id)}/timeline`),
  ]);
  return { task, why, events: events.events, deliveries: deliveries.deliveries, chart };
}

// The tasks that it depends on, over some levels, and the tasks that depend on it.
async function around(task) {
  const nodes = new Map();
  const add = (one) => nodes.set(one.taskId, { state: one.state, title: title(one), parents: one.dependsOn ?? [] });
  const children = await get("/tasks", { dependsOn: task.taskId, brief: true, limit: 20 });
  if (task.dependsOn?.length || children.count) {
    const { batchId } = task;
    const siblings = batchId ? (await get("/tasks", { batchId, brief: true, limit: 100 })).tasks : [];
    const known = new Map(siblings.map((one) => [one.taskId, one]));
    add(task);
    for (let level = task.dependsOn ?? []; level.length && nodes.size < GRAPH_MAX;) {
      const wanted = [...new Set(level)].filter((id) => !nodes.has(id)).slice(0, GRAPH_MAX - nodes.size);
      const found = await Promise.all(wanted.map((id) => known.get(id) ?? parent(id)));
      found.forEach(add);
      level = found.flatMap((one) => one.dependsOn ?? []);
    }
    children.tasks.forEach(add);
  }
  return nodes;
}

// The parent may not exist, may have been pruned, or may belong to another agent.
const parent = (id) => get(`/tasks/${enc(id)}`).catch(() => ({ taskId: id, state: "unknown", kind: "not known" }));

// --- output as it arrives ---------------------------------------------------------------------

function follow(id, output, changed) {
  const source = new EventSource(`/tasks/${enc(id)}/output?follow=1`);
  let attemptNow = 0, size = 0;
  source.addEventListener("open", () => { attemptNow = 0; size = 0; fill(output); });
  source.addEventListener("output", (event) => {
    const { attempt: number, text } = JSON.parse(event.data);
    if (attemptNow && number !== attemptNow) output.append(`\n— attempt ${number} —\n`);
    attemptNow = number;
    size += text.length;
    if (size > OUTPUT_SHOWN) {
      if (size - text.length <= OUTPUT_SHOWN) output.append(`\n… the rest is at /tasks/${id}/output`);
      return;
    }
    const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
    output.append(text);
    if (atEnd) output.scrollTop = output.scrollHeight;
    changed();
  });
  source.addEventListener("end", () => source.close());
  return source;
}

// --- the page ---------------------------------------------------------------------------------

function page(root, seen, output, again) {
  if (!seen.task) {
    return h("div", { class: root.className }, head("Task"), problem(seen.error),
      h("p", null, h("a", { href: "#/tasks" }, "All tasks")));
  }
  const { task, nodes } = seen;
  return h("div", { class: root.className },
    h("p.crumbs", null, h("a", { href: "#/tasks" }, "Tasks"), " / ", h("span.mono", null, task.taskId)),
    head(title(task), actions(task, again)),
    whyLine(seen),
    h("div.columns.wide-left", null,
      h("div.stack", null,
        nodes?.size > 1 && card("Dependencies", null, graph(nodes, task.taskId)),
        card("Runs and waits", null, gantt(seen.chart, task.taskId)),
        card("Timeline", null, timeline(seen)),
        output.textContent && card("Output", ENDED.includes(task.state) ? null : h("span.muted", null, "live"),
          output),
        task.steps?.length > 0 && card("Steps", null, stepTable(task, again)),
        task.result !== undefined && card("Result", null, json(task.result, "Result")),
        payload(task)),
      card("Facts", null, factList(task))));
}

function actions(task, again) {
  const act = (verb, said) => attempt(() => post(`/tasks/${enc(task.taskId)}/${verb}`), said).then(again);
  const tools = [];
  if (task.state === "parked") tools.push(button("Reset", () => act("reset", "Queued again"),
    { class: "primary", needs: "POST /tasks/{id}/reset" }));
  if (task.state === "failed" || task.state === "cancelled") tools.push(button("Retry",
    () => act("retry", "Queued again"), { class: "primary", needs: "POST /tasks/{id}/retry" }));
  if (!ENDED.includes(task.state)) {
    tools.push(button("Cancel…", () =>
      confirmed({ title: "Cancel this task?", text: title(task), confirm: "Cancel the task", danger: true },
      () => post(`/tasks/${enc(task.taskId)}/cancel`), "Cancelled").then(again),
      { class: "danger-text", needs: "POST /tasks/{id}/cancel" }));
  }
  tools.push(h("a.button", { href: `#/submit?from=${enc(task.taskId)}` }, "Run again with changes…"));
  return tools;
}

// The server's explanation, with the things it names as links.
function whyLine({ task, why }) {
  const tone = task.state === "parked" || task.state === "failed" ? "bad" : "";
  return h("div.why", { class: `s-${task.state} ${tone}` }, badge(task.state), h("p", null, linked(reasonOf(task, why), task)),
    progressBar(task.progress),
    h("div.facts", null,
      why.position && fact("place in line", String(why.position)),
      why.ceiling && fact(`${why.ceiling.scope} ceiling`, `${why.ceiling.inUse} of ${why.ceiling.limit}`),
      why.gate && fact("gate", why.gate),
      why.estimateMs != null && fact("starts in about", span(why.estimateMs)),
      why.ready && why.waitingFor.length > 0 && h("details", null,
        h("summary", null, `tasks in the slots (${why.waitingFor.length})`),
        h("p.links", null, why.waitingFor.map((id) => [taskLink(id), " "])))));
}

// The badge says how it ended, so the text is the error, or how long it took.
function reasonOf(task, why) {
  if (!ENDED.includes(task.state)) return why.reason;
  if (task.error) return task.error;
  return task.latencyMs === undefined ? "" : `after ${span(task.latencyMs)}`;
}

const fact = (name, value) => h("span", null, h("small", null, name), h("b", null, value));

function linked(text, task) {
  const names = { [task.sessionKey ?? ""]: `#/sessions/${enc(task.sessionKey ?? "")}`,
    [task.lane]: `#/tasks?lane=${enc(task.lane)}`, [task.agentId]: `#/tasks?agentId=${enc(task.agentId)}` };
  return text.split(/(\s+|[,;()](?=\s|$))/).map((word) => {
    if (/^tsk_[0-9a-f]{28}$/.test(word)) return taskLink(word);
    if (/^bat_[0-9a-f]{28}$/.test(word)) return batchLink(word);
    if (/^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(word)) return time(word);
    return word && names[word] ? h("a", { href: names[word] }, word) : word;
  });
}

const WORDS = {
  "task.created": "submitted", "task.unblocked": "its dependencies are done", "task.started": "started",
    "task.completed": "done", "task.failed": "failed",
  "task.cancelled": "cancelled", "task.rejected": "refused", "task.retrying": "failed, will be retried",
    "task.parked": "parked", "task.progress": "progress", "task.step": "recorded a step", "task.signal": "got a signal",
  "task.released": "released", "task.suspended": "suspended, without a slot", "task.requeued": "queued again", "cron.fired": "submitted by a cron job",
};

const STARTS = ["task.started", "task.completed", "task.failed", "task.retrying", "task.parked"]; // end an attempt, or start it

const GATES = {
  dependency: "waits for its dependencies", session: "waits for its turn in the session",
  batch: "waits for its turn in the batch", paused: "waits for its lane, which is paused",
};

function timeline({ task, why, events, deliveries }) {
  const steps = events.map((event) => ({ at: Date.parse(event.timestamp), event }));
  for (const one of deliveries) steps.push({ at: Date.parse(one.settledAt ?? one.createdAt), delivery: one });
  if (task.nextEligibleAt && task.state === "queued") steps.push({ at: Date.parse(task.nextEligibleAt),
    text: "may start", tone: "queued", future: true });
  steps.sort((one, other) => one.at - other.at);
  const began = steps[0]?.at ?? 0;
  for (const step of steps) step.traceback = step.event?.error && task.attemptLog?.find(
    (attempt) => attempt.endedAt === step.event.timestamp)?.traceback;
  if (GATES[why.gate]) steps.push({ text: GATES[why.gate], tone: task.state });
  return h("ol.timeline", null, steps.map((step) => entry(step, began)));
}

function entry(step, began) {
  const { event, delivery } = step;
  if (!step.at) return h("li.future", { class: `s-${step.tone}` }, h("b", null, step.text));
  const passed = step.at - began;
  const when = h("time", { datetime: new Date(step.at).toISOString(), title: exact(step.at) }, relative(step.at));
  const since = passed > 0 && !step.future && h("small.muted", { title: "since the first entry" }, `+${span(passed)}`);
  if (delivery) {
    return h("li", { class: `s-${delivery.state}` },
      h("b", null, `webhook ${LABELS[delivery.state] ?? delivery.state}`), when, since,
      h("p", null, `${delivery.event} to ${cut(delivery.url ?? "", 80)}, ${delivery.attempts} tries`,
        delivery.lastError && h("span.error", null, ` ${cut(delivery.lastError, 160)}`)));
  }
  if (!event) return h("li.future", { class: `s-${step.tone}` }, h("b", null, step.text), when);
  const details = [event.step ?? event.signal, event.attempt && STARTS.includes(event.type) && `attempt ${event.attempt}`,
    event.worker && `on ${event.worker}`].filter(Boolean).join(" ");
  return h("li", { class: `s-${event.state ?? "queued"}` }, h("b", null, WORDS[event.type] ?? event.type), when, since,
    (details || event.error || event.progress !== undefined) && h("p", null, details,
      event.error && h("span.error", null, `${details ? ": " : ""}${cut(event.error, 400)}`),
      event.progress !== undefined && (partDone(event.progress) !== null
        ? [progressBar(event.progress), ` ${percent(partDone(event.progress))}`]
        : h("code", null, cut(JSON.stringify(event.progress), 300)))),
    step.traceback && h("details.traceback", null, h("summary", null, "Traceback"), h("pre", null, step.traceback)));
}

const steps = (all) => table([
  { name: "No", class: "narrow", cell: (step) => step.number },
  { name: "Step", cell: (step) => step.name },
  { name: "Value", cell: (step) => h("code", null, cut(JSON.stringify(step.value), 200)) },
  { name: "Recorded", class: "right", cell: (step) => time(step.at) },
], all, { key: (step) => step.number, label: "Steps" });

const FACTS = ["taskId", "kind", "agentId", "lane", "sessionKey", "batchId", "priority", "attempts", "gate",
  "createdAt", "startedAt", "completedAt", "deadline", "nextEligibleAt", "latencyMs", "worker", "leaseExpiresAt",
  "timeoutMs", "callbackUrl", "dependsOn"];

const WORDS_OF = { taskId: "id", agentId: "agent", sessionKey: "session", batchId: "batch", latencyMs: "took",
  timeoutMs: "timeout", callbackUrl: "webhook" };

function factList(task) {
  const say = {
    taskId: (id) => h("span.mono", null, id),
    agentId: (agent) => h("a", { href: `#/tasks?agentId=${enc(agent)}` }, agent),
    lane: (lane) => h("a", { href: `#/tasks?lane=${enc(lane)}` }, lane),
    sessionKey: sessionLink,
    batchId: batchLink,
    attempts: (count) => `${count} of ${task.maxAttempts}`,
    latencyMs: span,
    timeoutMs: span,
    dependsOn: (ids) => ids.slice(0, 20).map((id) => [taskLink(id), " "]),
  };
  return h("dl.facts", null, FACTS.filter((name) => task[name] !== undefined).map((name) => {
    const value = task[name];
    const text = say[name] ? say[name](value) : /At$|^deadline$/.test(name) ? time(value) : String(value);
    return [h("dt", null, WORDS_OF[name] ?? words(name)), h("dd", null, text)];
  }));
}

const ASKED = ["action", "handler", "tabId", "ref", "selector", "params", "metadata", "llmConfig", "retryPolicy"];

function payload(task) {
  const { instruction } = task;
  const rest = Object.fromEntries(ASKED.filter((name) => task[name] !== undefined).map((name) => [name, task[name]]));
  return card("Request", null, instruction && h("p.instruction", null, instruction),
    Object.keys(rest).length > 0 && json(rest, "Request"));
}

const json = (value, label) => h("pre.json", { tabindex: "0", "aria-label": label, role: "region" },
  typeof value === "string" ? value : pretty(value));
