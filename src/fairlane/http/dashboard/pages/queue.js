// The queue: entries in the order in which they will run.

import { post } from "../api.js";
import { badge, cut, taskLink, time } from "../format.js";
import { button, curl, table } from "../pieces.js";
import { area, dialog, field, json, select, text, word } from "../forms.js";
import { listCard, listPage } from "../lists.js";

const STATES = [["", "All"], ["pending", "Pending"], ["ready", "Ready"], ["leased", "Leased"], ["parked", "Parked"],
  ["drained", "Drained"], ["failed", "Failed"]];
const PRIORITIES = [["", "normal"], ["critical"], ["high"], ["low"]];

export const show = (root, { query }) => listPage(root, { name: "queue", key: "entries", title: "Queue", states: STATES,
  filter: "status", query, rows, tools: (again) => button("Add entry…", () => add(again), { class: "primary", needs: "POST /queue" }) });

const rows = (entries, _, { chosen }) => listCard(entries, (all) => table([
  { name: "Entry", cell: (one) => taskLink(one.id) },
  { name: "Status", cell: (one) => badge(one.status) },
  { name: "What", cell: (one) => cut([one.workflowId ?? one.appId, one.runId].filter(Boolean).join(" · ") || "–", 80) },
  { name: "Note", cell: (one) => cut(one.note ?? "", 100) },
  { name: "Priority", class: "right", cell: (one) => one.priority ?? "–" },
  { name: "Attempts", class: "right", cell: (one) => one.attempts ?? 0 },
  { name: "Added", class: "right", cell: (one) => time(one.enqueuedAt ?? one.createdAt) },
], all, { key: (one) => one.id, label: "Queue entries" }), chosen ? "None" : "The queue is empty",
chosen ? "No entry has this status." : "An entry waits here until a worker leases it, or a caller drains it:",
!chosen && curl("-X POST", "/queue", { workflowId: "release", note: "Version 2" }));

function add(again) {
  const fields = [field("Workflow", text("workflowId")), field("App", text("appId")), field("Note", text("note")),
    field("Priority", select("priority", PRIORITIES, "")),
    field("Inputs", area("inputs", "", 4), { hint: "A JSON object" })];
  dialog({ title: "Add a queue entry", verb: "Add" }, fields, async (form) => {
    const names = ["workflowId", "appId", "note", "priority"];
    await post("/queue", { ...Object.fromEntries(names.map((name) => [name, word(form, name)])),
      inputs: json(form, "inputs", "Inputs") });
    again();
    return "Added";
  });
}
