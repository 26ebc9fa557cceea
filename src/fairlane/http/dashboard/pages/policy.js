// The policy: the current version, older versions and their differences, and an editor with a check.

import { h, fill, morph, sheet } from "../dom.js";
import { get, post, put, query } from "../api.js";
import { cut, plural, pretty, time } from "../format.js";
import { attempt, button, card, confirmed, head, loading, Pager, problem, table } from "../pieces.js";
import { dialog, field, text, word } from "../forms.js";
import { editAgent, editLane, limitButton } from "../limits.js";
import { watch } from "../live.js";

const PAGE = 20;
const INLINE_MAX = 3;

export function show(root) {
  const pager = new Pager();
  const seen = {};
  const draw = () => morph(root, page(root, seen, pager, watcher));
  const watcher = watch(async () => {
    const [policy, versions] = await Promise.all([get("/policy"),
      get("/policy/versions", { limit: PAGE, cursor: pager.cursor })]);
    Object.assign(seen, { policy, versions });
    draw();
  }, { lazyMs: 4000 });
  draw();
  return watcher.end;
}

function page(root, { policy, versions }, pager, watcher) {
  if (!policy) return h("div", { class: root.className }, head("Policy"), loading());
  return h("div", { class: root.className },
    head("Policy", button("Edit…", () => edit(policy, watcher.now),
      { class: "primary", needs: "PUT /policy" })),
    h("div.columns.wide-left", null,
      h("div.stack", null, lanes(policy.policy.lanes, watcher.now), agents(policy.policy.agents ?? {}, watcher.now), card(`In force: version ${policy.version}`, null,
        h("pre.json", { tabindex: "0", role: "region", "aria-label": "Policy" }, pretty(policy.policy)))),
      card("Versions", null, list(versions.versions, policy.version, watcher.now),
        pager.controls(versions.nextCursor, watcher.now))));
}

const limit = (value, name, edit) => limitButton(say(value), `Change the ${name}`, edit);
const say = (value) => (value === null || value === undefined ? "–" : String(value));

function agents(all, again) {
  const rows = Object.entries(all).map(([name, agent]) => ({ name, ...agent }));
  const add = button("Set a share…", () => dialog({ title: "Share of an agent", verb: "Next" },
    [field("Agent", text("agent", { required: true }))], async (form) => {
      editAgent(word(form, "agent"), again);
      return true;
    }), { class: "small", needs: "PATCH /policy" });
  if (!rows.length) return card("Agents", add, h("p.muted", null, "All agents have the same weight."));
  return card("Agents", add, table([
    { name: "Agent", cell: (agent) => h("a", { href: `#/tasks?agentId=${encodeURIComponent(agent.name)}` }, agent.name) },
    { name: "Weight", class: "right", cell: ({ name, weight }) => limit(weight ?? 1, `weight of ${name}`,
      () => editAgent(name, again)) },
    { name: "At once", class: "right", cell: ({ name, maxInflight }) => limit(maxInflight, `ceiling of ${name}`,
      () => editAgent(name, again)) },
  ], rows, { key: (agent) => agent.name, label: "Agents" }));
}

function lanes(all, again) {
  const rows = Object.entries(all).map(([name, lane]) => ({ name, ...lane }));
  const edit = (lane) => () => editLane(lane.name, again);
  return card("Lanes", null, table([
    { name: "Lane", cell: (lane) => h("a", { href: `#/tasks?lane=${encodeURIComponent(lane.name)}` }, lane.name) },
    { name: "Order", cell: (lane) => lane.strategy },
    { name: "Ceiling", class: "right", cell: (lane) => limit(lane.maxInflight, `ceiling of lane ${lane.name}`, edit(lane)) },
    { name: "Per agent", class: "right", cell: (lane) => limit(lane.maxPerAgentInflight,
      `ceiling per agent of lane ${lane.name}`, edit(lane)) },
    { name: "Queue", class: "right", cell: (lane) => limit(lane.maxQueueSize,
      `queue of lane ${lane.name}`, edit(lane)) },
    { name: "Paused", class: "right", cell: (lane) => (lane.paused ? "yes" : "no") },
  ], rows, { key: (lane) => lane.name, label: "Lanes" }));
}

