// All tasks: filters in the address, pages by cursor, actions on many tasks.

import { h, morph, toast } from "../dom.js";
import { get, post, enc, query as asQuery } from "../api.js";
import { args, badge, cut, LABELS, number, plural, span, STATES, time, title } from "../format.js";
import { attempt, button, confirmed, curl, empty, head, loading, me, Pager, problem, progressBar } from "../pieces.js";
import { watch } from "../live.js";

export const PAGE = 100;
const LOOKS_MAX = 5; // for a rare text: how many pages to search before stopping
const NAMES = ["text", "state", "agentId", "handler", "lane", "kind", "sessionKey", "batchId", "dependsOn", "since",
  "until", "finishedSince", "finishedUntil", "error", "failure", "where", "sort"];
const MOMENTS = ["since", "until", "finishedSince", "finishedUntil"];
const COLUMNS = ["State", "Task", "Agent", "Lane", "Tries", "Took", "Created"];
const KINDS = ["action", "instruction", "handler"];
const OPEN = ["waiting_dependency", "queued", "assigned", "running", "parked"];
const VERBS = {
  cancel: { name: "Cancel", states: OPEN, said: "cancelled", done: "cancelled", danger: true },
  retry: { name: "Retry", states: ["failed", "cancelled"], said: "queued again", done: "retried" },
  reset: { name: "Reset", states: ["parked"], said: "queued again", done: "reset" },
};

export function show(root, { query }) {
  const page = new TasksPage(root, query);
  const watcher = watch(() => page.read(), { lazyMs: 15000 });
  page.again = watcher.now;
  return () => { watcher.end(); page.ended = true; };
}

// "10:00" as a moment of today, in the time zone of the window.
function local(text) {
  const [, hours, minutes] = /^(\d{1,2}):(\d\d)$/.exec(text) ?? [];
  return hours === undefined ? text : new Date(new Date().setHours(hours, minutes, 0, 0)).toISOString();
}

class TasksPage {
  constructor(root, query) {
    this.root = root;
    this.filter = Object.fromEntries(NAMES.filter((name) => query[name]).map((name) => [name, query[name]]));
    this.pager = new Pager();
    this.selected = new Map(); // by id, as last seen: newer tasks may push one off this page
    this.lanes = [];
    this.draw();
  }

  async read() {
    if (!this.lanes.length) this.lanes = (await get("/lanes")).lanes.map((lane) => lane.name);
    const asked = this.asked();
    try {
      const found = await this.look();
      if (this.ended || asked !== this.asked()) return;
      Object.assign(this, { tasks: found.tasks, next: found.nextCursor, error: null });
      for (const task of found.tasks) if (this.selected.has(task.taskId)) this.selected.set(task.taskId, task);
    } catch (error) {
      if (error.status !== 400) throw error;
      Object.assign(this, { error, tasks: [] });
    }
    this.draw();
  }

  asked() { return asQuery({ ...this.filter, cursor: this.pager.cursor }); }

  async look() {
    let cursor = this.pager.cursor;
    for (let looks = 1; ; looks += 1) {
      const found = await get("/tasks", { ...this.conditions(), sort: this.filter.sort, brief: true, limit: PAGE, cursor });
      if (found.tasks.length || !found.nextCursor || looks === LOOKS_MAX) return found;
      cursor = found.nextCursor;
    }
  }

  // The filter as the server gets it: a time of day is one of this window's time zone.
  conditions() {
    const found = { ...this.filter };
    delete found.sort;
    for (const name of MOMENTS) if (found[name]) found[name] = local(found[name]);
    return found;
  }

  set(name, value) {
    if (value) this.filter[name] = value;
    else delete this.filter[name];
    this.pager.reset();
    this.selected.clear();
    history.replaceState(null, "", `#/tasks${asQuery(this.filter)}`);
    this.draw();
    this.again();
  }

  turn() {
    this.selected.clear();
    this.draw();
    this.again();
    window.scrollTo(0, 0);
  }

  // --- how it looks ---------------------------------------------------------------------------

  draw() {
    morph(this.root, h("div", { class: this.root.className }, head("Tasks", this.tools()), this.filters(), this.body(),
      this.tasks && this.pager.controls(this.next, () => this.turn())));
  }

