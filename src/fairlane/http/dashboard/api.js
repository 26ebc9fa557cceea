// The public HTTP API.

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error ?? `the server responded with ${status}`);
    this.status = status;
    this.code = body?.code ?? "";
    this.details = body?.details ?? {};
  }
}

let whenRefused = () => {};

// Call `handler` when the server asks for a token.
export function onRefused(handler) {
  whenRefused = handler;
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function call(method, path, body) {
  const options = { method, headers: { Accept: "application/json" }, credentials: "same-origin", cache: "no-store" };
  if (method !== "GET") {
    options.headers["Content-Type"] = "application/json";
    options.headers["X-Fairlane"] = "dashboard"; // a form of another site cannot send this header
    options.headers["X-Fairlane-Actor"] = "dashboard";
    options.body = typeof body === "string" ? body : JSON.stringify(body ?? {});
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new ApiError(0, { error: "cannot reach the server", code: "unreachable" });
  }
  const text = await answer.text();
  const shape = text ? parsed(text) : null;
  if (answer.ok) return shape;
  if (answer.status === 401) whenRefused();
  throw new ApiError(answer.status, shape);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export const get = (path, values = {}) => call("GET", path + query(values));
export const post = (path, body) => call("POST", path, body);
export const patch = (path, body) => call("PATCH", path, body);
export const put = (path, body) => call("PUT", path, body);
export const remove = (path) => call("DELETE", path);

// The name and version of the server, the user, and the routes that the user may not call.
export let about = { version: "", refused: {} };
export let who = { agent: null, tokensRequired: false };

export async function learn() {
  about = await get("/");
  who = await get("/whoami");
}

// Why the user may not call this route, such as "POST /tasks/{id}/cancel"; "" if the user may.
export function refusal(needs) {
  const [method, route] = needs.split(" ");
  return about.refused[route]?.[method] ?? "";
}

export const enc = encodeURIComponent;
