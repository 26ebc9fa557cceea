// Cron jobs: next runs, past runs, run now, enable and disable, edit with a preview.

import { h, fill, morph, sheet, toast } from "../dom.js";
import { enc, get, patch, post, remove } from "../api.js";
import { cut, dated, exact, plural, pretty, span, taskLink, time, words } from "../format.js";
import { strip } from "../charts.js";
import { attempt, button, card, confirmed, curl, empty, head, loading, Pager, problem, table } from "../pieces.js";
import { ahead, calendar } from "./calendar.js";
import { onePage, segments } from "../lists.js";
import { watch } from "../live.js";

const PAGE = 30;
const RUNS_IN_STRIP = 24;
const NEXT = 5;
const FACTS = ["agentId", "overlap", "misfire", "jitterMs", "timeoutMs", "maxRuns", "endAt", "deleteAfterRun",
  "disableAfter", "alertUrl"];

export function show(root, { query }) {
  const pager = new Pager();
  const seen = { view: query.view ?? "list" };
  const again = () => watcher.now();
  const choose = (view) => {
    seen.view = view;
    history.replaceState(history.state, "", `#/cron${view === "list" ? "" : `?view=${view}`}`);
    draw();
    again();
  };
  const make = button("New job…", () => edit(null, again), { class: "primary", needs: "POST /cron/jobs" });
  const draw = () => morph(root, h("div", { class: root.className },
    head("Cron", segments("view", [["list", "List"], ["calendar", "Calendar"]], seen.view, choose), make),
    body(seen, again), seen.jobs && pager.controls(seen.next, again)));
  const watcher = watch(async () => {
    const { jobs, nextCursor } = await get("/cron/jobs", { limit: PAGE, cursor: pager.cursor });
    const found = seen.view === "calendar" ? { ahead: await next(seen, jobs) } : { runs: await past(jobs) };
    Object.assign(seen, { jobs, next: nextCursor, ...found });
    draw();
  });
  draw();
  return watcher.end;
}

async function past(jobs) {
  const logs = await Promise.all(jobs.map((job) => get(`/cron/jobs/${enc(job.id)}/runs`, { limit: RUNS_IN_STRIP })));
  return new Map(jobs.map((job, at) => [job.id, logs[at].runs.reverse()]));
}

// Fetched again when a job has changed or has run.
async function next(seen, jobs) {
  const known = JSON.stringify(jobs.map((job) => [job.id, job.enabled, job.nextRunAt, job.schedule]));
  if (known === seen.known) return seen.ahead;
  const now = Date.now();
  const found = await Promise.all(jobs.map(async (job) => ({ job, ...await ahead(job, now) })));
  seen.known = known;
  return found;
}

function body(seen, again) {
  const read = seen.view === "calendar" ? seen.ahead : seen.runs;
  if (!read) return loading();
  return seen.view === "calendar" && seen.jobs.length ? calendar(read, Date.now()) : list(seen, again);
}

function list({ jobs, runs }, again) {
  if (!jobs.length) {
    const weekdays = { kind: "cron", expr: "0 9 * * 1-5", tz: "Europe/Berlin" };
    return h("section.card", null, empty("No cron jobs yet",
      "A cron job submits a task on a schedule. This one runs every weekday at nine:",
      curl("-X POST", "/cron/jobs", { name: "greeting", schedule: weekdays, task: { handler: "echo" } })));
  }
  const name = (job) => [h("a", { href: `#/cron/${enc(job.id)}` }, job.name), " ", h("small", null, job.agentId)];
  const off = (job) => h("span.flag", null, OFF[job.disabledReason] ?? (job.disabledReason ? `off: ${job.disabledReason}` : "off"));
  const past = (job) => (runs.get(job.id).length ? [strip(runs.get(job.id)), amiss(runs.get(job.id))]
    : h("small", null, "none yet"));
  return h("section.card", null, table([
    { name: "Job", cell: name },
    { name: "Schedule", cell: (job) => h("span.mono", null, schedule(job.schedule)) },
    { name: "Next run", class: "narrow", cell: (job) => (job.enabled ? time(job.nextRunAt) : off(job)) },
    { name: "Last runs", cell: past },
    { name: "", class: "right", cell: (job) => h("div.actions", null, tools(job, again)) },
  ], jobs, { key: (job) => job.id, label: "Cron jobs" }));
}

