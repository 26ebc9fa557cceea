// A typed client in TypeScript, with types that are generated from the server's OpenAPI document.
// Shows: submit a task, lease it as a worker, complete it, wait for it, list tasks.
// Run:   fairlane serve
//        npm install openapi-fetch openapi-typescript@7 typescript@5 @types/node
//        npx openapi-typescript http://localhost:9867/openapi.json --default-non-nullable=false -o fairlane.d.ts
//        npx tsc --strict --target es2022 --module nodenext tasks.mts && node tasks.mjs

import createClient from "openapi-fetch";
import type { paths } from "./fairlane.js";

const token = process.env.FAIRLANE_TOKEN;
const { GET, POST } = createClient<paths>({
  baseUrl: process.env.FAIRLANE_URL ?? "http://localhost:9867",
  headers: token ? { Authorization: `Bearer ${token}` } : {},
});

function checked<T, E extends { code: string; error: string }>(answer: { data?: T; error?: E }): T {
  if (answer.data === undefined) throw new Error(`${answer.error?.code}: ${answer.error?.error}`);
  return answer.data;
}

const body = { agentId: "ada", handler: "shout", params: { text: "hello" } };
const { taskId } = checked(await POST("/tasks", { body }));

const wanted = { worker: "ts-worker", handlers: ["shout"], start: true };
const { leases } = checked(await POST("/leases", { body: wanted }));
for (const { leaseId, task } of leases) {
  const result = { text: String(task.params?.text).toUpperCase() };
  const path = { id: leaseId };
  checked(await POST("/leases/{id}/complete", { params: { path }, body: { result } }));
}

const task = checked(await GET("/tasks/{id}/wait", { params: { path: { id: taskId } } }));
if (task.state === "done") console.log(task.result);

const page = checked(await GET("/tasks", { params: { query: { agentId: "ada", state: ["done"] } } }));
for (const { taskId, completedAt } of page.tasks) console.log(taskId, completedAt ?? "");
