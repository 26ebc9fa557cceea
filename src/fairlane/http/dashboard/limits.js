// Change the limits of a lane or an agent where they are shown. Each change is a version of the policy.

import { h } from "./dom.js";
import { get, patch, query, refusal } from "./api.js";
import { dialog, field, FieldError, text, word } from "./forms.js";

const LANE = {
  maxInflight: ["Tasks at once", "Ceiling of the lane"],
  maxPerAgentInflight: ["Tasks at once per agent", "Empty: no limit"],
  maxQueueSize: ["Waiting tasks", "More are refused; empty: the default"],
};
const AGENT = {
  weight: ["Weight", "An agent with weight 2 gets twice the share; empty: 1"],
  maxInflight: ["Tasks at once in each lane", "Empty: as the lane allows"],
};

// A number that opens the form of its limits.
export function limitButton(shown, label, open) {
  const why = refusal("PATCH /policy");
  return h("button.limit", { type: "button", "aria-label": label, title: why || label, disabled: Boolean(why),
    onclick: open }, shown);
}

export const editLane = (name, again) => edit("lanes", name, LANE, `Limits of lane ${name}`, again);
export const editAgent = (name, again) => edit("agents", name, AGENT, `Share of agent ${name}`, again);

async function edit(part, name, known, title, again) {
  const { version, policy } = await get("/policy");
  const old = policy[part]?.[name] ?? {};
  const fields = Object.entries(known).map(([key, [label, hint]]) =>
    field(label, text(key, { inputmode: "decimal", value: String(old[key] ?? "") }), { hint }));
  const note = field("Note", text("note", { maxlength: 500, placeholder: "Reason for the change" }));
  dialog({ title, verb: "Apply", about: "Applies at once, without a restart." }, [...fields, note], async (form) => {
    const asked = Object.keys(known).map((key) => [key, number(form, key, known[key][0])]);
    const changed = asked.filter(([key, value]) => value !== (old[key] ?? null));
    if (!changed.length) return "No changes";
    const answer = await patch(`/policy${query({ expectedVersion: version, note: word(form, "note") })}`,
      { [part]: { [name]: Object.fromEntries(changed) } });
    again?.();
    return `Version ${answer.version} of the policy is in force`;
  });
}

function number(form, name, label) {
  const given = word(form, name);
  if (given === undefined) return null;
  if (!/^\d+(\.\d+)?$/.test(given)) throw new FieldError(name, `${label} must be a number`);
  return Number(given);
}
