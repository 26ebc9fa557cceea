// Batches: the progress and the tasks of each.

import { h, morph } from "../dom.js";
import { enc, get, post } from "../api.js";
import { badge, batchLink, cut, LABELS, number, plural, shortId, span, taskLink, time, title } from "../format.js";
import { graph, parts } from "../charts.js";
import { gantt } from "../gantt.js";
import { attempt, button, card, confirmed, curl, empty, head, loading, me, Pager, table } from "../pieces.js";
import { onePage } from "../lists.js";
import { watch } from "../live.js";

const PAGE = 30;
const ENDED = ["done", "failed", "cancelled", "rejected"];
const TASKS_SHOWN = 100;
const GRAPH_MAX = 60;
const COUNT_MS = 5000; // between two counts of an open batch

export function show(root) {
  const pager = new Pager();
  const known = new Map();
  let found = null;
  const turn = () => watcher.now();
  const draw = () => morph(root, h("div", { class: root.className }, head("Batches"),
    found ? list(found.batches) : loading(), found && pager.controls(found.nextCursor, turn)));
  const watcher = watch(async () => {
    const page = await get("/batches", { limit: PAGE, cursor: pager.cursor });
    await Promise.all(page.batches.map((batch) => countStates(batch, known)));
    found = page;
    draw();
  });
  draw();
  return watcher.end;
}

function list(batches) {
  if (!batches.length) {
    const tasks = [{ key: "a", handler: "echo" }, { handler: "echo", dependsOn: ["#a"] }];
    return h("section.card", null, empty("No batches yet",
      "A batch is a group of tasks submitted together. They may depend on each other:",
      curl("-X POST", "/tasks/batch", { agentId: me(), parallelism: 2, tasks })));
  }
  return h("section.card", null, table([
    { name: "Batch", cell: (one) => batchLink(one.batchId) },
    { name: "Agent", cell: (one) => one.agentId },
    { name: "State", cell: (one) => (one.byState.parked && one.byState.queued === 0 ? badge("parked", "stuck")
      : badge(one.state)) },
    { name: "Progress", cell: (one) => progress(one) },
    { name: "At once", class: "right", cell: (one) => one.parallelism ?? "–" },
    { name: "Created", class: "right", cell: (one) => time(one.createdAt) },
  ], batches, { key: (one) => one.batchId, label: "Batches" }));
}

// The list has only the number of open tasks; fetch the other states when that number changes.
async function countStates(batch, known) {
  const last = known.get(batch.batchId);
  const is = last?.open === batch.open && (!batch.open || Date.now() < last.againAt);
  const fresh = is ? last : await get(`/batches/${enc(batch.batchId)}`).catch(() => batch);
  if (!is) fresh.againAt = Date.now() + COUNT_MS;
  known.set(batch.batchId, fresh);
  const counted = Object.entries(fresh.byState ?? {}).filter(([state]) => ENDED.includes(state) || state === "parked");
  batch.byState = { ...Object.fromEntries(counted), queued: Math.max(0, batch.open - (fresh.byState?.parked ?? 0)) };
}

function progress(batch) {
  const { total, open, byState } = batch;
  const wrong = [...ENDED, "parked"].filter((state) => state !== "done" && byState[state])
    .map((state) => `, ${number(byState[state])} ${LABELS[state]}`);
  const label = `${number(total - open)} of ${number(total)} ended${wrong.join("")}`;
  return h("div.progress", null, parts(byState, total, label), h("small", null, label));
}

export const showOne = (root, { id }) => onePage(root, { title: "Batch", all: ["#/batches", "All batches"] }, async () => {
  const [batch, tasks, chart] = await Promise.all([get(`/batches/${enc(id)}`),
    get("/tasks", { batchId: id, limit: TASKS_SHOWN, brief: true }),
    get(`/batches/${enc(id)}/timeline`, { limit: TASKS_SHOWN })]);
  return { batch, tasks: tasks.tasks, chart };
}, page);

function page({ batch, tasks, chart }, again) {
  const count = plural(batch.open, "task");
  const question = {
    title: `Cancel ${count} of this batch?`, text: "Finished tasks do not change.",
    confirm: `Cancel ${count}`, danger: true,
  };
  const stop = () => confirmed(question, () => post(`/batches/${enc(batch.batchId)}/cancel`),
    (answer) => `${plural(answer.cancelled, "task")} cancelled`).then(again);
  const { failed = 0, cancelled = 0, parked = 0 } = batch.byState ?? {};
  const queueAgain = (verb, text, count, props) => count > 0 && button(`${text} ${number(count)}`, () =>
    attempt(() => post(`/tasks/${verb}`, { batchId: batch.batchId }),
      (done) => `${plural(done.changed, "task")} queued again`).then(again), { ...props, needs: `POST /tasks/${verb}` });
  const reset = queueAgain("reset", "Reset parked:", parked, { class: "primary" });
  const retry = queueAgain("retry", "Retry failed:", failed + cancelled);
  const cancel = batch.open > 0 && button("Cancel the rest…", stop,
    { class: "danger-text", needs: "POST /batches/{id}/cancel" });
  return [
    h("p.crumbs", null, h("a", { href: "#/batches" }, "Batches"), " / ", h("span.mono", null, batch.batchId)),
    head(`Batch ${shortId(batch.batchId)}`, reset, retry, cancel),
    h("section.card", null, progress(batch), legend(batch.byState)),
    h("div.columns.wide-left", null,
      h("div.stack", null,
        card("Runs and waits", chart.more && h("span.muted", null, `the first ${TASKS_SHOWN} tasks`), gantt(chart)),
        dependencies(tasks),
        card("Tasks", h("a", { href: `#/tasks?batchId=${enc(batch.batchId)}` }, "Open as a list"),
          h("ul.plain", null, tasks.map(line)))),
      card("Facts", null, h("dl.facts", null, facts(batch)))),
  ];
}

const legend = (counts) => h("p.legend", null, Object.entries(counts).map(([state, count]) =>
  h("span", { class: `s-${state}` }, h("i"), `${LABELS[state] ?? state} ${number(count)}`)));

const line = (task) => h("li", { key: task.taskId, "data-row": true },
  badge(task.state, task.gate), taskLink(task.taskId, cut(title(task), 60)),
  h("span.error", null, cut(task.error ?? "", 80)),
  h("span.muted", null, task.latencyMs === undefined ? "" : span(task.latencyMs)));

function dependencies(tasks) {
  if (!tasks.some((task) => task.dependsOn?.length)) return null;
  const oldest = [...tasks].reverse().slice(0, GRAPH_MAX);
  const nodes = new Map(oldest.map((task) =>
    [task.taskId, { state: task.state, title: title(task), parents: task.dependsOn ?? [] }]));
  return card("Dependencies", null, graph(nodes, null));
}

function facts(batch) {
  const rows = [
    ["agent", batch.agentId], ["state", batch.state], ["tasks", number(batch.total)], ["open", number(batch.open)],
    ["at once", batch.parallelism ?? "as the lanes allow"], ["created", time(batch.createdAt)],
  ];
  if (batch.completedAt) rows.push(["completed", time(batch.completedAt)]);
  if (batch.callbackUrl) rows.push(["callback", batch.callbackUrl]);
  return rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]);
}
