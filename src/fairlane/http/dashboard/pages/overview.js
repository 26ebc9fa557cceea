// The load of the lanes, the agents' shares, throughput and waits, and failed tasks.

import { h, morph } from "../dom.js";
import { about, enc, get, post, refusal } from "../api.js";
import { badge, compact, cut, number, percent, plural, rate, span, taskLink, time, title } from "../format.js";
import { curves, share, slots, trace } from "../charts.js";
import { attempt, button, card, copyable, curl, empty, head, loading, me } from "../pieces.js";
import { editAgent, editLane, limitButton } from "../limits.js";
import { segments } from "../lists.js";
import { watch } from "../live.js";

const AGENTS_SHOWN = 12;
const ITEMS_SHOWN = 5;
const WINDOWS = { "5m": "5 min", "1h": "hour", "24h": "24 h" };

export function show(root) {
  const seen = { window: "5m" };
  const draw = () => { if (seen.lanes) morph(root, page(root, seen, choose)); };
  const watchers = [
    watch(async () => {
      const [lanes, stats] = await Promise.all([get("/lanes"), get("/scheduler/stats")]);
      Object.assign(seen, { lanes: lanes.lanes, stats });
      draw();
      if (!seen.troubled) watchers[2].now();
      else if (troubleCount(seen) !== seen.troubled) watchers[2].soon();
    }, { lazyMs: 2000 }),
    watch(async () => { Object.assign(seen, await history(seen)); draw(); }, { lazyMs: 2000, onlyLazy: true }),
    watch(async () => { Object.assign(seen, await surroundings(seen)); draw(); }, { lazyMs: 5000, onlyLazy: true }),
  ];
  function choose(window) {
    seen.window = window;
    watchers[1].now();
    draw();
  }
  return () => watchers.forEach((watcher) => watcher.end());
}

// A window of long steps changes rarely.
async function history({ window, history: last, lookAgainAt }) {
  if (last?.window === window && Date.now() < lookAgainAt) return {};
  const found = await get("/stats/history", { window, shares: true });
  return { history: found, lookAgainAt: Date.now() + found.stepMs / 5 };
}

async function surroundings(seen) {
  const [nodes, attention, troubles, ready] = await Promise.all([
    refusal("GET /nodes") ? null : get("/nodes"), refusal("GET /attention") ? null : get("/attention"),
    newTroubles(seen), readiness(),
  ]);
  return { nodes: nodes?.nodes ?? null, attention, ready, ...troubles };
}

// Fetched only when their number has changed: finding them among a million tasks is slow.
async function newTroubles(seen) {
  const now = troubleCount(seen);
  if (!now || now === seen.troubled) return {};
  const found = now === "0 0" ? { tasks: [] } : await get("/tasks", { state: "failed,parked", limit: 6, brief: true });
  return { troubles: found.tasks, troubled: now };
}

const troubleCount = ({ stats }) => stats && `${stats.metrics.tasksFailed} ${stats.metrics.tasksParked}`;

async function readiness() {
  try {
    return (await get("/health/ready")).status ?? "ready";
  } catch (error) {
    return error.status === 0 ? "unreachable" : `not ready: ${error.message}`;
  }
}

function page(root, seen, choose) {
  const { metrics } = seen.stats;
  return h("div", { class: root.className },
    head("Overview", h("span.muted", null, `Fairlane ${about.version}`)),
    !metrics.tasksSubmitted && teach(),
    tiles(seen),
    seen.attention && attentionCard(seen.attention),
    h("div.columns.wide-left", null, lanesCard(seen.lanes), fairnessCard(seen)),
    curvesCard(seen, choose),
    h("div.columns", null, troublesCard(seen.troubles), nodesCard(seen)));
}

function teach() {
  const body = { handler: "echo", agentId: me(), params: { hello: "world" } };
  return h("section.card", null, empty("No task has been submitted yet",
    "Submit a task; it appears here without a reload:", curl("-X POST", "/tasks", body),
    h("p", null, "Or watch a whole fleet on a temporary server:"), copyable("fairlane demo")));
}

function tiles({ stats, lanes }) {
  const { queue, metrics } = stats;
  const ceiling = lanes.reduce((sum, lane) => sum + lane.ceiling, 0);
  return h("div.tiles", null,
    tile("Running", queue.totalInflight, "assigned,running", `of ${compact(ceiling)} slots`, "running"),
    tile("Waiting", queue.totalQueued, "queued,waiting_dependency&sort=oldest", `oldest ${oldest(lanes)}`, "queued"),
    tile("Done", metrics.tasksCompleted, "done", `${compact(metrics.tasksSubmitted)} submitted`, "done"),
    tile("Failed", metrics.tasksFailed, "failed", failedShare(metrics), "failed"),
    tile("Parked", metrics.tasksParked, "parked", metrics.tasksParked ? "wait for a reset" : "nothing to reset",
      "parked"),
    tile("Refused", metrics.tasksRejected, "rejected", metrics.tasksRejected ? "queue was full" : "no queue was full",
      "rejected"));
}

