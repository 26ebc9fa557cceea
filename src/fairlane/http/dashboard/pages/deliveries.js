// Webhook deliveries: waiting, delivered and given up. Any of them can be sent again.

import { h, morph } from "../dom.js";
import { enc, get, post } from "../api.js";
import { badge, cut, taskLink, batchLink, time } from "../format.js";
import { attempt, button, curl, empty, head, loading, me, Pager, table } from "../pieces.js";
import { watch } from "../live.js";

const PAGE = 50;
const STATES = [["", "All"], ["due", "Due"], ["delivered", "Delivered"], ["given_up", "Given up"]];

const ABOUT = { tsk_: taskLink, cron: taskLink, bat_: batchLink };

export function show(root, { query }) {
  const pager = new Pager();
  const seen = { state: query.state ?? "" };
  const turn = () => { draw(); watcher.now(); };
  const choose = (state) => { seen.state = state; seen.found = undefined; pager.reset(); turn(); };
  const draw = () => morph(root, h("div", { class: root.className }, head("Deliveries", filter(seen, choose)),
    body(seen, turn),
    seen.found && pager.controls(seen.found.nextCursor, turn)));
  const watcher = watch(async () => {
    const { state } = seen;
    const found = await get("/deliveries", { state, limit: PAGE, cursor: pager.cursor });
    if (state === seen.state) seen.found = found;
    draw();
  });
  draw();
  return watcher.end;
}

function filter(seen, choose) {
  return h("div.segments", { role: "group", "aria-label": "State" }, STATES.map(([state, name]) =>
    button(name, () => choose(state), { "aria-pressed": String(state === seen.state) })));
}

function body({ found, state }, reread) {
  if (found === undefined) return loading();
  if (!found.deliveries.length) {
    return h("section.card", null, state ? empty("None", "No webhook is in this state.")
      : empty("No webhooks yet", "A task with a callbackUrl sends a webhook when it ends:",
        curl("-X POST", "/tasks", { handler: "echo", agentId: me(), callbackUrl: "https://example.com/hook" })));
  }
  const about = ({ taskId = "–" }) => ABOUT[taskId.slice(0, 4)]?.(taskId) ?? h("span.mono", null, taskId);
  const answer = (one) => [one.lastStatus ?? "", " ", h("span.error", null, cut(one.lastError ?? "", 80))];
  const when = (one) => (one.state === "due" && one.nextAt ? ["next ", time(one.nextAt)]
    : time(one.settledAt ?? one.createdAt));
  const again = (one) => attempt(() => post(`/deliveries/${enc(one.id)}/redeliver`), "It will be sent again")
    .then(reread);
  return h("section.card", null, table([
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
  ], found.deliveries, { key: (one) => one.id, label: "Deliveries" }));
}
