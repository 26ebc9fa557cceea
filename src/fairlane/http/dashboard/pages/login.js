// Login with a token, which the server keeps in a cookie that no script can read.

import { h, fill } from "../dom.js";
import { post } from "../api.js";
import { copyable, problem } from "../pieces.js";

export function show(root, entered) {
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const trouble = h("div", { "aria-live": "polite" });
  const send = h("button.primary", { type: "submit" }, "Log in");
  const form = h("form.card.form", { onsubmit: (event) => { event.preventDefault(); logIn(); } },
    h("h1", null, "Log in"), h("p.muted", null, "This server needs a token. An operator creates one with:"),
    copyable("fairlane token create --name me --scope all"),
    h("label.field", null, "Token", token), trouble, send);

  async function logIn() {
    send.disabled = true;
    try {
      await post("/login", { token: token.value.trim() });
      entered();
    } catch (error) {
      fill(trouble, problem(error));
      token.select();
    } finally {
      send.disabled = false;
    }
  }

  fill(root, form);
  token.focus();
}
