// Pages that show one list: a filter in the address, pages by cursor, fetched again when it changes.

import { h, morph } from "./dom.js";
import { get, query as asQuery } from "./api.js";
import { button, empty, head, loading, Pager, problem } from "./pieces.js";
import { watch } from "./live.js";

// `name`: of the page, and of its path; `path` or `read` fetches it;
// `rows(found, again, filter)` draws it. `states`: [[value, label]] of the filter `state`.
export function listPage(root, { name, title, path = `/${name}`, key = name, states, filter = "state", first = "",
  limit = 50, query = {}, tools, rows, watched, read }) {
  const pager = new Pager();
  const seen = { chosen: query[filter] ?? first };
  const turn = () => { draw(); watcher.now(); };
  const choose = (chosen) => {
    Object.assign(seen, { chosen, found: undefined });
    pager.reset();
    history.replaceState(history.state, "", `#/${name}${asQuery({ [filter]: chosen === first ? "" : chosen || "all" })}`);
    turn();
  };
  const draw = () => morph(root, h("div", { class: root.className },
    head(title, tools?.(turn, seen.found), states && segments(filter, states, seen.chosen, choose)),
    seen.found ? rows(seen.found[key], turn, seen) : loading(),
    seen.found && pager.controls(seen.found.nextCursor, turn)));
  if (seen.chosen === "all") seen.chosen = "";
  const watcher = watch(async () => {
    const { chosen } = seen;
    const asked = { ...(states && { [filter]: chosen }), limit, cursor: pager.cursor };
    const found = await (read ? read(asked) : get(path, asked));
    if (chosen !== seen.chosen) return;
    seen.found = found;
    draw();
  }, watched);
  draw();
  return watcher.end;
}

// A page about one thing: `read` fetches it, `drawn(found, again)` returns its parts. If it does not
// exist, the page says so and links to `all`: [address, text].
export function onePage(root, { title, all: [href, text], lazyMs }, read, drawn) {
  const show = (...parts) => morph(root, h("div", { class: root.className }, ...parts));
  const watcher = watch(async () => {
    try {
      show(drawn(await read(), watcher.now));
    } catch (error) {
      if (error.status !== 404) throw error;
      show(head(title), problem(error), h("p", null, h("a", { href }, text)));
    }
  }, { lazyMs });
  show(head(title), loading());
  return watcher.end;
}

// Buttons of which one is pressed: [[value, label]].
export function segments(label, choices, chosen, choose) {
  return h("div.segments", { role: "group", "aria-label": label[0].toUpperCase() + label.slice(1) },
    choices.map(([value, text]) => button(text, () => choose(value), { "aria-pressed": String(value === chosen) })));
}

// A list in a card, or what to do while it is empty.
export const listCard = (items, drawn, ...nothing) => h("section.card", null,
  items.length ? drawn(items) : empty(...nothing));