// How many of the last runs did not end well, in words.
function amiss(runs) {
  const counts = ["error", "missed", "skipped"].map((status) => [status, runs.filter((run) => run.status === status).length])
    .filter(([, count]) => count);
  return counts.length > 0 && h("small", null, `of the last ${runs.length}: `,
    counts.map(([status, count]) => `${count} ${status === "error" ? "failed" : status}`).join(", "));
}

const OFF = { "by caller": "switched off", errors: "off: too many failures" };

export function schedule(one) {
  if (one.kind === "cron") return one.tz ? `${one.expr} (${one.tz})` : one.expr;
  if (one.kind === "every") return `every ${span(one.everyMs)}`;
  return `once, ${dated(Date.parse(one.at ?? one.atMs))}`;
}

function tools(job, again) {
  const path = `/cron/jobs/${enc(job.id)}`;
  const other = job.enabled ? "off" : "on";
  const run = () => attempt(() => post(`${path}/run`), `${job.name} runs now`).then(again);
  const toggle = () => attempt(() => post(`${path}/toggle`, { enabled: !job.enabled }), `${job.name} is ${other}`)
    .then(again);
  return [
    button("Run now", run,
      { class: "small", "aria-label": `Run ${job.name} now`, needs: "POST /cron/jobs/{id}/run" }),
    button(`Switch ${other}`, toggle,
      { class: "small", "aria-label": `Switch ${job.name} ${other}`, needs: "POST /cron/jobs/{id}/toggle" }),
    button("Edit…", () => edit(job, again),
      { class: "small", "aria-label": `Edit ${job.name}`, needs: "PATCH /cron/jobs/{id}" }),
  ];
}

// --- one job ----------------------------------------------------------------------------------

export function showOne(root, { id }) {
  const pager = new Pager();
  return onePage(root, { title: "Cron job", all: ["#/cron", "All jobs"] }, async () => {
    const job = await get(`/cron/jobs/${enc(id)}`);
    const [runs, coming] = await Promise.all([
      get(`/cron/jobs/${enc(id)}/runs`, { limit: PAGE, cursor: pager.cursor }),
      preview(job.schedule).catch(() => []),
    ]);
    return { job, runs, coming, pager };
  }, page);
}

function page({ job, runs, coming, pager }, again) {
  const question = {
    title: `Delete ${job.name}?`, text: "Tasks it has started continue.", confirm: "Delete the job", danger: true,
  };
  const drop = async () => {
    if (await confirmed(question, () => remove(`/cron/jobs/${enc(job.id)}`), "Deleted")) location.hash = "#/cron";
  };
  return [
    h("p.crumbs", null, h("a", { href: "#/cron" }, "Cron"), " / ", h("span.mono", null, job.id)),
    head(job.name, tools(job, again), button("Delete…", drop,
      { class: "danger-text", needs: "DELETE /cron/jobs/{id}" })),
    h("div.columns.wide-left", null,
      card("Runs", null, runs.runs.length ? runTable(runs.runs) : h("p.muted", null, "None yet."),
        pager.controls(runs.nextCursor, again)),
      h("div.stack", null,
        card("Next runs", null, job.enabled ? nextRuns(coming)
          : h("p.muted", null, `It is off${job.disabledReason ? `: ${job.disabledReason}` : ""}.`)),
        card("Job", null, h("dl.facts", null, facts(job)),
          h("pre.json", { tabindex: "0", role: "region", "aria-label": "Task" }, pretty(job.task))))),
  ];
}

function runTable(runs) {
  const status = (run) => h("span.badge", { class: `r-${run.status}` }, h("i"), run.status);
  const outcome = (run) => (run.error ? h("span.error", null, cut(run.error, 120)) : cut(run.summary ?? "", 120));
  return table([
    { name: "Status", cell: status },
    { name: "Due", class: "narrow", cell: (run) => time(run.scheduledAt) },
    { name: "By", class: "narrow", cell: (run) => run.trigger },
    { name: "Tries", class: "right", cell: (run) => run.attempts },
    { name: "Task", class: "narrow", cell: (run) => (run.taskId ? taskLink(run.taskId) : "–") },
    { name: "Outcome", cell: outcome },
  ], runs, { key: (run) => run.runId, label: "Runs" });
}

