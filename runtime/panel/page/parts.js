// The parts of the page that are words: who drives, alarms, decisions, events, facts, measurements.

import { $, el, facts, put, remake, say, sign } from "./dom.js";
import {
  SOURCES, capital, day, driver, duration, moment, number, plain, plantTime, quantity, unit,
} from "./words.js";

const ANSWERS = {
  yes: ["✓", "Yes"],
  no: ["!", "No"],
  watching: ["–", "No, as asked"],
  unknown: ["?", "Unknown"],
};

// -- the one glance -------------------------------------------------------------------------------

export function showControl(state, answer, elapsed) {
  const [mark, word] = ANSWERS[answer];
  say($("answer-mark"), mark);
  say($("answer"), word);
  const known = state && state.tick !== null;
  const words = known ? [state.words, ...state.overrides.map((item) => held(item, state))].join("; ") : "";
  const drives = known ? capital(words) : "no data yet";
  say($("drives"), answer === "unknown" && state?.tick != null
    ? `No news from the loop. Last known: ${words}.` : `${drives}.`);
  document.body.dataset.answer = answer;
  document.body.dataset.severity = state?.why?.severity ?? "";
  if (!state || state.tick === null) return;
  const asked = [null, state.mode].includes(state.asked) ? "" : ` (before the restart: ${state.asked})`;
  facts($("control-facts"), [
    ["Since", `${moment(state.since_wall_s)}${answer === "unknown" ? ", as far as is known" : `, for ${duration(elapsed)}`}`
      + ` (plant time ${plantTime(state.since_plant_s)})`],
    ["Mode", `${state.mode}${state.unproven ? ", without go-live evidence" : ""}${asked}`],
    ["Plant", `link ${state.link.state}, control ${state.link.granted ? "granted" : "not granted"}`
      + `, handshake ${state.link.control}`],
  ]);
  remake($("why"), [state.why, state.back], whyNot);
}

// An override with its end by the clock on this wall, like every time on the page.
function held(item, state) {
  const kept = state.participation?.[item.output] === "plant";
  return `override by ${item.owner} ${kept ? "would hold" : "holds"} ${item.output}`
    + ` at ${quantity(item.value, item.unit)} until ${moment(item.until_wall_s)}, reason: ${item.reason}`
    + (kept ? "; but the plant keeps this output to itself" : "");
}

function whyNot([why, back]) {
  if (!why) return [];
  return [
    el("h3", { text: "Why not" }),
    el("p", { class: "cause", text: capital(why.text) }),
    el("p", {}, sign(why.severity), " ", el("code", { text: why.code })),
    why.action === "none needed" ? null : el("h3", { text: "What to do" }),
    why.action === "none needed" ? null : el("p", { text: capital(why.action) }),
    el("h3", { text: "What must happen for it to come back" }),
    el("ol", {}, ...back.map((step) => el("li", { text: step }))),
  ];
}

// -- alarms ---------------------------------------------------------------------------------------

// Wall time of a moment of the loop's own time, which begins with the run.
const wallOf = (loopS, state, plant) =>
  state.wall_s - (state.loop_s - loopS) / plant.time_scale;

export function showAlarms(state, plant, actions) {
  const alarms = (state.alarms ?? []).map((alarm) => ({
    ...alarm,
    at: moment(Math.round(wallOf(alarm.since_s, state, plant))),
    first: alarm.code === state.why?.code,
  })).sort((a, b) => b.first - a.first);
  const groups = [
    ["Present now", alarms.filter((a) => !a.shelved && a.active)],
    ["Gone, waits to be acknowledged", alarms.filter((a) => !a.shelved && !a.active)],
  ];
  const shelves = (state.shelved ?? []).map((shelf) => ({
    ...shelf, until: moment(Math.round(wallOf(shelf.expires_s, state, plant))), there: alarms.some((a) => a.code === shelf.code),
  }));
  const acknowledged = (state.events ?? []).filter((event) => event.code === "ACK").slice(0, 3);
  remake($("alarms"), [groups, shelves, acknowledged, actions !== null], () => [
    ...groups.flatMap(([title, list]) => list.length
      ? [el("h3", { class: "group", text: `${title} (${list.length})` }),
        el("ul", { class: "list" }, ...list.map((alarm) => alarmItem(alarm, actions)))] : []),
    alarms.length ? null : el("p", { class: "quiet", text: "None." }),
    shelves.length ? el("h3", { class: "group", text: `Shelved (${shelves.length})` }) : null,
    shelves.length ? el("ul", { class: "list" }, ...shelves.map((s) => shelfItem(s, actions))) : null,
    acknowledged.length ? el("h3", { class: "group", text: "Acknowledged lately" }) : null,
    ...acknowledged.map((event) => el("p", {
      class: "quiet", text: `${moment(event.wall_s)} ${event.actor}: ${event.text}`,
    })),
  ]);
}

