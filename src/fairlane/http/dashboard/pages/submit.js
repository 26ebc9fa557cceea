// Submit a task, or run one again with changes.

import { h, fill, toast } from "../dom.js";
import { enc, get, post, refusal } from "../api.js";
import { pretty } from "../format.js";
import { head, loading, me, problem } from "../pieces.js";
import { area, choice, duration, field, json, select, send, text, word } from "../forms.js";

const KINDS = [["handler", "a handler"], ["instruction", "an instruction for an agent"], ["action", "a browser action"]];
const PRIORITIES = [["", "normal"], ["critical"], ["high"], ["low"]];
const NUMBERS = { "-20": "critical", "-10": "high", "0": "", "10": "low" };
// What is copied from a task besides the fields of the form.
const REST = ["tabId", "ref", "selector", "metadata", "retryPolicy", "timeoutMs", "preemptible", "callbackUrl",
  "sender", "media"];

export function show(root, { query }) {
  fill(root, head("New task"), loading());
  begin(root, query).catch((error) => fill(root, head("New task"), problem(error)));
  return () => {};
}

async function begin(root, query) {
  const [lanes, workers, old] = await Promise.all([
    get("/lanes"), refusal("GET /workers") ? { handlers: [] } : get("/workers"),
    query.from ? get(`/tasks/${enc(query.from)}`) : null,
  ]);
  const from = old ?? { agentId: query.agentId ?? me(), handler: query.handler, lane: query.lane };
  draw(root, from, { lanes: lanes.lanes.map((lane) => lane.name), handlers: workers.handlers, again: Boolean(old) });
}

const kindOf = (task) => KINDS.map(([name]) => name).find((name) => task[name]) ?? "handler";
const asText = (value) => (value && Object.keys(value).length ? pretty(value) : "");
const restOf = (task) => Object.fromEntries(REST.filter((name) => task[name] !== undefined)
  .map((name) => [name, task[name]]));

function draw(root, old, { lanes, handlers, again }) {
  const kind = select("kind", KINDS, kindOf(old));
  const priority = NUMBERS[String(old.priority ?? 0)] ?? String(old.priority);
  const priorities = PRIORITIES.some(([one]) => one === priority) ? PRIORITIES : [...PRIORITIES, [priority]];
  const [handler, known] = choice("handler", handlers, { value: old.handler ?? "", placeholder: handlers[0] ?? "echo" });
  const outcome = h("div", { "aria-live": "polite" });
  const why = refusal("POST /tasks");
  const of = {
    handler: h("div.kind", null, field("Handler", handler,
      { hint: handlers.length ? `Workers offer ${handlers.slice(0, 12).join(", ")}` : "No worker is known" }), known),
    instruction: h("div.kind", null, field("Instruction", area("instruction", old.instruction ?? "", 4))),
    action: h("div.kind", null, field("Action", text("action", { value: old.action ?? "", placeholder: "click" }),
      { hint: "Its tab and element go to the further fields" })),
  };
  const choose = () => { for (const [name, part] of Object.entries(of)) part.hidden = name !== kind.value; };
  kind.onchange = choose;
  const form = h("form.form.card", { onsubmit: (event) => { event.preventDefault(); submit(form, outcome); } },
    h("div.split", null, field("Run", kind), ...Object.values(of)),
    field("Params", area("params", asText(old.params)), { hint: "A JSON object that the run gets" }),
    h("div.split.three", null,
      field("Agent", text("agentId", { value: old.agentId ?? "" }), { hint: "Work is shared fairly between agents" }),
      field("Lane", select("lane", [["", "default"], ...lanes.map((lane) => [lane])], old.lane ?? "")),
      field("Priority", select("priority", priorities, priority)),
      field("Start after", text("delayMs", { placeholder: "now" }), { hint: "30s, 5m, 2h" }),
      field("Session", text("sessionKey", { value: old.sessionKey ?? "" }), { hint: "Its tasks run in order" })),
    h("div.split", null,
      field("Needs", area("needs", asText(old.needs), 3), { hint: 'Resources, such as {"gpt": {"tokens": 3000}}' }),
      field("Further fields", area("rest", asText(again ? restOf(old) : {}), 3), { hint: "Of POST /tasks, as JSON" })),
    again && old.llmConfig && h("p.muted", null, "The llmConfig of the task is not copied: its secrets are not shown."),
    outcome,
    h("div.actions", null, h("button.primary", { type: "submit", disabled: Boolean(why), title: why || null }, "Submit")));
  choose();
  fill(root, again && h("p.crumbs", null, h("a", { href: "#/tasks" }, "Tasks"), " / ",
    h("a.mono", { href: `#/tasks/${enc(old.taskId)}` }, old.taskId)),
  head(again ? "Run again with changes" : "New task"), form);
  (again ? form.elements.params : form.elements[kind.value]).focus();
}

function asked(form) {
  const kind = form.elements.kind.value;
  const rest = json(form, "rest", "Further fields") ?? {};
  const delayMs = duration(form, "delayMs", "The delay");
  return { ...rest, [kind]: form.elements[kind].value.trim(), params: json(form, "params", "Params"),
    agentId: word(form, "agentId"), lane: word(form, "lane"), priority: number(word(form, "priority")), delayMs,
    sessionKey: word(form, "sessionKey"), needs: json(form, "needs", "Needs") };
}

const number = (given) => (/^-?\d+$/.test(given ?? "") ? Number(given) : given);

async function submit(form, outcome) {
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  const answer = await send(form, outcome, async () => post("/tasks", asked(form)));
  button.disabled = false;
  if (!answer) return;
  toast("Submitted");
  for (const warning of answer.warnings ?? []) toast(warning, "error");
  location.hash = `#/tasks/${enc(answer.taskId)}`;
}