  body() {
    if (this.error) return problem(this.error);
    if (!this.tasks) return loading();
    return this.tasks.length ? this.list() : this.nothing();
  }

  filters() {
    const some = Object.keys(this.filter).length > 0;
    const props = { role: "search", "aria-label": "Filter tasks", onsubmit: (event) => event.preventDefault() };
    return h("form.filters", props,
      h("div.chips", { role: "group", "aria-label": "State" }, STATES.map((state) => this.chip(state))),
      h("div.fields", null,
        this.field("text", "Text in id, handler, session, error or instruction", "wide"),
        this.field("agentId", "Agent"), this.field("handler", "Handler"), this.choice("lane", "Lane", this.lanes), this.choice("kind", "Kind", KINDS),
        this.field("sessionKey", "Session"), this.field("batchId", "Batch"), this.field("error", "Error contains"),
        this.field("since", "Since: 1h, 10:00"), this.field("where", "params.NAME=VALUE"),
        this.choice("sort", "Newest first", [["oldest", "Oldest first"]]),
        some && button("Clear filters", () => this.clear(), { class: "quiet" })));
  }

  chip(state) {
    const chosen = (this.filter.state ?? "").split(",").filter(Boolean);
    const on = chosen.includes(state);
    const toggled = on ? chosen.filter((one) => one !== state) : [...chosen, state];
    const props = { type: "button", class: `s-${state}`, "aria-pressed": String(on) };
    return h("button.chip", { ...props, onclick: () => this.set("state", toggled.join(",")) },
      h("i", { "aria-hidden": "true" }), LABELS[state]);
  }

  field(name, label, size) {
    const input = h("input", { type: "search", name, placeholder: label, "aria-label": label, class: size,
      autocomplete: "off", spellcheck: "false", value: this.filter[name] ?? "" });
    let timer;
    input.oninput = (event) => {
      const element = event.currentTarget;
      clearTimeout(timer);
      timer = setTimeout(() => this.set(name, element.value.trim()), 250);
    };
    return input;
  }

  choice(name, label, values) {
    const onchange = (event) => this.set(name, event.currentTarget.value);
    const [first, ...rest] = Array.isArray(values[0]) ? [label, ...values]
      : [`Any ${label.toLowerCase()}`, ...values.map((value) => [value, value])];
    return h("select", { name, "aria-label": name === "sort" ? "Order" : label, onchange },
      h("option", { value: "" }, first),
      rest.map(([value, text]) => h("option", { value, selected: value === this.filter[name] }, text)));
  }

  clear() {
    this.filter = {};
    for (const input of this.root.querySelectorAll(".filters input, .filters select")) input.value = "";
    this.set("text", "");
  }

  list() {
    const all = this.tasks.every((task) => this.selected.has(task.taskId));
    const names = [this.mark("Select all on this page", this.tasks, all), ...COLUMNS];
    return h("div.rows", { role: "table", "aria-label": "Tasks" },
      h("div.row.first", { role: "row" }, names.map((name) => h("span", { role: "columnheader" }, name))),
      this.tasks.map((task) => this.row(task)));
  }

  mark(label, tasks, on) {
    const onchange = () => this.select(tasks, !on);
    return h("input", { type: "checkbox", "aria-label": label, checked: on, onchange });
  }

  row(task) {
    const cell = (name, ...children) => h("span", { role: "cell", class: name }, ...children);
    const id = task.taskId;
    const on = this.selected.has(id);
    const called = args(task) && h("small.args.mono", null, args(task));
    return h("div.row", { role: "row", key: id, "data-row": id, class: on ? "selected" : "" },
      cell("mark", this.mark(`Select ${id}`, [task], on)),
      cell("state", badge(task.state, task.state === "queued" ? task.gate : null), progressBar(task.progress)),
      cell("what", h("a", { href: `#/tasks/${enc(id)}` }, title(task), called), h("small.mono", null, id),
        task.error && h("small.error", { title: task.error }, cut(task.error, 110)),
        task.notice && h("small.error", { title: task.notice }, cut(task.notice, 110))),
      cell("agent", h("a", { href: `#/tasks?agentId=${enc(task.agentId)}` }, task.agentId),
        task.sessionKey && h("small.mono", null, cut(task.sessionKey, 32))),
      cell("lane", task.lane), cell("tries", `${task.attempts}/${task.maxAttempts}`),
      cell("took", task.latencyMs === undefined ? "–" : span(task.latencyMs)), cell("created", time(task.createdAt)));
  }