function alarmItem(alarm, actions) {
  const buttons = actions && [
    alarm.unacknowledged ? el("button", {
      class: "command", "data-key": `ack-${alarm.code}`, text: "Acknowledge",
      "aria-label": `Acknowledge ${alarm.code}`, onclick: () => actions.ack(alarm.code),
    }) : null,
    alarm.severity === "critical" ? null : el("button", {
      class: "command", "data-key": `shelve-${alarm.code}`, text: "Shelve…",
      "aria-label": `Shelve ${alarm.code}`, onclick: () => actions.shelve(alarm.code),
    }),
  ];
  return el("li", {},
    el("p", { class: "head" }, sign(alarm.severity),
      alarm.first ? el("span", { class: "first", text: "first cause" }) : null,
      el("span", { text: capital(alarm.text) })),
    el("p", { class: "todo", text: `Since ${alarm.at}. ${capital(alarm.action)}.` }),
    el("p", { class: "todo" }, el("code", { text: alarm.code }),
      alarm.latched ? " stays until acknowledged" : ""),
    buttons && el("div", { class: "buttons" }, ...buttons));
}

function shelfItem(shelf, actions) {
  return el("li", {},
    el("p", { class: "head" }, el("code", { text: shelf.code }),
      el("span", { text: shelf.there ? "present now" : "not present" })),
    el("p", { class: "todo", text: `${shelf.owner}: ${shelf.reason}; until ${shelf.until}` }),
    actions && el("div", { class: "buttons" }, el("button", {
      class: "command", "data-key": `unshelve-${shelf.code}`, text: "Take off the shelf",
      onclick: () => actions.unshelve(shelf.code),
    })));
}

// -- decisions and events -------------------------------------------------------------------------

const open = new Set();

export function showDecisions(decisions) {
  const read = open.size || $("decisions").contains(document.activeElement);
  if (read && decisions.length) return; // whoever reads one is not to lose it
  remake($("decisions"), decisions, () => decisions.length
    ? decisions.map(decision) : el("p", { class: "quiet", text: "None yet." }));
}

function decision(item) {
  const change = item.changed_from
    ? `${SOURCES[item.changed_from]} → ${SOURCES[item.source]}` : SOURCES[item.source];
  const sent = item.lines.find(([stage]) => stage === "sent")?.[1].replace(/, as command .*/, "") ?? "";
  const summary = el("summary", { "data-key": `tick-${item.tick}` },
    el("span", { text: moment(item.wall_s) }),
    el("span", { class: "soft", text: `tick ${item.tick}` }),
    item.changed_from ? el("strong", { text: change }) : el("span", { text: change }),
    el("span", { class: "soft", text: sent === "nothing" ? "nothing sent" : `sent ${sent}` }));
  const lines = item.lines.flatMap(([stage, words]) =>
    [el("dt", { text: stage }), el("dd", { text: words })]);
  const box = el("details", { class: "decision", open: open.has(item.tick) }, summary,
    el("dl", {}, el("dt", { text: "plant time" }), el("dd", { text: plantTime(item.plant_s) }), ...lines));
  box.addEventListener("toggle", () => (box.open ? open.add(item.tick) : open.delete(item.tick)));
  return box;
}

export function showEvents(state) {
  remake($("events"), state.events, (events) => events?.length ? el("div", {
    class: "scroll tall", tabindex: "0", role: "region", "aria-label": "The newest events",
  }, el("table", {},
    el("thead", {}, el("tr", {}, ...["when", "what", "who"].map((name) =>
      el("th", { scope: "col", text: name })))),
    el("tbody", {}, ...events.map((event) => el("tr", {},
      el("td", { class: "number", text: moment(event.wall_s) }),
      el("td", {}, ["warning", "alarm", "critical"].includes(event.severity)
        ? sign(event.severity) : null, " ", driver(event.text)),
      el("td", { text: event.actor })))))) : el("p", { class: "quiet", text: "Nothing yet." }));
}

