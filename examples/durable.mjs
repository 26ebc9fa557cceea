// A run in Node.js that survives: kill it or the server at any moment, and it continues.
// Shows: checkpoint, inbox, suspend and effect over plain HTTP, without packages.
// Run:   fairlane serve
//        node examples/durable.mjs
//        fairlane message shop 'Two lamps' --handler order-node --debounce 0
//        fairlane signal TASK paid --value '{"amount": 5}'

const { FAIRLANE_URL: url = "http://localhost:9867", FAIRLANE_TOKEN: token } = process.env;
const authorization = token ? { Authorization: `Bearer ${token}` } : {};
const worker = `node-worker-${process.pid}`;

async function order(work) {
  const price = await work.step("price", async () => ({ each: 20 })); // runs once
  const said = [work.task.params.message, ...(await work.inbox()).map((one) => one.text)];
  const paid = await work.wait("paid", { signal: "paid" }); // gives its slot back
  const sent = await work.effect("ship", async (key) => `shipped under ${key}`); // never twice
  return { price, said, paid, sent };
}

async function post(path, body) {
  const headers = { "Content-Type": "application/json", ...authorization };
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), { code: answer.code });
  return answer;
}

function workOf({ leaseId, task, steps = [] }) {
  const call = (verb, body = {}) => post(`/leases/${leaseId}/${verb}`, body);
  const known = new Map(steps.map((one) => [one.name, one.value]));
  const record = async (name, value) => (await call("checkpoint", { name, value }), value);
  return {
    task,
    step: async (name, act) => (known.has(name) ? known.get(name) : record(name, await act())),
    inbox: async () => (await call("inbox")).messages, // those of earlier attempts, too
    async wait(name, until) {
      if (known.has(name)) return known.get(name);
      const { suspended, value } = await call("suspend", { name, until });
      if (!suspended) return value;
      throw Object.assign(new Error("it waits without a slot"), { code: "suspended" });
    },
    async effect(name, act) {
      const { effect, key } = await call("effect", { name }); // effect_unknown: it is parked
      return effect === "done" ? known.get(name) : record(name, await act(key));
    },
  };
}

console.log(`${worker} takes tasks from ${url}`);
while (true) {
  try {
    const ask = { worker, handlers: ["order-node"], waitMs: 30_000, start: true, ttlMs: 60_000 };
    for (const lease of (await post("/leases", ask)).leases) // renew leases of longer work
      await post(`/leases/${lease.leaseId}/complete`, { result: await order(workOf(lease)) });
  } catch ({ code, message }) {
    console.error(code, message); // the lease has ended or will: the task runs again
    if (code === undefined) await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
