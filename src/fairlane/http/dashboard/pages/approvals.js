// Approvals: the list, the exact content of each, and a form to decide.

import { h, morph } from "../dom.js";
import { enc, get, post, refusal } from "../api.js";
import { badge, taskLink, time } from "../format.js";
import { attempt, curl, empty, head, loading, me, problem, table } from "../pieces.js";
import { listPage } from "../lists.js";
import { watch } from "../live.js";

const STATES = [["open", "Open"], ["", "All"], ["approved", "Approved"], ["rejected", "Rejected"],
  ["expired", "Expired"], ["cancelled", "Cancelled"]];
const LONG_TEXT = 200;
const WHOLE = /^[+-]?\d{1,15}$/;

export const show = (root, { query }) => listPage(root, { name: "approvals", title: "Approvals", states: STATES,
  first: "open", query, rows });

function rows(approvals, _, { chosen }) {
  if (!approvals.length) {
    return h("section.card", null, chosen === "open"
      ? empty("No approval is open", "A task with an approval waits here until a person decides:",
        curl("-X POST", "/tasks", { handler: "echo", agentId: me(), approval: { title: "Send it?" } }))
      : empty("None", "No approval is in this state."));
  }
  return h("section.card", null, table([
    { name: "Question", cell: (one) => h("a", { href: `#/approvals/${enc(one.id)}` }, one.title) },
    { name: "State", cell: (one) => badge(one.state) },
    { name: "Agent", cell: (one) => one.agentId },
    { name: "Task", cell: (one) => (one.taskId ? taskLink(one.taskId) : one.resource ?? "–") },
    { name: "Opened", class: "right", cell: (one) => time(one.openedAt) },
    { name: "Expires", class: "right", cell: (one) => (one.expiresAt ? time(one.expiresAt) : "never") },
  ], approvals, { key: (one) => one.id, label: "Approvals" }));
}

// --- one approval -----------------------------------------------------------------------------

export function showOne(root, { id }) {
  const seen = {};
  const draw = () => morph(root, h("div", { class: root.className }, head("Approval"),
    seen.error ? problem(seen.error) : seen.found ? one(seen, reread) : loading()));
  const watcher = watch(async () => {
    try {
      seen.found = await get(`/approvals/${enc(id)}`);
      seen.error = undefined;
    } catch (error) {
      seen.error = error;
    }
    draw();
  });
  const reread = () => watcher.now();
  draw();
  return watcher.end;
}

function one({ found }, reread) {
  const facts = [
    ["State", badge(found.state)],
    ["Agent", found.agentId],
    found.taskId && ["Task", taskLink(found.taskId)],
    found.resource && ["Resource", found.resource],
    ["Opened", time(found.openedAt)],
    found.expiresAt && ["Expires", [time(found.expiresAt), found.resource ? ", when the budget resets" : `, then ${found.onExpiry}`]],
    found.approvers && ["Approvers", found.approvers.join(", ")],
    found.count > 1 && ["Approvals", `${found.votes.length} of ${found.count}`],
    found.decidedBy && ["Decided by", found.decidedBy],
    found.decidedAt && ["Decided", time(found.decidedAt)],
    found.comment && ["Comment", found.comment],
  ].filter(Boolean);
  return [
    h("section.card.approval", { key: "question" },
      h("h2", null, found.title),
      found.detail && h("pre.detail", null, found.detail),
      h("dl.particulars", null, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]))),
    found.request && h("section.card.approval", { key: "request" }, h("h2", null, "What will run"),
      h("pre", { tabindex: "0" }, JSON.stringify(found.request, null, 2))),
    found.answer && h("section.card.approval", { key: "answer" }, h("h2", null, "Answer"),
      h("pre", { tabindex: "0" }, JSON.stringify(found.answer, null, 2))),
    found.state === "open" && decision(found, reread),
  ];
}

// The form keeps typed text when the page is fetched again, until the approval changes.
function decision(found, reread) {
  const fields = found.form && !found.answer ? Object.entries(found.form.properties) : [];
  const required = new Set(found.form?.required ?? []);
  const why = refusal("POST /approvals/{id}/decide");
  const send = async (event, word) => {
    const form = event.currentTarget.form ?? event.currentTarget;
    if (word === "approve" && !form.reportValidity()) return;
    const body = { decision: word, hash: found.hash };
    const comment = form.elements.comment.value.trim();
    if (comment) body.comment = comment;
    if (word === "approve" && fields.length) body.answer = answer(fields, form);
    const said = word === "approve" ? "Approved" : "Rejected";
    await attempt(() => post(`/approvals/${enc(found.id)}/decide`, body), said);
    reread();
  };
  return h("section.card.approval", { key: `decide ${found.hash}` }, h("h2", null, "Decide"),
    h("form.decide", { keep: found.hash, onsubmit: (event) => { event.preventDefault(); send(event, "approve"); } },
      fields.map(([name, field]) => control(name, field, required.has(name))),
      h("label", null, h("span", null, "Comment"), h("textarea", { name: "comment", rows: "2", maxlength: "2000" })),
      why && h("p.note", { role: "note" }, why),
      h("div.actions", null,
        h("button", { type: "button", disabled: Boolean(why), onclick: (event) => send(event, "reject") }, "Reject"),
        h("button.primary", { type: "submit", disabled: Boolean(why) }, "Approve"))));
}

function control(name, field, required) {
  const initial = field.default ?? "";
  const props = { name: `f.${name}`, required: required && field.type !== "boolean" };
  let input;
  if (field.type === "boolean") {
    input = h("input", { ...props, type: "checkbox", checked: field.default === true });
  } else if (field.enum) {
    input = h("select", props, h("option", { value: "" }, ""),
      field.enum.map((choice) => h("option", { value: String(choice), selected: choice === field.default }, choice)));
  } else if (field.type === "number" || field.type === "integer") {
    input = h("input", { ...props, type: "number", step: field.type === "integer" ? "1" : "any",
      min: field.minimum, max: field.maximum, value: String(initial) });
  } else if (field.type === "array" || (field.maxLength ?? Infinity) > LONG_TEXT) {
    input = h("textarea", { ...props, rows: field.type === "array" ? "3" : "2" },
      Array.isArray(initial) ? initial.join("\n") : initial);
  } else {
    input = h("input", { ...props, type: "text", minlength: field.minLength, maxlength: field.maxLength,
      value: String(initial) });
  }
  const more = [field.description, field.type === "array" && "One per line."].filter(Boolean).join(" ");
  return h("label", { class: field.type === "boolean" ? "check" : null }, h("span", null, field.title ?? name,
    required && h("abbr", { title: "required" }, " *")), input, more && h("small", null, more));
}

function answer(fields, form) {
  const values = {};
  for (const [name, field] of fields) {
    const input = form.elements[`f.${name}`];
    if (field.type === "boolean") values[name] = input.checked;
    else if (field.type === "array") {
      const lines = input.value.split("\n").map((line) => line.trim()).filter(Boolean);
      if (lines.length) values[name] = lines.map((line) => typed(field.items?.type, line));
    } else if (input.value !== "") values[name] = typed(field.type, input.value);
  }
  return values;
}

// A value that does not fit its type stays text; the server reports the problem.
function typed(kind, text) {
  if (kind === "integer" && WHOLE.test(text.trim())) return Number(text);
  if (kind === "number" && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (kind === "boolean" && (text === "true" || text === "false")) return text === "true";
  return text;
}
