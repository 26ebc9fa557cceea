// Templates: instructions with parameters, filled in and submitted.

import { h } from "../dom.js";
import { enc, get, patch, post, remove } from "../api.js";
import { cut, number, pretty, time } from "../format.js";
import { button, confirmed, curl, table } from "../pieces.js";
import { area, dialog, field, json, select, text, word } from "../forms.js";
import { listCard, listPage } from "../lists.js";

const NUMERIC = ["number", "integer"];
const EDITED = ["name", "description", "instruction", "priority", "parameters", "timeoutMs", "retryPolicy", "metadata", "needs"];
const EXAMPLE = { name: "Digest", instruction: "Summarise the week for {{team}}", parameters: [{ name: "team", required: true }] };

export const show = (root) => listPage(root, { name: "templates", title: "Templates", rows,
  tools: (again) => button("New template…", () => edit(null, again), { class: "primary", needs: "POST /templates" }) });

const rows = (templates, again) => listCard(templates, (all) => table([
  { name: "Template", cell: (one) => [h("b", null, one.name), " ", h("small", null, cut(one.description, 80))] },
  { name: "Instruction", cell: (one) => cut(one.instruction, 140) },
  { name: "Parameters", cell: (one) => one.parameters.map((part) => part.name).join(", ") || "–" },
  { name: "Used", class: "right", cell: (one) => number(one.usageCount) },
  { name: "Changed", class: "right", cell: (one) => time(one.updatedAt) },
  { name: "", class: "right", cell: (one) => h("div.actions", null, tools(one, again)) },
], all, { key: (one) => one.id, label: "Templates" }), "No templates yet",
"A template is an instruction with parameters, from which tasks are made:", curl("-X POST", "/templates", EXAMPLE));

const tools = (one, again) => [
  button("Use…", () => use(one, again), { class: "small", "aria-label": `Use ${one.name}`,
    needs: "POST /templates/{id}/instantiate" }),
  button("Edit…", () => edit(one, again), { class: "small", "aria-label": `Edit ${one.name}`, needs: "PATCH /templates/{id}" }),
  button("Delete…", () => confirmed({ title: `Delete ${one.name}?`, text: "Tasks made from it stay.",
    confirm: "Delete the template", danger: true }, () => remove(`/templates/${enc(one.id)}`), "Deleted").then(again),
  { class: "small danger-text", "aria-label": `Delete ${one.name}`, needs: "DELETE /templates/{id}" }),
];

function use(one, again) {
  const fields = one.parameters.map((part) => field(part.name, control(part), { hint: part.description }));
  dialog({ title: `Use ${one.name}`, about: cut(one.instruction, 400), verb: "Submit" }, fields, async (form) => {
    const given = one.parameters.map((part) => [part.name, value(form, part)]).filter(([, found]) => found !== undefined);
    const answer = await post(`/templates/${enc(one.id)}/instantiate`, { params: Object.fromEntries(given), submit: true });
    again();
    return `Submitted ${answer.taskId}`;
  });
}

function control(part) {
  if (part.type === "boolean") return select(part.name, [["", ""], ["true"], ["false"]], String(part.default ?? ""));
  return text(part.name, { required: part.required, value: String(part.default ?? ""),
    inputmode: NUMERIC.includes(part.type) ? "decimal" : null });
}

function value(form, part) {
  const given = word(form, part.name);
  if (given === undefined) return undefined;
  if (part.type === "boolean") return given === "true";
  return NUMERIC.includes(part.type) && Number.isFinite(Number(given)) ? Number(given) : given;
}

async function edit(one, again) {
  const old = one ? await get(`/templates/${enc(one.id)}`) : EXAMPLE;
  const document = Object.fromEntries(EDITED.filter((name) => old[name] !== undefined).map((name) => [name, old[name]]));
  dialog({ title: one ? `Edit ${one.name}` : "New template", verb: one ? "Save" : "Create", wide: true },
    [field("Template", area("document", pretty(document), 16))], async (form) => {
      const body = json(form, "document", "The template");
      await (one ? patch(`/templates/${enc(one.id)}`, body) : post("/templates", body));
      again();
      return one ? "Saved" : "Created";
    });
}
