// The runs of cron jobs over the next days.

import { h } from "../dom.js";
import { enc, get } from "../api.js";
import { clock, exact, plural, span } from "../format.js";
import { card } from "../pieces.js";

const DAYS = 7;
const DAY_MS = 86400000;
const AHEAD_MAX = 100; // of one job with a cron expression
const SHOWN_MAX = 3; // runs of one job on one day; more are one entry
const DATE = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });

// The moments at which a job runs in the next days, and whether there are more of them.
export async function ahead(job, now) {
  const { schedule } = job;
  const until = now + DAYS * DAY_MS;
  if (!job.enabled || !job.nextRunAt) return { moments: [], more: false };
  if (schedule.kind === "cron") {
    const { next } = await get("/cron/preview", { expr: schedule.expr, tz: schedule.tz, n: AHEAD_MAX });
    const moments = next.map((one) => Date.parse(one.utc)).filter((at) => at < until);
    return { moments, more: moments.length === AHEAD_MAX };
  }
  const moments = [];
  const first = Date.parse(job.nextRunAt);
  const step = schedule.everyMs ?? Infinity;
  for (let at = first; at < until && moments.length < AHEAD_MAX; at += step) moments.push(at);
  return { moments, more: moments.length === AHEAD_MAX, step };
}

// `jobs`: [{job, moments, more, step}]
export function calendar(jobs, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const often = jobs.filter((one) => one.more);
  const days = [...Array(DAYS).keys()].map((number) => new Date(midnight).setDate(new Date(midnight).getDate() + number));
  return card(`The next ${DAYS} days`, h("span.muted", null, "in your time zone"),
    often.length > 0 && h("p.often", null, "Too often to list: ", often.map(({ job, step }) =>
      h("span", null, jobLink(job), h("small", null, step ? ` every ${span(step)}` : ` ${job.schedule.expr}`)))),
    h("ol.calendar", null, days.map((start) => day(start, jobs.filter((one) => !one.more)))));
}

const jobLink = (job) => h("a", { href: `#/cron/${enc(job.id)}` }, job.name);

function day(start, jobs) {
  const end = new Date(start).setDate(new Date(start).getDate() + 1);
  const runs = jobs.flatMap(({ job, moments }) => {
    const today = moments.filter((at) => at >= start && at < end);
    return today.length > SHOWN_MAX ? [{ job, at: today[0], count: today.length }] : today.map((at) => ({ job, at }));
  }).sort((one, other) => one.at - other.at);
  return h("li", { key: start }, h("h3", null, DATE.format(start)),
    runs.length ? h("ul", null, runs.map(({ job, at, count }) => h("li", { key: `${job.id} ${at}` },
      h("time", { title: exact(at) }, clock(at, false)), jobLink(job),
      count && h("small", { title: `${plural(count, "run")} on this day` }, `×${count}`))))
      : h("p.muted", null, "–"));
}
