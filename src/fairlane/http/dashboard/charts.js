// Charts in plain SVG and HTML: curves, bars, strips of runs, graphs of tasks.

import { h, svg, fill } from "./dom.js";
import { clock, LABELS, shortId } from "./format.js";

const WIDTH = 600;
const HEIGHT = 150;
const HOUR_MS = 3600000;

// Curves over time. `series`: [{name, tone, values}], all as long as `times`; null is a gap. The top
// of the scale is at least `least`.
export function curves({ times, series, say, label, stepMs, least }) {
  const top = ceilingOf(Math.max(least, ...series.flatMap((one) => one.values).filter((value) => value !== null)));
  const y = (value) => HEIGHT - (value / top) * HEIGHT;
  const drawn = (values) => stretches(times, values, stepMs, y);
  const paths = series.flatMap((one, order) => [
    order === 0 && svg("path.area", { class: one.tone, d: area(drawn(one.values)) }),
    svg("path.line", { class: one.tone, d: line(drawn(one.values)) }),
  ]).filter(Boolean);
  const hover = h("div.hover", { keep: "hover", "aria-hidden": "true" });
  const newest = series.map((one) =>
    `${one.name} ${say(one.values.findLast((value) => value !== null) ?? 0)}`).join(", ");
  return h("figure.curves", null,
    h("figcaption", null, label, h("span.legend", null, series.map((one) =>
      h("span", { class: one.tone }, h("i", { "aria-hidden": "true" }), one.name)))),
    h("div.plot", {
      role: "img", "aria-label": `${label}: ${newest}`,
      onpointermove: (event) => point(event, hoverOf(event), times, series, say),
      onpointerleave: (event) => fill(hoverOf(event)),
    },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      [0.5, 1].map((part) => svg("line.grid",
        { x1: 0, x2: WIDTH, y1: y(top * part) + 0.5, y2: y(top * part) + 0.5 })), paths),
    h("span.top", null, say(top)), h("span.half", null, say(top / 2)), hover),
    h("div.axis", null, axis(times, stepMs).map((text) => h("span", null, text))));
}

const hoverOf = (event) => event.currentTarget.querySelector(".hover");

// The first and the last time on the axis; a single step is as wide as it is long.
const reach = (times, stepMs) => [times[0], Math.max(times.at(-1), times[0] + (times.length < 2 ? stepMs : 0))];

function axis(times, stepMs) {
  const [first, last] = reach(times, stepMs);
  return [0, 0.25, 0.5, 0.75, 1].map((part) => clock(first + part * (last - first), stepMs < 30000));
}

function point(event, hover, times, series, say) {
  const box = event.currentTarget.getBoundingClientRect();
  const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  const at = times[0] + part * (times.at(-1) - times[0]);
  const index = times.findIndex((time, place) => place === times.length - 1 || (time + times[place + 1]) / 2 > at);
  fill(hover, h("i.rule", { style: { left: `${part * 100}%` } }),
    h("div.tip", { class: part > 0.6 ? "left" : "", style: { left: `${part * 100}%` } },
      h("b", null, clock(times[index])),
      series.map((one) => h("span", { class: one.tone }, h("i"), `${one.name} `,
        h("b", null, one.values[index] === null ? "–" : say(one.values[index]))))));
}

// Split the values into runs without gaps. Steps in which nothing was measured are gaps.
function stretches(times, values, stepMs, y) {
  const [first, last] = reach(times, stepMs);
  const x = (at) => (((at - first) / (last - first)) * WIDTH).toFixed(1);
  const found = [[]];
  values.forEach((value, index) => {
    if (value === null || times[index] - times[index - 1] > 1.5 * stepMs) found.push([]);
    if (value !== null) found.at(-1).push(`${x(times[index])} ${y(value).toFixed(1)}`);
  });
  if (times.length === 1 && values[0] !== null) found[0].push(`${WIDTH} ${y(values[0]).toFixed(1)}`);
  return found.filter((points) => points.length);
}

const line = (found) => found.map((points) => `M${points.join("L")}${points.length < 2 ? "h0" : ""}`).join("");

const area = (found) => found.map((points) => {
  const [first, last] = [points[0], points.at(-1)].map((point) => point.split(" ")[0]);
  return `M${first} ${HEIGHT}L${points.join("L")}L${last} ${HEIGHT}Z`;
}).join("");

