// Commands, for people with a token. It is kept in this page's memory alone and forgotten with it.

import { $, el, say } from "./dom.js";
import { plain, unit } from "./words.js";

const FORGET_AFTER_MS = 15 * 60 * 1000;

let plant = null;
let person = null;
let changed = () => {};
let forget = 0;

export const actions = {
  ack: (code) => give("Acknowledge", "ack", { code }, [], `Acknowledge ${code}? Its cause must be gone.`),
  shelve: (code) => give(`Shelve ${code}`, "shelve", { code }, [forHow("1"), reason()],
    "It moves out of the way for a time. Nothing else changes: the reaction to it and the record stay."),
  unshelve: (code) => give("Take off the shelf", "unshelve", { code }, [], `Show ${code} again?`),
};

export const signedIn = () => person !== null;

export function makeSession(description, onChange) {
  plant = description;
  changed = onChange;
  signOut();
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, stay, { passive: true });
}

function stay() {
  if (!person) return;
  clearTimeout(forget);
  forget = setTimeout(signOut, FORGET_AFTER_MS);
}

function signOut() {
  person = null;
  clearTimeout(forget);
  show();
}

function show() {
  const place = $("session");
  const button = (text, onclick) => el("button", { class: "command", text, onclick });
  if (!plant.commands) place.replaceChildren(el("span", { class: "soft", text: "read only" }));
  else if (!person) place.replaceChildren(button("Sign in…", signIn));
  else {
    place.replaceChildren(
      el("p", { class: "soft", text: `signed in: ${person.name}` }),
      el("div", { class: "buttons" },
        button("Mode…", askMode), button("Override…", askOverride), button("Give back…", askGiveBack),
        button("Acknowledge all", () => give("Acknowledge all", "ack", {}, [],
          "Acknowledge everything whose cause is gone?")),
        el("button", { text: "Sign out", onclick: signOut })));
  }
  changed();
}

// -- what can be asked ----------------------------------------------------------------------------

const reason = () => ({ name: "reason", label: "Why (goes into the record)", required: true, maxlength: 200 });
const forHow = (value) => ({
  name: "for_h", label: "For how long, hours of plant time", type: "number", value, min: "0.01", step: "any", required: true,
});
const outputs = () => ({
  name: "output", label: "Output", options: plant.outputs.map((o) => [o.name, plain(o.name, o.unit)]),
});

const askMode = () => give("Ask for a mode", "mode", {}, [
  { name: "mode", label: "Mode", options: plant.modes.map((mode) => [mode, mode]) }, reason(),
], "Less authority holds from the next tick. More has to be earned, and the plant has to grant it.");

const askOverride = () => give("Override an output", "override", {}, [
  outputs(),
  {
    name: "value", type: "number", step: "any", required: true,
    label: `Value in ${[...new Set(plant.outputs.map((o) => unit(o.unit)))].join(" or ")}`,
  },
  forHow("1"), reason(),
], "An override wins over whatever drives. The safety filter and the limits still hold.");

const askGiveBack = () => give("Give an output back", "clear-override", {}, [outputs()],
  "Whoever drives has it again.");

function signIn() {
  ask("Sign in", [{
    name: "token", label: "Your token", type: "password", required: true, autocomplete: "off",
  }], "The token is kept in this page only, and forgotten after 15 minutes without a touch.", async ({ token }) => {
    const answer = await post("/api/session", token, {});
    person = { ...answer, token, sequence: 0 };
    stay();
    show();
  });
}

function give(title, command, fixed, fields, explanation) {
  ask(title, fields, explanation, async (given) => {
    const values = { ...fixed, ...given };
    if ("for_h" in values) {
      values.for_s = Number(values.for_h) * 3600;
      delete values.for_h;
    }
    if ("value" in values) values.value = Number(values.value);
    person.sequence += 1;
    await post("/api/command", person.token, {
      session: person.session, sequence: person.sequence, command, arguments: values,
    });
  });
}

// -- asking ---------------------------------------------------------------------------------------

function ask(title, fields, explanation, carryOut) {
  const said = el("p", { class: "said", role: "status" });
  const inputs = fields.map(({ name, label, options, ...rest }) => {
    const input = options
      ? el("select", { name }, ...options.map(([value, text]) => el("option", { value, text })))
      : el("input", { name, type: "text", ...rest });
    return el("label", {}, el("span", { text: label }), input);
  });
  const go = el("button", { type: "submit", text: title.startsWith("Sign") ? "Sign in" : "Do it" });
  const heading = el("h2", { text: title, id: "dialog-title" });
  const form = el("form", { novalidate: false }, heading, el("p", { class: "soft", text: explanation }),
    ...inputs, said,
    el("div", { class: "buttons" }, go,
      el("button", { type: "button", text: "Cancel", onclick: () => dialog.close() })));
  const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, form);
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    said.className = "said";
    say(said, "Asking the loop…");
    try {
      await carryOut(Object.fromEntries(new FormData(form)));
      dialog.close();
    } catch (error) {
      said.className = "said wrong";
      say(said, `▲ ${error.message}`);
    } finally {
      go.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

async function post(path, token, body) {
  let reply = null;
  let answer = null;
  try {
    reply = await fetch(path, {
      method: "POST", cache: "no-store", credentials: "omit", redirect: "error",
      headers: { "Authorization": `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    answer = await reply.json();
  } catch {
    throw new Error("No answer. It is not known if it was done: look at what happened.");
  }
  if (answer.error) {
    if (answer.error.code === "SESSION" && person) signOut();
    throw new Error(`${answer.error.message} (${answer.error.code})`);
  }
  return answer;
}
