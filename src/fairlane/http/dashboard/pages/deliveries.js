// Webhook deliveries: waiting, delivered and given up. Any of them can be sent again.

import { h } from "../dom.js";
import { enc, post } from "../api.js";
import { badge, cut, plural, taskLink, batchLink, time } from "../format.js";
import { attempt, button, card, curl, empty, me, table } from "../pieces.js";
import { listPage } from "../lists.js";

const STATES = [["", "All"], ["due", "Due"], ["delivered", "Delivered"], ["given_up", "Given up"]];

const ABOUT = { tsk_: taskLink, cron: taskLink, bat_: batchLink };

export const show = (root, { query }) => listPage(root, { name: "deliveries", title: "Deliveries", states: STATES,
  query, rows });

function rows(deliveries, reread, { chosen }) {
  if (!deliveries.length) {
    return h("section.card", null, chosen ? empty("None", "No webhook is in this state.")
      : empty("No webhooks yet", "A task with a callbackUrl sends a webhook when it ends:",
        curl("-X POST", "/tasks", { handler: "echo", agentId: me(), callbackUrl: "https://example.com/hook" })));
  }
  const about = ({ taskId = "–" }) => ABOUT[taskId.slice(0, 4)]?.(taskId) ?? h("span.mono", null, taskId);
  const answer = (one) => [one.lastStatus ?? "", " ", h("span.error", null, cut(one.lastError ?? "", 80))];
  const when = (one) => (one.state === "due" && one.nextAt ? ["next ", time(one.nextAt)]
    : time(one.settledAt ?? one.createdAt));
  const again = (one) => attempt(() => post(`/deliveries/${enc(one.id)}/redeliver`), "It will be sent again")
    .then(reread);
  return [receivers(deliveries), h("section.card", null, table([
    { name: "State", cell: (one) => badge(one.state) },
    { name: "Event", cell: (one) => one.event },
    { name: "About", cell: about },
    { name: "To", cell: (one) => h("span.mono", null, cut(one.url ?? "", 60)) },
    { name: "Tries", class: "right", cell: (one) => one.attempts },
    { name: "Last response", cell: answer },
    { name: "When", class: "right", cell: when },
    { name: "", class: "right", cell: (one) => one.state !== "due"
      && button("Send again", () => again(one),
        { class: "small", "aria-label": `Send ${one.id} again`, needs: "POST /deliveries/{id}/redeliver" }) },
  ], deliveries, { key: (one) => one.id, label: "Deliveries" }))];
}

// Receivers on this page that refuse or do not respond, the worst first.
function receivers(deliveries) {
  const found = new Map();
  for (const one of deliveries) {
    if (one.state === "delivered" || !one.lastError) continue;
    const to = addressOf(one.url ?? "");
    const known = found.get(to) ?? { to, count: 0, given: 0, error: one.lastError };
    found.set(to, { ...known, count: known.count + 1, given: known.given + (one.state === "given_up") });
  }
  const rows = [...found.values()].sort((one, other) => other.count - one.count);
  return rows.length > 0 && card("Receivers with problems", null, h("ul.plain", null, rows.map((row) =>
    h("li", { key: row.to }, h("span.mono", null, row.to), h("span.muted", null,
      `${plural(row.count, "webhook")} failing${row.given ? `, ${row.given} given up` : ""}`),
    h("span.error", null, cut(row.error, 120))))));
}

function addressOf(url) {
  try {
    return new URL(url).host;
  } catch {
    return cut(url, 60) || "unknown";
  }
}