function list(versions, newest, again) {
  if (!versions.length) return h("p.muted", null, "The defaults are in force; there are no changes yet.");
  return h("ul.versions", null, versions.map((one) =>
    h("li", { key: one.version, class: one.version === newest ? "now" : "", "data-row": true },
    h("b", null, `v${one.version}`), h("span", null, [one.author, one.source].filter(Boolean).join(" · ")),
      time(one.createdAt),
    h("small", null, one.note, one.note && " · ", summary(one.changes)), inline(one.changes),
    h("div.actions", null, button("Differences", () => difference(one.version),
      { class: "small", "aria-label": `Differences of version ${one.version}` }),
      one.version !== newest && button("Restore…", () => bringBack(one.version, again),
        { class: "small", "aria-label": `Restore version ${one.version}`, needs: "POST /policy/rollback" })))));
}

// The first changes of a version; the rest are behind its button.
function inline(changes) {
  if (!Array.isArray(changes) || !changes.length) return null;
  const brief = (value) => (value === undefined ? "–" : cut(JSON.stringify(value), 40));
  return h("ul.changes", null, changes.slice(0, INLINE_MAX).map((one) => h("li", { key: one.path },
    h("code", null, one.path), " ", h("span.from", null, brief(one.from)), " → ", h("span.to", null, brief(one.to)))));
}

function summary(changes) {
  const count = Array.isArray(changes) ? changes.length : changes;
  return count ? plural(count, "change") : "";
}

async function difference(version) {
  const found = await attempt(() => get("/policy/diff", { from: version - 1, to: version }));
  if (found) sheet(`Version ${found.from} to ${found.to}`, diff(found.changes)).classList.add("wide");
}

function diff(changes) {
  if (!changes.length) return h("p.muted", null, "No differences.");
  const say = (value) => (value === undefined ? "–" : JSON.stringify(value));
  return h("div.diff", null, table([
    { name: "What", cell: (one) => one.path },
    { name: "Before", class: "from", cell: (one) => say(one.from) },
    { name: "After", class: "to", cell: (one) => say(one.to) },
  ], changes, { key: (one) => one.path, label: "Differences" }));
}

function bringBack(version, again) {
  return confirmed({ title: `Restore version ${version}?`, text: "It becomes the newest version; no version is lost.",
    confirm: `Restore version ${version}` },
    () => post("/policy/rollback", { version }), (answer) => `Version ${answer.version} is in force`).then(again);
}

// --- changing it ------------------------------------------------------------------------------

function edit(policy, again) {
  const text = h("textarea", { rows: 22, spellcheck: "false", "aria-label": "Policy document" });
  text.value = pretty(policy.policy);
  const note = h("input", { type: "text", maxlength: 500, placeholder: "Reason for the change" });
  const outcome = h("div", { "aria-live": "polite" });
  const box = sheet("Edit the policy", h("div.form", null, text, h("label.field", null, "Note", note), outcome,
    h("div.actions", null, button("Check", check), button("Apply", save, { class: "primary" }))));
  box.classList.add("wide");

  async function check() {
    await said(async () => {
      const found = await post("/policy/check", text.value);
      fill(outcome, found.valid ? diff(found.changes)
        : problem({ message: found.problems.length > 1 ? "The policy is not valid" : found.problems[0], details: found }));
    });
  }
  async function save() {
    await said(async () => {
      const answer = await put(`/policy${query({ expectedVersion: policy.version, note: note.value.trim() })}`,
        text.value);
      box.close();
      await attempt(async () => answer, answer.changed ? `Version ${answer.version} is in force`
        : "No changes");
      again();
    });
  }
  async function said(doing) {
    try {
      JSON.parse(text.value);
    } catch (error) {
      fill(outcome, problem({ message: `This is not JSON: ${error.message}` }));
      return;
    }
    await doing().catch((error) => fill(outcome, problem(error)));
  }
}
