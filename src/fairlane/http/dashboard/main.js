// The frame around the pages: navigation, keys, colours, search, login.

import { h, fill, sheet, toast } from "./dom.js";
import { get, learn, onRefused, post, refusal, who } from "./api.js";
import { clock } from "./format.js";
import * as live from "./live.js";
import { head, loading, problem } from "./pieces.js";
import * as overview from "./pages/overview.js";
import * as tasks from "./pages/tasks.js";
import * as task from "./pages/task.js";
import * as approvals from "./pages/approvals.js";
import * as sessions from "./pages/sessions.js";
import * as cron from "./pages/cron.js";
import * as batches from "./pages/batches.js";
import * as resources from "./pages/resources.js";
import * as failures from "./pages/failures.js";
import * as handlers from "./pages/handlers.js";
import * as workers from "./pages/workers.js";
import * as policy from "./pages/policy.js";
import * as events from "./pages/events.js";
import * as deliveries from "./pages/deliveries.js";
import * as submit from "./pages/submit.js";
import * as queue from "./pages/queue.js";
import * as templates from "./pages/templates.js";
import * as tokens from "./pages/tokens.js";
import * as audit from "./pages/audit.js";
import * as login from "./pages/login.js";

const PAGES = [
  { name: "overview", title: "Overview", key: "o", needs: "GET /lanes", list: overview },
  { name: "tasks", title: "Tasks", key: "t", needs: "GET /tasks", list: tasks, one: task },
  { name: "approvals", title: "Approvals", key: "a", needs: "GET /approvals", list: approvals,
    one: { show: approvals.showOne } },
  { name: "batches", title: "Batches", key: "b", needs: "GET /batches", list: batches, one: { show: batches.showOne } },
  { name: "cron", title: "Cron", key: "c", needs: "GET /cron/jobs", list: cron, one: { show: cron.showOne } },
  { name: "workers", title: "Workers", key: "w", needs: "GET /workers", list: workers },
  { name: "handlers", title: "Handlers", key: "h", needs: "GET /handlers", list: handlers },
  { name: "failures", title: "Failures", key: "f", needs: "GET /failures", list: failures },
  { name: "events", title: "Events", key: "e", needs: "GET /events", list: events },
  { name: "policy", title: "Policy", key: "p", needs: "GET /policy", list: policy },
  { name: "sessions", title: "Sessions", key: "s", needs: "GET /sessions", list: sessions, more: true,
    one: { show: sessions.showOne } },
  { name: "resources", title: "Resources", key: "r", needs: "GET /resources", list: resources, more: true,
    one: { show: resources.showOne } },
  { name: "deliveries", title: "Deliveries", key: "d", needs: "GET /deliveries", list: deliveries, more: true },
  { name: "queue", title: "Queue", key: "q", needs: "GET /queue", list: queue, more: true },
  { name: "templates", title: "Templates", key: "m", needs: "GET /templates", list: templates, more: true },
  { name: "audit", title: "Audit", key: "u", needs: "GET /audit", list: audit, more: true },
  { name: "tokens", title: "Tokens", key: "k", needs: "GET /tokens", list: tokens, more: true },
  { name: "submit", title: "New task", key: "n", needs: "POST /tasks", list: submit, under: "tasks" },
];

const UNKNOWN = { name: "", title: "Page not found", needs: "GET /", list: { show: unknown } };

function unknown(root) {
  fill(root, head("Page not found"), h("p", null, "The dashboard has no such page. ",
    h("a", { href: "#/overview" }, "Go to the overview")));
  return () => {};
}

const main = h("main", { id: "main", tabindex: "-1" });
const links = new Map(PAGES.filter((page) => !page.under).map((page) =>
  [page.name, h("a", { href: `#/${page.name}` }, page.title)]));
const linksOf = (more) => PAGES.filter((page) => links.has(page.name) && Boolean(page.more) === more)
  .map((page) => links.get(page.name));
const others = h("div.others", { id: "others", popover: "auto", onclick: () => others.hidePopover() });
const more = h("button.quiet", { type: "button", popovertarget: "others", onclick: () => placeOthers() }, "More ▾");
const menu = h("div.menu");
const trouble = h("div.trouble");
const light = h("span.light", { role: "status" });
const account = h("span.account");
const search = h("input", {
  type: "search", id: "search", placeholder: "Search tasks, or go to an id",
    "aria-label": "Search tasks, or go to an id",
  autocomplete: "off", spellcheck: "false",
    onkeydown: (event) => { if (event.key === "Enter") find(search.value.trim()); },
});
let leave = () => {};
let uncount = () => {};
let shown = "";
let counted = "";

function frame() {
  return [
    h("header.bar", null,
      h("a.brand", { href: "#/overview" }, logo(), "Fairlane"),
      h("nav", { "aria-label": "Pages" }, menu, more, others),
      h("div.tools", null, h("span.search", null, search, h("kbd", { "aria-hidden": "true" }, "/")), light,
        h("a.button", { href: "#/submit", title: "New task (g n)" }, "New task"),
        h("button.quiet", { type: "button", title: "Light or dark (Shift+D)", "aria-label": "Light or dark",
          onclick: toggleTheme }, "◐"),
        h("button.quiet", { type: "button", title: "Keys (?)", "aria-label": "Keys", onclick: help }, "?"), account)),
    main,
  ];
}

function logo() {
  return h("span.logo", { "aria-hidden": "true" }, h("i"), h("i"), h("i"));
}

// --- the current page -------------------------------------------------------------------------

