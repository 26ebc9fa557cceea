// Failures by error: failed and parked tasks whose errors are alike, and a retry for all of them.

import { h } from "../dom.js";
import { enc, get, post, query as asQuery } from "../api.js";
import { cut, number, plural, taskLink, time } from "../format.js";
import { attempt, button, confirmed, table } from "../pieces.js";
import { listCard, listPage } from "../lists.js";

const WINDOWS = [["1h", "Last hour"], ["24h", "24 hours"], ["7d", "7 days"], ["", "All"]];

export const show = (root, { query }) => listPage(root, { name: "failures", title: "Failures", states: WINDOWS,
  filter: "since", first: "24h", query, rows, read: ({ since }) => get("/failures", { since, handler: query.handler }),
  watched: { lazyMs: 5000 }, tools: (_, found) => found && h("span.muted", null, summary(found)) });

const summary = ({ failures, considered, complete }) => `${plural(considered, "task")} with ${plural(failures.length, "error")}${
  complete ? "" : ", only the newest were counted"}`;

const rows = (failures, again, { chosen }) => listCard(failures, (all) => table([
  { name: "Error", cell: (one) => [h("span.error", { title: one.example ?? "" }, cut(one.error || "without an error message", 160)),
    h("small.ids", null, one.taskIds.slice(0, 3).map((id) => [taskLink(id), " "]))] },
  { name: "Tasks", class: "right", cell: (one) => h("b", null, number(one.count)) },
  { name: "Handlers", cell: (one) => Object.entries(one.handlers).slice(0, 4)
    .map(([name, count]) => `${name} ${number(count)}`).join(", ") },
  { name: "First", class: "right", cell: (one) => time(one.firstSeen) },
  { name: "Last", class: "right", cell: (one) => time(one.lastSeen) },
  { name: "", class: "right", cell: (one) => h("div.actions", null,
    h("a.button.small", { href: `#/tasks${asQuery({ failure: one.fingerprint, finishedSince: chosen })}` }, "Tasks"),
    button("Retry…", () => retry(one, chosen, again), { class: "small", "aria-label": `Retry ${cut(one.error, 60)}`,
      needs: "POST /failures/{fingerprint}/retry" })) },
], all, { key: (one) => one.fingerprint, label: "Failures" }), "Nothing has failed",
"Failed and parked tasks appear here by their error, the most frequent first.");

async function retry(one, since, again) {
  const path = `/failures/${enc(one.fingerprint)}/retry`;
  const body = { since: since || undefined };
  const found = await attempt(() => post(path, { ...body, dryRun: true }));
  if (!found) return;
  const what = `Retry ${plural(found.matched, "task")}`;
  await confirmed({ title: `${what}?`, text: one.error, confirm: what }, () => post(path, body),
    (done) => `${plural(done.changed, "task")} queued again`);
  again();
}
