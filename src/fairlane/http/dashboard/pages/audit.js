// The audit log: what operators did, what was denied, what was blocked.

import { h } from "../dom.js";
import { cut, taskLink, time } from "../format.js";
import { table } from "../pieces.js";
import { listCard, listPage } from "../lists.js";

const OUTCOMES = [["", "All"], ["done", "Done"], ["refused", "Refused"], ["denied", "Denied"], ["blocked", "Blocked"]];

export const show = (root, { query }) => listPage(root, { name: "audit", key: "entries", title: "Audit", states: OUTCOMES,
  filter: "outcome", query, limit: 100, rows, watched: { lazyMs: 5000 } });

const rows = (entries, _, { chosen }) => listCard(entries, (all) => table([
  { name: "When", class: "narrow", cell: (one) => time(one.at) },
  { name: "Who", cell: (one) => one.who },
  { name: "Action", cell: (one) => h("span.mono", null, one.action) },
  { name: "Target", cell: (one) => (one.target?.startsWith("tsk_") ? taskLink(one.target) : cut(one.target ?? "–", 60)) },
  { name: "Outcome", cell: (one) => h("span.health", { class: one.outcome === "done" ? "good" : "bad" }, one.outcome) },
  { name: "Detail", cell: (one) => cut(one.detail ?? "", 160) },
], all, { key: (one) => one.id, label: "Audit log" }), chosen ? "None" : "Nothing yet",
chosen ? "No entry has this outcome." : "Changes by operators, denied requests and blocked targets appear here.");
