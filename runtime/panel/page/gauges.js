// Bars: how near the limits, what is sent, how far the policy is trusted.

import { $, el, put, say, sign, svg } from "./dom.js";
import { FOLLOWS, capital, duration, moment, number, plain, quantity, share } from "./words.js";

const WIDE = 1000;
const HIGH = 14;
const within = (value, low, high) => Math.min(high, Math.max(low, value));

function gauge(parent, title, ...shapes) {
  const value = el("span", { class: "value" });
  const note = el("p", { class: "note" });
  const picture = svg("svg", {
    viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true",
  }, svg("rect", { class: "track", width: WIDE, height: HIGH }), ...shapes);
  const meter = el("div", { role: "meter", "aria-label": title }, picture);
  const box = el("div", { class: "gauge" },
    el("div", { class: "line" }, el("span", { class: "name", text: title }), value), meter, note);
  parent.append(box);
  return { box, value, note, meter };
}

// -- limits ---------------------------------------------------------------------------------------

let limits = [];
let reached = null;

export function makeLimits(plant) {
  const parent = $("limits");
  parent.replaceChildren();
  limits = plant.rows.map((row) => {
    const keep = svg("rect", { class: "keep", height: HIGH });
    const fill = svg("rect", { class: "fill", height: HIGH, width: 0 });
    const edge = svg("line", { class: "tick", x1: WIDE - 1, x2: WIDE - 1, y1: 0, y2: HIGH });
    const made = gauge(parent, capital(plain(row.name)), keep, fill, edge);
    return { ...made, row, keep, fill };
  });
  reached = el("p", { class: "soft" });
  parent.append(reached, el("p", {
    class: "note soft",
    text: "A full bar is the limit. The shaded end is the distance kept from it.",
  }));
}

export function showLimits(state) {
  say(reached, Number.isFinite(state.reached_s ?? NaN)
    ? `If it goes on like this, the distance kept is used up in ${duration(state.reached_s)} of plant time.`
    : "");
  limits.forEach((bar, i) => {
    const now = state.limits?.[i];
    const known = now && now.left !== null;
    const over = known && now.left < 0;
    const level = !known ? "" : over ? "alarm" : now.inside_kept ? "warning" : "";
    const kept = known ? within(now.kept, 0, 1) : 0;
    put(bar.keep, { x: (1 - kept) * WIDE, width: kept * WIDE });
    put(bar.fill, { class: `fill ${level}`, width: known ? within(now.near, 0, 1) * WIDE : 0 });
    const text = !known ? "unknown"
      : over ? `${quantity(-now.left, bar.row.unit)} over the limit`
        : `${quantity(now.left, bar.row.unit)} left`;
    say(bar.value, text);
    put(bar.meter, {
      "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuetext": text,
      "aria-valuenow": known ? Math.round(within(now.near, 0, 1) * 100) : 0,
    });
    const notes = [];
    if (level === "warning") notes.push("closer than the distance kept");
    if (known && now.active) notes.push("the filter holds the command back here");
    if (known && now.nearest) notes.push("nearest");
    const words = notes.join("; ");
    if (bar.note.dataset.words === `${level}${words}`) return;
    bar.note.dataset.words = `${level}${words}`;
    bar.note.replaceChildren(...(level ? [sign(level), " "] : []), words);
  });
}

// -- outputs --------------------------------------------------------------------------------------

let outputs = [];

export function makeOutputs(plant) {
  const parent = $("outputs");
  parent.replaceChildren();
  outputs = plant.outputs.map((signal) => {
    const at = (value) => ((value - signal.low) / (signal.high - signal.low)) * WIDE;
    const zero = at(within(0, signal.low, signal.high));
    const fill = svg("rect", { class: "fill", height: HIGH, width: 0 });
    const line = svg("line", { class: "tick thin", x1: zero, x2: zero, y1: 0, y2: HIGH });
    const applied = svg("line", { class: "tick", y1: 0, y2: HIGH });
    const made = gauge(parent, capital(plain(signal.name, signal.unit)), fill, line, applied);
    const details = el("p", { class: "note" });
    made.box.append(details);
    return { ...made, signal, at, zero, fill, applied, details };
  });
}

export function showOutputs(state) {
  outputs.forEach((bar, i) => {
    const { signal } = bar;
    const value = (name) => state[name]?.[i] ?? null;
    const follows = state.participation?.[signal.name] ?? "none";
    const kept = follows === "plant";
    const sent = kept ? null : value("sent");
    const applied = value("applied");
    const edge = sent === null ? bar.zero : within(bar.at(sent), 0, WIDE);
    put(bar.fill, { x: Math.min(edge, bar.zero), width: Math.abs(edge - bar.zero) });
    const mark = applied === null ? bar.zero : within(bar.at(applied), 0, WIDE);
    put(bar.applied, { x1: mark, x2: mark });
    const text = kept ? "▲ the plant keeps it: nothing is sent"
      : sent === null ? "nothing is sent" : `sent ${quantity(sent, signal.unit)}`;
    say(bar.value, text);
    put(bar.meter, {
      "aria-valuemin": signal.low, "aria-valuemax": signal.high,
      "aria-valuenow": sent ?? 0, "aria-valuetext": text,
    });
    say(bar.note, [
      `follows ${FOLLOWS[follows]}`,
      `applied by the plant ${quantity(applied, signal.unit)} (line)`,
      `proposed by the policy ${quantity(value("proposed"), signal.unit)}`,
    ].join(" · "));
    const held = state.overrides?.find((item) => item.output === signal.name);
    say(bar.details, held
      ? `${kept ? "Override waits: " : "Overridden at "}${quantity(held.value, signal.unit)}`
        + ` by ${held.owner} until ${moment(held.until_wall_s)}: ${held.reason}`
      : `${number(signal.low)} to ${quantity(signal.high, signal.unit)}`
        + (signal.positive ? `; + ${signal.positive}` : ""));
  });
}

// -- trust ----------------------------------------------------------------------------------------

let confidence = null;
let monitors = [];

export function makeTrust(plant) {
  const parent = $("trust");
  parent.replaceChildren();
  const bar = (title) => {
    const fill = svg("rect", { class: "fill", height: HIGH, width: 0 });
    return { ...gauge(parent, title, fill), fill };
  };
  confidence = bar("Confidence");
  monitors = plant.monitors.map((name) => bar(`Monitor: ${plain(name)}`));
}

export function showTrust(state) {
  const trust = state.trust;
  const sure = trust?.confidence ?? null;
  put(confidence.fill, { width: sure === null ? 0 : within(sure, 0, 1) * WIDE });
  say(confidence.value, share(sure));
  say(confidence.note, trust
    ? `${trust.trusted ? "trusted" : "not trusted"}; the gate is in state ${trust.gate}`
    : "not judged yet");
  put(confidence.meter, {
    "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": sure ?? 0,
    "aria-valuetext": share(sure),
  });
  monitors.forEach((bar, i) => {
    const score = trust?.scores?.[i] ?? null;
    const high = score !== null && score >= 1;
    put(bar.fill, {
      class: `fill ${high ? "warning" : ""}`, width: score === null ? 0 : within(score, 0, 1) * WIDE,
    });
    const text = score === null ? "not scored" : `${share(score)} of 1`;
    say(bar.value, text);
    say(bar.note, high ? "▲ at 1 or above: the policy is not trusted" : "");
    put(bar.meter, {
      "aria-valuemin": 0, "aria-valuemax": 1,
      "aria-valuenow": score === null ? 0 : within(score, 0, 1), "aria-valuetext": text,
    });
  });
}
