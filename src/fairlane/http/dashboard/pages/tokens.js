// Access tokens: who may do what, when each was last used; create and revoke.

import { h, sheet } from "../dom.js";
import { enc, get, post, remove } from "../api.js";
import { time } from "../format.js";
import { button, confirmed, copyable, table } from "../pieces.js";
import { dialog, duration, field, FieldError, text, word } from "../forms.js";
import { listCard, listPage } from "../lists.js";

const SCOPES = ["submit", "read", "cancel", "lease", "approve", "operate", "admin"];
const USUAL = ["submit", "read", "cancel"];

export const show = (root) => listPage(root, { name: "tokens", title: "Tokens", rows, read: () => get("/tokens"),
  tools: (again) => button("New token…", () => create(again), { class: "primary", needs: "POST /tokens" }) });

const rows = (tokens, again) => listCard(tokens, (all) => table([
  { name: "Token", cell: (one) => [h("b", null, one.name), " ", h("small.mono", null, one.id)] },
  { name: "State", cell: state },
  { name: "Agent", cell: (one) => one.agentId ?? "all" },
  { name: "Scopes", cell: (one) => one.scopes.join(", ") },
  { name: "Limits", cell: (one) => [one.rate, one.maxOpen && `${one.maxOpen} open`].filter(Boolean).join(", ") || "–" },
  { name: "Last used", class: "right", cell: (one) => (one.lastUsedAt ? time(one.lastUsedAt) : "never") },
  { name: "Expires", class: "right", cell: (one) => (one.expiresAt ? time(one.expiresAt) : "never") },
  { name: "", class: "right", cell: (one) => !one.revokedAt && button("Revoke…", () => revoke(one, again),
    { class: "small danger-text", "aria-label": `Revoke ${one.name}`, needs: "DELETE /tokens/{id}" }) },
], all, { key: (one) => one.id, label: "Tokens" }), "There are no tokens",
"Without tokens, any caller that reaches this server may do everything. The first token turns that off:",
"fairlane token create --name me --scope all");

function state(one) {
  const over = one.revokedAt ? "revoked" : one.expiresAt && Date.parse(one.expiresAt) < Date.now() ? "expired" : "";
  return h("span.health", { class: over ? "bad" : "good" }, over || "valid");
}

function create(again) {
  const scopes = h("fieldset.checks", null, h("legend", null, "Scopes"), SCOPES.map((scope) => h("label.check", null,
    h("input", { type: "checkbox", name: "scope", value: scope, checked: USUAL.includes(scope) }), scope)));
  const fields = [field("Name", text("name", { required: true }), { hint: "For operators" }),
    field("Agent", text("agentId"), { hint: "Binds it to the data of this agent" }), scopes,
    field("Expires after", text("expiresAt", { placeholder: "never" }), { hint: "12h, 90d" }),
    field("Rate", text("rate", { placeholder: "no limit" }), { hint: "Requests, such as 50/s or 600/m" })];
  dialog({ title: "New token", verb: "Create",
    about: "If this is the first token, log in with it afterwards: from then on a token is required." },
  fields, async (form) => {
    const chosen = [...form.querySelectorAll("[name=scope]:checked")].map((box) => box.value);
    if (!chosen.length) throw new FieldError("", "Choose at least one scope");
    const lasts = duration(form, "expiresAt", "The time");
    const made = await post("/tokens", { name: word(form, "name"), agentId: word(form, "agentId"), scopes: chosen,
      rate: word(form, "rate"), expiresAt: lasts && new Date(Date.now() + lasts).toISOString() });
    again();
    sheet(`The token ${made.name}`, h("p", null, "It is shown only now:"), copyable(made.token));
    return true;
  });
}

const revoke = (one, again) => confirmed({ title: `Revoke ${one.name}?`, text: "Its callers are refused from now on.",
  confirm: "Revoke the token", danger: true }, () => remove(`/tokens/${enc(one.id)}`), "Revoked").then(again);
