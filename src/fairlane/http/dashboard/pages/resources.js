// Resources: use by agent, holders, waiting tasks, and when each becomes available.

import { h, morph } from "../dom.js";
import { enc, get, post } from "../api.js";
import { compact, number, percent, plural, span, taskLink, time } from "../format.js";
import { curves } from "../charts.js";
import { attempt, button, card, copyable, empty, head, loading, Pager, problem, table } from "../pieces.js";
import { dialog, duration, field, select, text, word } from "../forms.js";
import { listPage, segments } from "../lists.js";
import { watch } from "../live.js";

const LEDGER_PAGE = 20;
const USERS_SHOWN = 12;
const WINDOWS = ["5m", "1h", "24h"];
const EXAMPLE = {
  limits: [{ unit: "requests", amount: 500, perMs: 60000 },
    { unit: "tokens", amount: 90000, perMs: 60000 }],
};

const title = ({ name, key }) => (key ? `${name}/${key}` : name);
const place = (one) => `#/resources/${enc(one.name)}${one.key ? `/${enc(one.key)}` : ""}`;
const value = (amount) => Number(amount ?? 0);
const amount = (given) => (Math.abs(value(given)) < 10000 ? String(given ?? 0) : compact(value(given)));

export const show = (root) => listPage(root, { name: "resources", title: "Resources", limit: 100, rows: list,
  watched: { lazyMs: 2000 } });

function list(resources, again) {
  if (!resources.length) return h("section.card", null, teach());
  return h("section.card", null, table([
    { name: "Resource", cell: (one) => h("a.mono", { href: place(one) }, title(one)) },
    { name: "State", cell: (one) => state(one) },
    { name: "Use", cell: (one) => h("div.uses", null, one.limits.map((limit) => use(one, limit))) },
    { name: "Waiting", class: "right", cell: (one) => number(one.waiting) },
    { name: "", class: "right", cell: (one) => switches(one, again) },
  ], resources, { key: title, label: "Resources" }));
}

function teach() {
  return empty("The policy declares no resources",
    "A resource is something finite that tasks share: a provider's quota, a budget, a GPU, a browser profile. "
    + "Declare it in the policy and name it in the needs of tasks:",
    `fairlane policy set 'resources.gpt=${JSON.stringify(EXAMPLE)}'`,
    copyable("fairlane submit --handler echo --need gpt:requests=1,tokens=3000"));
}

const state = (one) => (one.state === "closed"
  ? h("span.flag.closed", { title: one.reason ?? "" }, "closed", one.closedUntil && [" until ", time(one.closedUntil)])
  : h("span.flag.open", null, "open"));

function use(one, limit) {
  const [limitOf, taken] = [value(limit.amount), value(limit.used) + value(limit.reserved)];
  const share = limitOf ? taken / limitOf : 0;
  const label = `${title(one)}: ${amount(limit.used)} used and ${amount(limit.reserved)} reserved of `
    + `${amount(limit.amount)} ${limit.unit}`;
  const part = (given) => `${Math.min(100, Math.max(0, (value(given) / (limitOf || 1)) * 100))}%`;
  return h("div.use", { key: limit.unit, title: label },
    h("span", null, limit.unit),
    h("div.gauge", { role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": Math.max(limitOf, taken),
      "aria-valuenow": taken, class: share >= 1 ? "full" : "" },
    h("i.used", { style: { width: part(limit.used) } }), h("i.reserved", { style: { width: part(limit.reserved) } }),
      h("i.others", { style: { width: part(limit.others) } })),
    h("small", null, `${amount(taken)} / ${amount(limit.amount)}`, kindText(limit)));
}

function kindText(limit) {
  if (limit.perMs) return ` per ${span(limit.perMs)}`;
  if (limit.resetsAt) return [" · resets ", time(limit.resetsAt)];
  return " held";
}

function switches(one, again) {
  const closed = one.state === "closed";
  return button(closed ? "Open" : "Close…", () => (closed ? open(one, again) : close(one, again)),
    { class: "small", "aria-label": `${closed ? "Open" : "Close"} ${title(one)}`,
      needs: closed ? "POST /resources/{name}/open" : "POST /resources/{name}/close" });
}

function open(one, again) {
  return attempt(() => post(`/resources/${enc(one.name)}/open`, { key: one.key }), `${title(one)} is open`).then(again);
}

// --- closing and raising ----------------------------------------------------------------------

function close(one, again) {
  const reason = field("Reason", text("reason", { maxlength: 200, placeholder: "in one line" }));
  const span = field("For", text("forMs", { placeholder: "until you open it" }), { hint: "30s, 5m, 2h" });
  dialog({ title: `Close ${title(one)}`, verb: "Close",
    about: "Tasks that need it do not start until then. Running tasks continue." }, [span, reason], async (form) => {
    await post(`/resources/${enc(one.name)}/close`,
      { key: one.key, forMs: duration(form, "forMs", "The time"), reason: word(form, "reason") });
    again();
    return `${title(one)} is closed`;
  });
}

function raise(one, budgets, again) {
  const fields = [field("Unit", select("unit", budgets.map((limit) => [limit.unit]))),
    field("By", text("amount", { inputmode: "decimal", placeholder: "10.50", required: true })),
    field("Reason", text("reason", { maxlength: 200, placeholder: "in one line" }))];
  dialog({ title: `Raise ${title(one)}`, verb: "Raise", about: "This amount is added to the budget until it resets." },
    fields, async (form) => {
      const [unit, amount] = [word(form, "unit"), word(form, "amount")];
      await post(`/resources/${enc(one.name)}/raise`, { key: one.key, unit, amount, reason: word(form, "reason") });
      again();
      return `${title(one)}: ${amount} ${unit} more until the reset`;
    });
}