  nothing() {
    if (Object.keys(this.filter).length || !this.pager.first) {
      return empty("No matching tasks", this.next ? "No match in the tasks searched so far; continue with “Older”."
        : "Remove a filter, or wait: new matches appear by themselves.");
    }
    return empty("No tasks yet", "Submit a task; it appears here immediately:",
      curl("-X POST", "/tasks", { handler: "echo", agentId: me(), params: { hello: "world" } }));
  }

  // --- actions on many tasks ------------------------------------------------------------------

  select(tasks, on) {
    for (const task of tasks) {
      if (on) this.selected.set(task.taskId, task);
      else this.selected.delete(task.taskId);
    }
    this.draw();
  }

  tools() {
    const count = this.selected.size;
    if (count) {
      return [h("span.muted", { role: "status" }, `${number(count)} selected`),
        Object.keys(VERBS).map((verb) => this.verb(verb, () => this.doSelected(verb), `POST /tasks/{id}/${verb}`)),
        button("Clear", () => { this.selected.clear(); this.draw(); }, { class: "quiet" })];
    }
    return [h("a.button", { href: "#/submit" }, "New task"), Object.keys(VERBS).map((verb) =>
      this.verb(verb, () => this.doAll(verb), `POST /tasks/${verb}`, this.notAll(verb), " all matches"))];
  }

  // Why the action on all matches is disabled; "" if it is enabled.
  notAll(verb) {
    const { states, done } = VERBS[verb];
    const chosen = (this.filter.state ?? "").split(",").filter(Boolean);
    if (chosen.length && !chosen.some((state) => states.includes(state))) return `No task in this state can be ${done}`;
    return Object.keys(this.conditions()).length ? "" : "Set a filter, or select tasks first";
  }

  verb(verb, act, needs, why = "", rest = "") {
    const { name, danger } = VERBS[verb];
    const props = { disabled: Boolean(why), title: why || null, class: danger ? "danger-text" : "", needs };
    return button(`${name}${rest}…`, act, props);
  }

  doSelected(verb) {
    const { name, states, said, danger } = VERBS[verb];
    const ids = [...this.selected.values()].filter((task) => states.includes(task.state)).map((task) => task.taskId);
    const other = this.selected.size - ids.length;
    const stays = plural(other, "selected task is", "selected tasks are");
    const text = other ? `${stays} in a state that does not allow this and will not change.` : "";
    if (!ids.length) return this.noneOf(verb);
    const what = `${name} ${plural(ids.length, "task")}`;
    return confirmed({ title: `${what}?`, text, confirm: what, danger }, async () => {
      const outcomes = await Promise.allSettled(ids.map((id) => post(`/tasks/${enc(id)}/${verb}`)));
      this.selected.clear();
      this.again();
      return outcomes.filter((one) => one.status === "fulfilled").length;
    }, (done) => `${plural(done, "task")} ${said}${done < ids.length ? `, ${ids.length - done} could not be` : ""}`);
  }

  async doAll(verb) {
    const { name, said, danger } = VERBS[verb];
    const body = this.conditions();
    if (body.where) body.where = [body.where];
    const found = await attempt(() => post(`/tasks/${verb}`, { ...body, dryRun: true }));
    if (!found) return;
    if (!found.matched) { this.noneOf(verb); return; }
    const what = `${name} ${plural(found.matched, "task")}`;
    const filter = Object.entries(body).map(([key, value]) => `${key} ${value}`).join(", ");
    const text = `All current matches: ${filter}. This includes matches on other pages.`;
    await confirmed({ title: `${what}?`, text, confirm: what, danger },
      () => post(`/tasks/${verb}`, body), (answer) => `${plural(answer.changed, "task")} ${said}`);
    this.again();
  }

  noneOf(verb) {
    toast(`None of them can be ${VERBS[verb].done}`, "error");
  }
}