function tile(name, count, state, text, tone) {
  return h("a.tile", { href: `#/tasks?state=${state}`, class: count ? `t-${tone}` : "zero", title: number(count) },
    h("span", null, name), h("b", null, compact(count)), h("small", null, text));
}

function oldest(lanes) {
  const waits = lanes.map((lane) => lane.oldestWaitMs);
  return Math.max(0, ...waits) ? span(Math.max(...waits)) : "–";
}

function failedShare(metrics) {
  const ended = metrics.tasksCompleted + metrics.tasksFailed;
  return ended ? `${((metrics.tasksFailed / ended) * 100).toFixed(1)} % of ended tasks` : "none ended yet";
}

// --- what needs attention ---------------------------------------------------------------------

const KINDS = { disabled: "disabled", node: "node gone", noWorker: "no worker", paused: "paused", closed: "closed",
  stuck: "stuck", dependency: "dependency", parked: "parked", cron: "cron", webhook: "webhook", approval: "approval" };

function attentionCard({ items, summary }) {
  if (!items.length) {
    return card("Needs attention", null, h("p.well", null, h("span.health", null, "All is well"),
      h("span.muted", null, "Nothing is stuck, parked, failing or waiting for you.")));
  }
  const [first, rest] = [items.slice(0, ITEMS_SHOWN), items.slice(ITEMS_SHOWN)];
  return card("Needs attention", h("span.muted", null, summary), h("ul.attention", null, first.map(attentionRow)),
    rest.length > 0 && h("details.rest", null, h("summary", null, `${number(rest.length)} more`),
      h("ul.attention", null, rest.map(attentionRow))));
}

// The page that shows what an item is about.
function placeOf({ kind, lane }) {
  const within = lane ? `&lane=${enc(lane)}` : "";
  return { parked: `#/tasks?state=parked${within}`, paused: `#/tasks?state=queued${within}`, noWorker: "#/workers",
    stuck: `#/tasks?state=queued${within}`, dependency: `#/tasks?state=waiting_dependency${within}`, cron: "#/cron",
    webhook: "#/deliveries?state=given_up", approval: "#/approvals", closed: "#/resources", disabled: "#/policy" }[kind];
}

const attentionRow = (item) => h("li", { key: `${item.kind} ${item.command} ${item.text}` },
  h("span.flag", null, KINDS[item.kind] ?? item.kind),
  h("div.about", null, h("p", null, item.text),
    h("p.more", null, placeOf(item) && h("a", { href: placeOf(item) }, "Show"), item.taskIds?.slice(0, 3).map((id) => taskLink(id)), item.since && h("span.muted", null, "since ", time(item.since)))),
  copyable(item.command));

// --- lanes ------------------------------------------------------------------------------------

function lanesCard(lanes) {
  const most = Math.max(1, ...lanes.map((lane) => lane.waiting));
  const order = [...lanes].sort((one, other) => other.active + other.waiting - one.active - one.waiting
    || one.name.localeCompare(other.name));
  return card("Lanes", h("span.legend", null, h("span.running", null, h("i"), "running"),
    h("span.parked", null, h("i"), "running, full"), h("span.queued", null, h("i"), "waiting")),
    h("ul.lanes", null, order.map((lane) => laneRow(lane, most))));
}

function laneRow(lane, most) {
  const quiet = !lane.active && !lane.waiting && !lane.paused;
  return h("li", { key: lane.name, class: quiet ? "quiet" : "" },
    h("div.name", null, h("a", { href: `#/tasks?lane=${enc(lane.name)}` }, lane.name),
      lane.paused && h("span.flag", null, "paused"), h("small", null, lane.strategy)),
    h("div.load", null, slots(lane.active, lane.ceiling,
      `lane ${lane.name}: ${lane.active} of ${lane.ceiling} slots taken`),
      h("div.line", { "aria-hidden": "true" },
        h("i", { style: { width: lane.waiting ? `${Math.max(1, (lane.waiting / most) * 100)}%` : "0" } }))),
    h("div.numbers", null, limitButton(h("b", null, `${number(lane.active)} / ${number(lane.ceiling)}`),
      `Change the limits of lane ${lane.name}`, () => editLane(lane.name)),
      h("small", null, waitingText(lane))),
    button(lane.paused ? "Resume" : "Pause", () => pause(lane),
      { class: "small", "aria-label": `${lane.paused ? "Resume" : "Pause"} lane ${lane.name}`,
        needs: lane.paused ? "POST /lanes/{name}/resume" : "POST /lanes/{name}/pause" }));
}

function waitingText({ waiting, oldestWaitMs }) {
  if (!waiting) return "none waiting";
  return `${compact(waiting)} waiting · ${oldestWaitMs ? span(oldestWaitMs) : "held"}`;
}

function pause(lane) {
  const verb = lane.paused ? "resume" : "pause";
  return attempt(() => post(`/lanes/${enc(lane.name)}/${verb}`),
    `Lane ${lane.name} is ${lane.paused ? "running again" : "paused; running tasks continue"}`);
}

// --- fairness ---------------------------------------------------------------------------------

