// The panel: asks for the state once a second, and says how old it is.

import { $, put, say } from "./dom.js";
import { addRows, draw, makeTrends, nextRow } from "./chart.js";
import { actions, makeSession, signedIn } from "./commands.js";
import { makeLimits, makeOutputs, makeTrust, showLimits, showOutputs, showTrust } from "./gauges.js";
import {
  makeSignals, showAlarms, showControl, showDecisions, showEvents, showSignals, showSystem,
} from "./parts.js";
import { clock, duration } from "./words.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 2500;
const LOST_AFTER_S = 3.5;
const DEAD_AFTER_S = 5;

let plant = null;
let state = null;
let received = null; // both clocks: one stands still while a machine sleeps, the other can be set
let drawnTick = null;

async function get(path) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), PATIENCE_MS);
  try {
    const reply = await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", signal: stop.signal });
    if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
    return path.endsWith(".json") ? await reply.json() : await reply.arrayBuffer();
  } finally {
    clearTimeout(timer);
  }
}

async function poll() {
  try {
    const now = await get("/api/state.json");
    if (!plant || plant.run !== now.run) await begin();
    state = now;
    received = { steady: performance.now(), wall: Date.now() };
    show();
    if (now.tick !== null && now.tick !== drawnTick) {
      drawnTick = now.tick;
      addRows(await get(`/api/trends.bin?since=${nextRow()}`));
      draw();
      showDecisions((await get("/api/decisions.json")).decisions);
    }
  } catch {
    // whatever it was: the age of the data tells
  }
  judge();
  setTimeout(poll, EVERY_MS);
}

async function begin() {
  plant = await get("/api/plant.json");
  drawnTick = null;
  say($("name"), plant.name);
  say($("title"), plant.title);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  say($("foot"), `steadyhand ${plant.version} · ${plant.plant} · times of day in ${zone} · plant time since the start`);
  makeLimits(plant);
  makeOutputs(plant);
  makeTrust(plant);
  makeSignals(plant);
  makeTrends(plant);
  makeSession(plant, () => state && state.tick !== null && showAlarms(state, plant, signedIn() ? actions : null));
}

function show() {
  showEvents(state);
  showSystem(state, plant);
  if (state.tick === null) return;
  showLimits(state);
  showOutputs(state);
  showTrust(state);
  showSignals(state);
  showAlarms(state, plant, signedIn() ? actions : null);
}

const since = () => received
  ? Math.max(performance.now() - received.steady, Date.now() - received.wall, 0) / 1000 : Infinity;

// How good is what the page shows? Judged from the age of the data, not from the connection.
function judge() {
  const quiet = since();
  const age = state && state.age_s !== null ? state.age_s + quiet : Infinity;
  const limit = plant ? 2 * plant.wall_period_s + 2 : Infinity;
  const lost = quiet > LOST_AFTER_S;
  const stale = !lost && (age > limit || state.alive_s + quiet > DEAD_AFTER_S + Math.min(limit, 10));
  const waiting = !state || state.tick === null;
  const connection = !received ? "waiting" : lost ? "lost" : waiting ? "waiting" : stale ? "stale" : "ok";
  put(document.body, { "data-connection": connection });
  const answer = connection === "ok" ? state.answer : "unknown";
  showControl(state, answer, state && state.tick !== null
    ? state.now_s + quiet - state.since_wall_s : 0);
  say($("seen-time"), clock(state?.wall_s ?? NaN));
  say($("seen-age"), Number.isFinite(age) ? `${duration(age)} old` : "waiting for the first data");
  tell(connection);
  const mark = { yes: "✓", no: "!", watching: "–", unknown: "?" }[answer];
  const words = { yes: "in control", no: "not in control", watching: "watching", unknown: "unknown" }[answer];
  document.title = `${mark} ${plant?.name ?? "steadyhand"}: ${words}`;
}

const TROUBLE = {
  lost: ["No connection to the runtime.",
    "What you see is old. The plant goes on without this page: ask its own panel, or the command line."],
  stale: ["The loop says nothing.",
    "The page is connected, but no new tick has come. What you see is old. Ask the plant's own panel."],
};

function tell(connection) {
  const box = $("lost");
  const trouble = TROUBLE[connection];
  put(box, { class: trouble ? "lost shown" : "lost" });
  if (box.dataset.told === connection) return; // said once, not every second
  box.dataset.told = connection;
  box.replaceChildren();
  if (!trouble) return;
  const strong = document.createElement("b");
  strong.textContent = trouble[0];
  box.append(strong, ` ${trouble[1]}`);
}

document.addEventListener("visibilitychange", () => document.hidden || judge());
setInterval(judge, 500);
poll();
