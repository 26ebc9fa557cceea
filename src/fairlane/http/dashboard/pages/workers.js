// Workers: where they run, what they can run, and which are silent.

import { h } from "../dom.js";
import { get } from "../api.js";
import { number, plural, time } from "../format.js";
import { empty, table } from "../pieces.js";
import { listPage } from "../lists.js";

export const show = (root) => listPage(root, { name: "workers", title: "Workers", rows: list, read: () => get("/workers"),
  watched: { lazyMs: 5000, onlyLazy: true }, tools: (_, found) => found && h("span.muted", null, summary(found.workers)) });

function summary(workers) {
  const online = workers.filter((one) => one.state === "online").length;
  const others = workers.length - online;
  return `${plural(online, "worker")} online${others ? `, ${number(others)} not` : ""}`;
}

function list(workers) {
  if (!workers.length) {
    return h("section.card", null, empty("No worker is known",
      "A worker leases tasks and runs their handlers. Start one for the handlers in a Python module:",
      `fairlane worker my_module:worker --url ${location.origin}`));
  }
  return h("section.card", null, table([
    { name: "Worker", cell: (one) => h("span.mono", null, one.name) },
    { name: "State", cell: (one) => h("span.health", { class: one.state === "online" ? "good" : "bad" }, one.state) },
    { name: "Running", class: "right", cell: (one) =>
      `${number(one.running)}${one.slots === null ? "" : ` / ${number(one.slots)}`}` },
    { name: "Offers", cell: offers },
    { name: "Address", cell: (one) => one.address ?? "–" },
    { name: "Version", cell: (one) => one.version ?? "–" },
    { name: "Last seen", cell: (one) => time(one.lastSeenAt) },
  ], workers, { key: (one) => one.name, label: "Workers" }));
}

function offers(one) {
  const limits = [...(one.lanes ?? []).map((lane) => `lane ${lane}`), ...(one.agentId ? [`agent ${one.agentId}`] : [])];
  const words = [...(one.anyHandler ? ["any handler"] : []), ...one.handlers, ...one.kinds.map((kind) => `(${kind})`)];
  return h("span.offers", null, words.join(", ") || "–",
    limits.length > 0 && h("small.muted", null, ` only ${limits.join(", ")}`));
}