// --- one resource -----------------------------------------------------------------------------

export function showOne(root, { id }) {
  const slash = id.indexOf("/");
  const [name, key] = slash < 0 ? [id, undefined] : [id.slice(0, slash), id.slice(slash + 1)];
  const seen = { window: "5m", pager: new Pager() };
  const watcher = watch(async () => {
    try {
      Object.assign(seen, await read(name, key, seen));
    } catch (error) {
      if (error.status !== 404) throw error;
      morph(root, h("div", { class: root.className }, head("Resource"), problem(error),
        h("a", { href: "#/resources" }, "All resources")));
      return;
    }
    draw();
  }, { lazyMs: 2000 });
  function draw() {
    morph(root, page(root, seen, choose, watcher.now));
  }
  function choose(window) {
    seen.window = window;
    watcher.now();
  }
  morph(root, h("div", { class: root.className }, head("Resource"), loading()));
  return watcher.end;
}

async function read(name, key, { window, pager }) {
  const path = `/resources/${enc(name)}`;
  const [one, history, usage, ledger] = await Promise.all([
    get(path, { key }), get(`${path}/history`, { key, window }), get(`${path}/usage`, { key }),
    get(`${path}/ledger`, { key, limit: LEDGER_PAGE, cursor: pager.cursor }),
  ]);
  return { one, history, usage, ledger };
}

function page(root, seen, choose, again) {
  const { one } = seen;
  const budgets = one.limits.filter((limit) => limit.resetsAt);
  const raising = budgets.length > 0 && button("Raise…", () => raise(one, budgets, again),
    { class: "primary", needs: "POST /resources/{name}/raise" });
  return h("div", { class: root.className },
    h("p.crumbs", null, h("a", { href: "#/resources" }, "Resources"), " / ", h("span.mono", null, title(one))),
    head(title(one), state(one), raising, switches(one, again)),
    one.reason && h("p.muted", null, one.reason),
    h("section.card", null, h("div.uses.large", null, one.limits.map((limit) => use(one, limit))),
      legend(one.limits)),
    overTime(seen, choose),
    h("div.columns", null, users(seen.usage), waiters(one)),
    ledgerCard(seen, again));
}

const legend = (limits) => h("p.legend", null, h("span.running", null, h("i"), "used"),
  h("span.queued", null, h("i"), "reserved"),
  limits.some((limit) => value(limit.others)) && h("span.parked", null, h("i"), "used by others"));

function overTime({ history, window }, choose) {
  const tools = segments("window", WINDOWS.map((one) => [one, one]), window, choose);
  const times = history.points.map((point) => Date.parse(point.at));
  if (!times.length) return card("Use over time", tools, h("p.muted", null, "Curves appear in a moment."));
  return card("Use over time", tools, h("div.columns", null, history.units.map((unit) => {
    const read = (name) => history.points.map((point) => {
      const found = point.limits.find((limit) => limit.unit === unit);
      return found ? value(found[name]) : null;
    });
    return curves({ label: unit, times, stepMs: history.stepMs, say: amount, least: 1, series: [
      { name: "used and reserved", tone: "running", values: read("taken") },
      { name: "limit", tone: "failed", values: read("amount") }] });
  })));
}

function users({ rows }) {
  if (!rows.length) return card("Use by agent and day", null, empty("Not used yet", "Agents appear here with the amounts they used."));
  const totals = new Map();
  for (const row of rows) totals.set(row.unit, (totals.get(row.unit) ?? 0) + value(row.used));
  const order = [...rows].sort((one, other) => value(other.used) - value(one.used)).slice(0, USERS_SHOWN);
  return card("Use by agent and day", null, table([
    { name: "Agent", cell: (row) => h("a", { href: `#/tasks?agentId=${enc(row.agentId)}` }, row.agentId) },
    { name: "Day", cell: (row) => row.day },
    { name: "Used", class: "right", cell: (row) => `${amount(row.used)} ${row.unit}` },
    { name: "Share", class: "right", cell: (row) => percent(value(row.used) / (totals.get(row.unit) || 1)) },
  ], order, { key: (row) => `${row.day} ${row.agentId} ${row.unit}`, label: "Use by agent" }));
}

function waiters(one) {
  const held = (one.holders ?? []).map((holder) => h("li", { key: holder.taskId, "data-row": true },
    taskLink(holder.taskId), h("span", null, holder.agentId), h("span.muted", null, needsText(holder.needs))));
  return h("div.stack", null,
    card("Waiting tasks", h("a", { href: "#/tasks?state=queued" }, "Queued tasks"),
      h("p", null, one.waiting ? `${plural(one.waiting, "task")} waiting for it` : "No task waits for it.")),
    card("Holders", null, held.length ? h("ul.plain", null, held) : h("p.muted", null, "Nothing is reserved.")));
}

const needsText = (needs) => Object.entries(needs ?? {}).map(([unit, given]) => `${amount(given)} ${unit}`).join(", ");

function ledgerCard({ ledger, pager }, again) {
  if (!ledger.entries.length) return card("Ledger", null, h("p.muted", null, "No entries yet."));
  return card("Ledger", null, table([
    { name: "When", cell: (entry) => time(entry.at) },
    { name: "What", cell: (entry) => entry.kind },
    { name: "Amount", class: "right", cell: (entry) => (entry.unit ? `${entry.amount} ${entry.unit}` : "–") },
    { name: "Balance", class: "right", cell: (entry) => entry.balance ?? "–" },
    { name: "Task", cell: (entry) => (entry.taskId ? taskLink(entry.taskId) : "–") },
    { name: "Agent", cell: (entry) => entry.agentId ?? "–" },
  ], ledger.entries, { key: (entry) => entry.id, label: "Ledger" }), pager.controls(ledger.nextCursor, again));
}
