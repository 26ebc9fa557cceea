// A worker in Node.js without packages: leases tasks over HTTP, runs them, reports.
// Shows: POST /leases with a long poll, renew, stop on cancel, complete, fail.
// Run:   fairlane serve
//        node examples/worker.mjs
//        fairlane submit --handler shout --param text=hello --wait

const url = process.env.FAIRLANE_URL ?? "http://localhost:9867";
const token = process.env.FAIRLANE_TOKEN;
const authorization = token ? { Authorization: `Bearer ${token}` } : {};
const worker = `node-worker-${process.pid}`;
const ttlMs = 30_000;

const handlers = {
  // A handler gets the task and a signal that is aborted when the work must stop.
  async shout(task, signal) {
    if (typeof task.params?.text !== "string") throw new Error("params.text must be a string");
    return { text: task.params.text.toUpperCase() };
  },
};

async function post(path, body) {
  const headers = { "Content-Type": "application/json", ...authorization };
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${answer.code}: ${answer.error}`);
  return answer;
}

async function run({ leaseId, task }) {
  const stop = new AbortController();
  const renewal = setInterval(async () => {
    const renewed = await post(`/leases/${leaseId}/renew`, { ttlMs }).catch(() => null);
    if (renewed?.cancelRequested) stop.abort();
  }, ttlMs / 3);
  try {
    const result = await handlers[task.handler](task, stop.signal);
    await post(`/leases/${leaseId}/complete`, { result });
  } catch (error) {
    if (stop.signal.aborted) await post(`/leases/${leaseId}/release`, {});
    else await post(`/leases/${leaseId}/fail`, { error: String(error.message) });
  } finally {
    clearInterval(renewal);
  }
}

let stopping = false;
process.on("SIGTERM", () => {
  stopping = true; // running tasks finish
  post("/leases/withdraw", { worker }).catch(() => process.exit());
});
console.log(`${worker} takes tasks from ${url}`);
while (!stopping) {
  const ask = { worker, handlers: Object.keys(handlers), waitMs: 30_000, ttlMs, start: true };
  const { leases } = await post("/leases", ask).catch(async (error) => {
    console.error(error.message); // the server is away: look for it again in a second
    return new Promise((resolve) => setTimeout(resolve, 1000, { leases: [] }));
  });
  await Promise.allSettled(leases.map(run)); // a report that is lost costs an attempt, no more
}