function place() {
  const [path, text = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: name || "overview", id: rest.length ? decoded(rest.join("/")) : null,
    query: Object.fromEntries(new URLSearchParams(text)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// The menu: the usual pages, the current one, and a button for the others.
function showMenu(page) {
  for (const [other, link] of links) {
    if (other === (page.under ?? page.name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const here = links.get(page.name);
  fill(menu, linksOf(false), page.more && here);
  fill(others, linksOf(true).filter((link) => link !== here));
  reveal();
}

function placeOthers() {
  const { left, bottom } = more.getBoundingClientRect();
  others.style.setProperty("top", `${Math.round(bottom)}px`);
  others.style.setProperty("left", `${Math.round(Math.max(8, Math.min(left, innerWidth - 190)))}px`);
}

function show() {
  if (location.hash && !location.hash.startsWith("#/")) return; // a place inside the page
  const { name, id, query } = place();
  const page = PAGES.find((one) => one.name === name) ?? UNKNOWN;
  leave();
  showMenu(page);
  document.title = `${id ?? page.title} · Fairlane`;
  const root = h("div.page", { class: `page-${page.name}` });
  fill(root, head(page.title), loading());
  fill(main, trouble, root);
  const part = id === null || !page.one ? page.list : page.one;
  const why = refusal(page.needs);
  if (why) fill(root, head(page.title), problem({ message: why }));
  leave = why ? () => {} : part.show(root, { id, query });
  if (shown && shown !== location.hash) main.focus({ preventScroll: true });
  if (shown) window.scrollTo(0, 0);
  shown = location.hash || "#/overview";
}

async function find(text) {
  if (!text) return;
  search.blur();
  const kinds = { tsk_: "tasks", bat_: "batches", job_: "cron" };
  const kind = kinds[text.slice(0, 4)];
  if (kind && text.length > 20) location.hash = `#/${kind}/${encodeURIComponent(text)}`;
  else location.hash = `#/tasks?${new URLSearchParams({ text })}`;
  search.value = "";
}

// The menu shows the number of open approvals.
async function countApprovals() {
  const { open } = await get("/approvals", { state: "open", limit: 1 });
  const text = open >= 1000 ? "1000+" : String(open);
  fill(links.get("approvals"), "Approvals",
    open > 0 && h("span.count", { title: `${text} wait for a decision`, "aria-label": `${text} open` }, text));
  if (text !== counted) reveal();
  counted = text;
}

// Scroll the menu to the current page.
function reveal() {
  menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

// --- keys -------------------------------------------------------------------------------------

let prefix = 0;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing) return;
  const going = Date.now() - prefix < 1200 && PAGES.find((page) => page.key === event.key);
  prefix = event.key === "g" ? Date.now() : 0;
  if (going) location.hash = `#/${going.name}`;
  else if (event.key === "/") search.focus();
  else if (event.key === "?") help();
  else if (event.key === "D") toggleTheme();
  else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "x") rowNow()?.querySelector("input[type=checkbox]")?.click();
  else return;
  event.preventDefault();
}

const rowNow = () => document.activeElement?.closest?.("[data-row]");

// Move to the next or previous row of the list on the page.
function step(by) {
  const rows = [...main.querySelectorAll("[data-row]")];
  const now = rows.indexOf(rowNow());
  const next = rows[now < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, now + by))];
  next?.querySelector("a")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function help() {
  const rows = [["/", "search"], ["g then a letter", "go to a page:"],
    ...PAGES.map((page) => [`g ${page.key}`, page.title]),
    ["j  k", "next and previous row"], ["Enter", "open the row"], ["x", "select the row"], ["Shift+D", "light or dark"],
      ["Esc", "leave a field, close a dialog"], ["?", "this list"]];
  sheet("Keys", h("dl.keys", null,
    rows.map(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", null, text)])));
}

// --- colours ----------------------------------------------------------------------------------

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "light" : "dark");
}

function setTheme(theme) {
  if (theme !== "light" && theme !== "dark") return;
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("fairlane-theme", theme);
  } catch { /* a browser that keeps nothing */ }
}

function keptTheme() {
  try {
    return localStorage.getItem("fairlane-theme");
  } catch {
    return null;
  }
}

// --- login ------------------------------------------------------------------------------------

function logIn() {
  if (document.querySelector(".page-login")) return;
  search.disabled = true; // a token that is pasted there would be in the address
  leave();
  leave = () => {};
  live.disconnect();
  uncount();
  uncount = () => {};
  const root = h("div.page.page-login");
  fill(main, root);
  login.show(root, begin);
}

async function logOut() {
  await post("/logout", {}).catch(() => null);
  logIn();
}

async function begin() {
  try {
    await learn();
  } catch (error) {
    if (error.status === 401) return;
    toast(error.message, "error");
  }
  search.disabled = false;
  fill(account, who.tokensRequired && [h("span", { title: `may ${who.scopes.join(", ")}` }, who.name),
    h("button.quiet", { type: "button", onclick: logOut }, "Log out")]);
  if (!refusal("GET /events/pulse")) live.connect();
  uncount();
  uncount = refusal("GET /approvals") ? () => {} : live.watch(countApprovals).end;
  shown = "";
  show();
}

const gone = ({ message }) => ({ message: live.readAt ? `${message}; the data is from ${clock(live.readAt)}`
  : message });
const LIGHTS = { on: "live", lost: "connecting…", off: "not connected" };

setTheme(keptTheme());
fill(document.getElementById("app"), frame());
live.onState((state) => { light.className = `light ${state}`; light.textContent = LIGHTS[state]; });
live.onTrouble((error) => fill(trouble, error && problem(error.code === "unreachable" ? gone(error) : error)));
onRefused(logIn);
window.addEventListener("hashchange", show);
window.addEventListener("keydown", onKey);
begin();
