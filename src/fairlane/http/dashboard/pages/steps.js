// The steps of a task, and the decision about an effect whose outcome is unknown.
import { h } from "../dom.js";
import { post, enc } from "../api.js";
import { cut, time } from "../format.js";
import { button, confirmed, table } from "../pieces.js";

export function stepTable(task, again) {
  const columns = [
    { name: "Step", cell: (step) => String(step.number) },
    { name: "Name", cell: (step) => h("span.mono", null, step.name) },
    { name: "Recorded", cell: (step) => time(step.at) },
    { name: "Value", cell: (step) => h("code", null, cut(JSON.stringify(step.value ?? null), 80)) },
  ];
  if (task.steps.some((step) => step.effect)) columns.push({ name: "Effect", cell: (step) => effect(task, step, again) });
  return table(columns, task.steps, { key: (step) => step.number, label: "Steps" });
}

function effect(task, step, again) {
  if (step.effect !== "unknown" || !["parked", "failed"].includes(task.state)) return step.effect?.replace("_", " ") ?? "";
  const decide = (text, happened, title) => button(text, () => confirmed(
    { title, text: `${step.name}: the task runs again`, confirm: "Yes" },
    () => post(`/tasks/${enc(task.taskId)}/effects/${enc(step.name)}`, { happened }), "Queued again").then(again),
    { needs: "POST /tasks/{id}/effects/{name}" });
  return h("span.actions", null, "unknown", decide("It happened", true, "Did this effect happen?"),
    decide("It did not", false, "Did this effect not happen?"));
}
