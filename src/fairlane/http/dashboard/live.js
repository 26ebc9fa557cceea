// One connection reports that something has changed; pages then fetch their data again.
// A page fetches at most once a second and spends at most a tenth of the time on it; slow requests,
// such as a full search, get a twentieth. The slower the server responds, the fewer requests it gets,
// but a page is never older than half a minute.

import { ApiError } from "./api.js";
import { tick } from "./format.js";

const PAUSE_MS = 1000;
const LONG_MS = 250;
const LONGEST_PAUSE_MS = 30_000;
const LAZY_MS = 5000; // for data that changes without an event: waiting times, curves
const watchers = new Set();
const listeners = new Set();
let source = null;
let again = null;
let state = "off";
export let readAt = null; // time of the last successful fetch
export let lastEvent = null; // unknown until the first pulse

export function connect() {
  hangUp();
  const mine = source = new EventSource("/events/pulse");
  mine.addEventListener("open", () => {
    const back = state === "lost" && !document.hidden;
    report("on");
    for (const watcher of watchers) watcher[back ? "now" : "ask"]();
  });
  mine.addEventListener("pulse", (event) => {
    lastEvent = Number(JSON.parse(event.data).id);
    wake();
  });
  mine.addEventListener("error", () => {
    report("lost");
    // A refusal closes the connection for good; the browser reconnects after any other error.
    if (mine.readyState === EventSource.CLOSED) again = setTimeout(connect, 3000);
  });
}

export function disconnect() {
  hangUp();
  report("off");
}

function hangUp() {
  clearTimeout(again);
  source?.close();
  source = null;
}

export function onState(listener) {
  listeners.add(listener);
  listener(state);
}

function report(next) {
  if (next === state) return;
  state = next;
  for (const listener of listeners) listener(state);
}

// Errors of fetches, by reader; the frame shows one of them until that reader succeeds.
const troubles = new Map();
let whenTroubled = () => {};

export function onTrouble(listener) {
  whenTroubled = listener;
}

function trouble(watcher, error) {
  if (error?.code === "unreachable") report("lost");
  else if (source?.readyState === EventSource.OPEN) report("on");
  if (error) troubles.set(watcher, error);
  else if (!troubles.delete(watcher)) return;
  whenTroubled([...troubles.values()].at(-1) ?? null);
}

function wake() {
  for (const watcher of watchers) watcher.ask();
}

// Call `read` now, after each change, and from time to time. `now` serves a user's action and does
// not wait; `soon` waits its turn; `end` stops the reader.
export function watch(read, { lazyMs = LAZY_MS, onlyLazy = false } = {}) {
  let timer = null, running = false, wanted = false, hurry = false, quietUntil = 0, ended = false;

  function want() {
    wanted = true;
    if (running || ended || (document.hidden && !hurry)) return;
    if (timer && !hurry) return;
    clearTimeout(timer);
    timer = setTimeout(run, hurry ? 0 : Math.max(0, quietUntil - Date.now()));
  }
  async function run() {
    timer = null;
    wanted = hurry = false;
    running = true;
    const began = performance.now();
    let pause = PAUSE_MS;
    try {
      await read();
      readAt = Date.now();
      trouble(watcher, null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      pause = LAZY_MS;
      if (!ended) trouble(watcher, error);
    } finally {
      const took = performance.now() - began;
      const rest = Math.min(LONGEST_PAUSE_MS, (took < LONG_MS ? 9 : 19) * took);
      quietUntil = Date.now() + Math.max(pause, rest);
      running = false;
      if (wanted) want();
    }
  }

  const now = () => { hurry = true; want(); };
  const watcher = { ask() { if (!onlyLazy) want(); }, now };
  const shown = () => { if (!document.hidden) want(); };
  const every = setInterval(want, lazyMs);
  document.addEventListener("visibilitychange", shown);
  watchers.add(watcher);
  const end = () => {
    ended = true;
    clearTimeout(timer);
    clearInterval(every);
    document.removeEventListener("visibilitychange", shown);
    watchers.delete(watcher);
    trouble(watcher, null);
  };
  now();
  return { end, now, soon: want };
}

setInterval(() => { if (!document.hidden) tick(); }, 1000);