// -- controller, link, record ---------------------------------------------------------------------

const EXPIRY_SOON_S = 30 * 86400;

export function showSystem(state, plant) {
  const { bundle, journal } = state;
  const rows = [];
  if (bundle.label === "none") rows.push(["Controller", "none: the heuristic is all there is"]);
  else {
    const left = bundle.left_s;
    const end = left <= 0 ? "▲ expired" : left < EXPIRY_SOON_S ? `▲ ${duration(left)} left` : `${duration(left)} left`;
    rows.push(["Controller", bundle.label]);
    rows.push(["Fingerprint", `${bundle.sha256.slice(0, 16)}…, signed by ${bundle.signer}`]);
    rows.push(["Valid until", `${day(bundle.not_after_s)}; ${end}`]);
  }
  if (bundle.alarm) rows.push(["▲ Not as configured", bundle.alarm]);
  if (state.go_live) rows.push([state.unproven ? "▲ Go-live" : "Go-live", capital(state.go_live)]);
  for (const text of bundle.warnings ?? []) rows.push(["▲ Warning", text]);
  rows.push(["Link", state.link ? `${state.link.state}; ${plant.address}` : plant.address]);
  rows.push(["Record", journal.cause
    ? `▲ ${journal.cause}: ${journal.fault}` : `sound; ${journal.records} records by this run`]);
  if (journal.lost_ticks || journal.lost_events) {
    rows.push(["▲ Lost", `${journal.lost_ticks} ticks, ${journal.lost_events} events`]);
  }
  rows.push(["Last record", `${journal.head}…, stored in ${number(journal.commit_s * 1000, 2)} ms`]);
  rows.push(["Period", `${duration(plant.period_s)} of plant time`
    + (plant.time_scale === 1 ? "" : `, ${number(plant.wall_period_s, 3)} s here`)]);
  if (state.timings_s) {
    const { lateness, ...stages } = state.timings_s;
    const cycle = Object.values(stages).reduce((sum, value) => sum + value, 0);
    rows.push(["Last tick took", `${number(cycle * 1000, 3)} ms, began ${number(lateness * 1000, 2)} ms late`]);
  }
  facts($("system"), rows);
}

// -- measurements ---------------------------------------------------------------------------------

let cells = [];

export function makeSignals(plant) {
  const made = plant.signals.map((signal) => {
    const value = el("td", { class: "number" });
    const state = el("td");
    const row = el("tr", {},
      el("th", { scope: "row", title: signal.name, text: capital(plain(signal.name, signal.unit)) }),
      value, el("td", { text: unit(signal.unit) }), state);
    return { signal, value, state, row };
  });
  const table = (rows, caption) => el("div", { class: "scroll" }, el("table", {},
    el("caption", { class: "unseen", text: caption }),
    el("thead", {}, el("tr", {},
      ...["name", "value", "unit", "quality"].map((name) => el("th", {
        scope: "col", text: name, class: name === "value" ? "number" : null,
      })))),
    el("tbody", {}, ...rows.map((cell) => cell.row))));
  const forecast = (cell) => cell.signal.name.includes("forecast");
  const later = made.filter(forecast);
  $("signals").replaceChildren(
    table(made.filter((cell) => !forecast(cell)), "Measurements now"),
    ...(later.length ? [el("details", {},
      el("summary", { text: `Forecasts (${later.length})` }), table(later, "Forecasts"))] : []));
  cells = made;
}

const QUALITY = ["good", "▲ uncertain", "▲ bad"];

export function showSignals(state) {
  cells.forEach((cell, i) => {
    const value = state.values?.[i] ?? null;
    const quality = state.quality?.[i] ?? 2;
    const age = state.ages?.[i] ?? null;
    say(cell.value, number(value));
    put(cell.value, { class: quality === 2 ? "number bad" : "number" });
    say(cell.state, QUALITY[quality] + (quality && age !== null ? `, ${duration(age)} old` : ""));
  });
}