// A share of the slots over time and the fair share: one line each, without numbers.
export function trace(times, stepMs, shares, fair, most) {
  const drawn = (values) => stretches(times, values, stepMs, (value) => HEIGHT * Math.max(0, 1 - value / most));
  return svg("svg.trace", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path.area", { d: area(drawn(shares)) }), svg("path.due", { d: line(drawn(fair)) }));
}

// The next number that reads well: 1, 2 or 5 times a power of ten.
function ceilingOf(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

// A bar of `limit` slots, `used` of them in use.
export function slots(used, limit, label) {
  const cells = limit <= 60 ? limit : 0;
  return h("div.slots", {
    role: "meter", "aria-label": label,
    "aria-valuemin": 0, "aria-valuemax": Math.max(limit, used), "aria-valuenow": used,
    class: [used >= limit ? "full" : "", cells ? "cells" : ""].join(" "), style: { "--n": String(cells || 1) },
  }, h("i", { style: { width: `${Math.min(100, (used / Math.max(1, limit)) * 100)}%` } }));
}

// A share next to the fair share.
export function share(value, fair, most, label) {
  const at = (part) => `${Math.min(100, (part / most) * 100)}%`;
  const said = { "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(value * 100) };
  return h("div.share", { role: "meter", "aria-label": label, ...said },
    h("i", { style: { width: at(value) } }), h("b", { style: { left: at(fair) } }));
}

// Parts of a whole, by state.
export function parts(counts, total, label) {
  return h("div.parts", { role: "img", "aria-label": label },
    Object.entries(counts).filter(([, count]) => count).map(([state, count]) =>
      h("i", { class: `s-${state}`, key: state, title: `${LABELS[state] ?? state}: ${count}`,
        style: { width: `${(count / total) * 100}%` } })));
}

// Ended and failed attempts of each hour from `since` on, as small columns.
export function byHour(ended, failed, since) {
  const most = Math.max(1, ...ended);
  const total = ended.reduce((sum, value) => sum + value, 0);
  const wrong = failed.reduce((sum, value) => sum + value, 0);
  return svg("svg.hours", { viewBox: `0 0 ${ended.length * 4} 24`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${total} ended, ${wrong} of them failed` }, ended.map((count, hour) => {
    const height = count && Math.max(2, (24 * count) / most);
    const bad = failed[hour] && Math.max(2, (24 * failed[hour]) / most);
    return svg("g", null, svg("title", null, `${clock(since + hour * HOUR_MS, false)}: ${count} ended, ${failed[hour]} failed`),
      svg("rect.done", { x: 4 * hour, y: 24 - height, width: 3, height }),
      svg("rect.failed", { x: 4 * hour, y: 24 - bad, width: 3, height: bad }));
  }));
}

// The runs of a cron job, oldest first, one small bar each.
export function strip(runs) {
  const longest = Math.max(1, ...runs.map(lasted));
  return h("div.strip", null, runs.map((run) => {
    const height = 30 + 70 * Math.sqrt(lasted(run) / longest);
    const text = `${run.status}${run.error ? `: ${run.error}` : ""} · ${clock(Date.parse(run.scheduledAt))}`;
    const bar = h("i", { style: { height: `${height}%` } });
    return run.taskId
      ? h("a", { key: run.runId, class: `r-${run.status}`, href: `#/tasks/${encodeURIComponent(run.taskId)}`,
        title: text, "aria-label": text }, bar)
      : h("span", { key: run.runId, class: `r-${run.status}`, title: text }, bar);
  }));
}

function lasted(run) {
  return run.startedAt && run.finishedAt ? Date.parse(run.finishedAt) - Date.parse(run.startedAt) : 0;
}

const BOX = { x: 160, y: 38 };
const STEP = { x: 190, y: 52 };

// Tasks and their dependencies, in columns from cause to effect. `nodes`: Map of id to
// {state, title, parents: [ids]}; `here` is the task that the page shows.
export function graph(nodes, here) {
  const column = columns(nodes);
  const rows = [];
  const place = new Map();
  for (const [id] of nodes) {
    const at = column.get(id);
    rows[at] = (rows[at] ?? 0) + 1;
    place.set(id, { x: at * STEP.x + 2, y: rows[at] * STEP.y - STEP.y + 4 });
  }
  const height = Math.max(...rows) * STEP.y;
  const width = rows.length * STEP.x;
  const edges = [...nodes].flatMap(([id, node]) => node.parents.filter((parent) => place.has(parent)).map((parent) =>
    edge(place.get(parent), place.get(id))));
  const label = "Tasks that this one depends on, and that depend on it";
  return h("div.graph", { tabindex: "0", role: "group", "aria-label": label },
    svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, edges,
      [...nodes].map(([id, node]) => box(id, node, place.get(id), id === here))));
}

function columns(nodes) {
  const found = new Map();
  const depth = (id, seen) => {
    if (found.has(id)) return found.get(id);
    if (seen.has(id)) return 0;
    const parents = (nodes.get(id)?.parents ?? []).filter((parent) => nodes.has(parent));
    const value = parents.length ? 1 + Math.max(...parents.map((parent) => depth(parent, new Set([...seen, id])))) : 0;
    found.set(id, value);
    return value;
  };
  for (const id of nodes.keys()) depth(id, new Set());
  return found;
}

function edge(from, to) {
  const x1 = from.x + BOX.x, y1 = from.y + BOX.y / 2, x2 = to.x, y2 = to.y + BOX.y / 2, middle = (x1 + x2) / 2;
  return svg("path.edge", { d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

function box(id, node, at, here) {
  const text = node.title.length > 18 ? `${node.title.slice(0, 17)}…` : node.title;
  return svg("a", { href: `#/tasks/${encodeURIComponent(id)}`, class: here ? "here" : "" },
    svg("title", null, `${node.title} (${LABELS[node.state] ?? node.state})`),
    svg("rect", { x: at.x, y: at.y, width: BOX.x, height: BOX.y, rx: 8 }),
    svg("circle", { class: `s-${node.state}`, cx: at.x + 15, cy: at.y + BOX.y / 2, r: 5 }),
    svg("text", { x: at.x + 28, y: at.y + 16 }, text),
    svg("text.small", { x: at.x + 28, y: at.y + 30 },
      `${LABELS[node.state] ?? node.state} · ${shortId(id).slice(-7)}`));
}