function fairnessCard(seen) {
  const agents = fairness(seen);
  const most = Math.max(...agents.map((one) => Math.max(one.share, one.fairShare)));
  const body = agents.length
    ? h("ul.agents", null, agents.slice(0, AGENTS_SHOWN).map((agent) => agentRow(agent, most, seen.history)))
    : empty("No agent is running tasks", "This shows each agent's share of the slots and its fair share.");
  const more = agents.length > AGENTS_SHOWN && h("p.muted", null,
    `and ${plural(agents.length - AGENTS_SHOWN, "more agent")}`);
  return card(`Fairness, last ${WINDOWS[seen.history?.window ?? seen.window]}`, h("span.legend", null, h("span.running", null, h("i"), "share of slots"),
    h("span.fair", null, h("i"), "fair share")), body, more);
}

function fairness({ stats, history }) {
  const busy = stats.queue.agents;
  return (history?.agents ?? []).map((one) => ({ ...one, ...busy[one.agentId] }))
    .sort((one, other) => (one.agentId === null) - (other.agentId === null) || other.share - one.share);
}

function agentRow(agent, most, { points, stepMs }) {
  const name = agent.agentId;
  const label = `${name ?? "all others"}: ${percent(agent.share)} of the slots, fair ${percent(agent.fairShare)}`;
  return h("li", { key: name ?? "" },
    name === null ? h("span.name", null, "all others")
      : h("a.name", { href: `#/tasks?agentId=${enc(name)}`, title: name }, name),
    h("div", { title: label }, share(agent.share, agent.fairShare, most, label),
      trace(points.map((point) => Date.parse(point.at)), stepMs, agent.shares, agent.fairShares, 1.5 * most)),
    h("div.numbers", null, name === null ? h("b", null, percent(agent.share))
      : limitButton(h("b", null, percent(agent.share)), `Change the share of ${name}`, () => editAgent(name)),
      name !== null && h("small", null, `${compact(agent.inflight ?? 0)} run · ${compact(agent.queued ?? 0)} wait`)));
}

// --- curves -----------------------------------------------------------------------------------

function curvesCard({ history, window }, choose) {
  const tools = segments("window", Object.keys(WINDOWS).map((one) => [one, one]), window, choose);
  const points = steady(history);
  if (!points.length) return card("Throughput and waits", tools, h("p.muted", null, "Curves appear in a moment."));
  const times = points.map((point) => Date.parse(point.at));
  const perSecond = (name) => points.map((point) => (point[name] * 1000) / point.spanMs);
  const ms = (name) => points.map((point) => point[name] ?? null);
  return card("Throughput and waits", tools, h("div.columns", null,
    curves({ label: "Tasks per second", times, stepMs: history.stepMs, say: rate, least: 1, series: [
      { name: "finished", tone: "done", values: perSecond("finished") },
        { name: "submitted", tone: "queued", values: perSecond("submitted") },
      { name: "failed", tone: "failed", values: perSecond("failed") }] }),
    curves({ label: "Wait until start", times, stepMs: history.stepMs, say: span, least: 10, series: [
      { name: "p95", tone: "parked", values: ms("waitP95Ms") },
        { name: "median", tone: "running", values: ms("waitP50Ms") }] })), begun(history, times));
}

// Leave out a step that has just started: its values are mostly noise.
function steady(history) {
  const points = (history?.points ?? []).filter((point) => point.spanMs);
  return points.length > 1 && points.at(-1).spanMs < history.stepMs / 2 ? points.slice(0, -1) : points;
}

// History is kept in memory. If the window is not full yet, show when it starts.
const begun = ({ since, stepMs }, times) => Date.parse(since) > times[0] - stepMs
  && h("p.muted.begun", null, "History starts with the server, ", time(since), ".");

// --- failed tasks and nodes ---------- --------------------------------------------------------

function troublesCard(tasks) {
  if (!tasks) return card("Failed and parked", null, loading());
  if (!tasks.length) {
    return card("Failed and parked", null,
      empty("Nothing has failed", "The newest failed and parked tasks appear here, with their errors."));
  }
  return card("Failed and parked", [h("a", { href: "#/failures" }, "By error"),
    h("a", { href: "#/tasks?state=failed,parked" }, "All")],
    h("ul.plain", null, tasks.map(troubleRow)));
}

const troubleRow = (task) => h("li", { key: task.taskId },
  badge(task.state), taskLink(task.taskId, cut(title(task), 48)),
  h("span.error", { title: task.error ?? "" }, cut(task.error ?? "", 90)), time(task.completedAt ?? task.createdAt));

function nodesCard({ nodes, ready }) {
  const rows = nodes ?? [{ name: "this server", version: about.version, state: ready }];
  return card("Nodes", ready && health(ready), h("ul.plain", null, rows.map((node) =>
    h("li", { key: node.name }, health(node.state), h("span.mono", null, node.name),
      h("span.muted", null, [node.host,
        node.running !== undefined && `${number(node.running)} running`].filter(Boolean).join(" · ")),
      node.seenAt && time(node.seenAt)))));
}

const health = (state) => h("span.health", { class: state === "ready" ? "good" : "bad" }, state);