function facts(job) {
  const set = FACTS.filter((name) => job[name] !== undefined && job[name] !== null);
  const rows = [
    ["schedule", h("span.mono", null, schedule(job.schedule))],
    ["runs", job.state.runs ?? 0],
    ["failures in a row", job.state.consecutiveErrors ?? 0],
    ...set.map((name) => [words(name), String(job[name])]),
  ];
  return rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]);
}

// --- editing, with a preview ------------------------------------------------------------------

async function preview(one) {
  const { kind, expr, tz, everyMs, atMs, at = kind === "at" ? new Date(atMs).toISOString() : undefined } = one;
  return (await get("/cron/preview", { ...(kind === "cron" ? { expr, tz } : { everyMs, at }), n: NEXT })).next;
}

const nextRuns = (moments) => h("ul.next", null, moments.map((one) =>
  h("li", null, h("span", { title: exact(Date.parse(one.utc)) }, one.local.replace("T", " ")), time(one.utc))));

const KINDS = {
  cron: { text: "by a cron expression", label: "Expression" },
  every: { text: "at an interval", label: "Seconds" },
  at: { text: "once", label: "Time (RFC 3339)" },
};

function edit(job, again) {
  const old = job?.schedule ?? { kind: "cron", expr: "*/15 * * * *" };
  const name = h("input", { type: "text", name: "name", value: job?.name ?? "", required: true });
  const agent = h("input", { type: "text", name: "agentId", value: job?.agentId ?? "default", disabled: Boolean(job) });
  const kind = h("select", { name: "kind" }, Object.entries(KINDS).map(([value, { text }]) =>
    h("option", { value, selected: value === old.kind }, text)));
  const said = old.expr ?? (old.everyMs ? String(old.everyMs / 1000) : old.at ?? "");
  const when = h("input", { type: "text", name: "when", spellcheck: "false", value: said });
  const zone = h("input", { type: "text", name: "tz", placeholder: "UTC", value: old.tz ?? "" });
  const task = h("textarea", { name: "task", rows: 8, spellcheck: "false" });
  task.value = pretty(job?.task ?? { handler: "echo", params: { hello: "world" } });
  const outcome = h("div", { "aria-live": "polite" });
  const whenLabel = h("label.field", null, h("span", null, KINDS[old.kind].label), when);
  const fields = [
    field("Name", name), field("Agent", agent), field("It runs", kind), whenLabel, field("Time zone", zone),
  ];
  const send = h("button.primary", { type: "submit" }, job ? "Save" : "Create");
  const box = sheet(job ? `Edit ${job.name}` : "New cron job",
    h("form.form", { onsubmit: (event) => { event.preventDefault(); save(); } },
      h("div.split", null, fields), field("Task, as for POST /tasks", task), outcome, h("div.actions", null, send)));
  box.classList.add("wide");
  let timer;
  for (const input of [when, zone]) input.oninput = () => { clearTimeout(timer); timer = setTimeout(look, 250); };
  kind.onchange = () => {
    whenLabel.firstChild.textContent = KINDS[kind.value].label;
    when.value = "";
    fill(outcome);
  };
  look();

  function asked() {
    const text = when.value.trim();
    const tz = zone.value.trim() || (job ? null : undefined);
    if (kind.value === "cron") return { kind: "cron", expr: text, tz };
    if (kind.value === "every") return { kind: "every", everyMs: Math.round(Number(text) * 1000) };
    return { kind: "at", at: text };
  }
  async function look() {
    if (!when.value.trim()) return;
    try {
      const moments = await preview(asked());
      fill(outcome, h("h3", null, `The next ${plural(moments.length, "run")}`), nextRuns(moments));
    } catch (error) {
      fill(outcome, problem(error));
    }
  }
  async function save() {
    try {
      const body = { name: name.value.trim(), schedule: asked(), task: JSON.parse(task.value) };
      if (job) await patch(`/cron/jobs/${enc(job.id)}`, body);
      else await post("/cron/jobs", { ...body, agentId: agent.value.trim() });
      box.close();
      toast(job ? "Saved" : "Job created");
      again();
    } catch (error) {
      const broken = error instanceof SyntaxError && { message: `The task is not JSON: ${error.message}` };
      fill(outcome, problem(broken || error));
    }
  }
}

const field = (text, input) => h("label.field", null, text, input);
