// Trends drawn by hand: one small chart per quantity, one band for who drove, one common time.

import { $, el, put, say, svg } from "./dom.js";
import { SOURCES, capital, clock, number, plain, plantTime, quantity, unit } from "./words.js";

const CAPACITY = 4096;
const LEFT = 2;
const RIGHT = 2;
const WINDOWS = [["300", "5 min"], ["900", "15 min"], ["3600", "1 h"]];

let plant = null;
let rows = [];
let next = 0;
let charts = [];
let band = null;
let view = { from: 0, to: 0, seconds: 3600 };
let cursor = null;
let tools = {};

export const nextRow = () => next;

export function makeTrends(description) {
  plant = description;
  rows = [];
  next = 0;
  cursor = null;
  const long = Math.max(3600, 96 * plant.wall_period_s);
  view = { from: 0, to: 0, seconds: long };
  const choices = long > 3600 ? [...WINDOWS, [String(long), "96 ticks"]] : WINDOWS;
  const select = el("select", { onchange: () => { view.seconds = Number(select.value); draw(); } },
    ...choices.map(([value, text]) => el("option", { value, text })));
  select.value = String(long);
  const slider = el("input", {
    type: "range", min: 0, max: 1000, value: 1000, step: 1,
    oninput: () => lookAt(slider.value === "1000" ? null : Number(slider.value) / 1000),
  });
  const readout = el("span", { class: "readout" });
  tools = { slider, readout };
  band = makeBand();
  charts = chartsOf(plant.columns).map(makeChart);
  const body = el("tbody");
  const head = el("tr");
  const table = el("details", { ontoggle: () => fillTable(table, head, body) },
    el("summary", { text: "Show as a table" }),
    el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Trends as a table" },
      el("table", {}, el("caption", { class: "unseen", text: "Trends" }), el("thead", {}, head), body)));
  tools.table = () => fillTable(table, head, body);
  $("trends").replaceChildren(
    el("div", { class: "trend-tools" },
      el("label", {}, "Show the last ", select),
      el("label", {}, "Look back ", slider),
      readout),
    band.box,
    el("div", { class: "trend-grid" }, ...charts.map((chart) => chart.box)),
    table);
  const watch = new ResizeObserver(() => draw());
  watch.observe($("trends"));
}

// Rows as the server sends them: a head of three numbers, then the rows.
export function addRows(buffer) {
  const [first, following, width] = new Float64Array(buffer, 0, 3);
  if (width !== plant.columns.length) return;
  if (first > next) rows = [];
  for (let number = first; number < following; number += 1) {
    if (number < next) continue;
    rows.push(new Float64Array(buffer, 24 + (number - first) * width * 8, width));
  }
  next = following;
  if (rows.length > CAPACITY) rows = rows.slice(-CAPACITY);
}

function chartsOf(columns) {
  const found = [];
  const column = (kind, name) => columns.findIndex((c) => c.kind === kind && c.name === name);
  for (const output of plant.outputs) {
    found.push({
      title: capital(plain(output.name, output.unit)), unit: output.unit,
      series: [["applied", column("applied", output.name)], ["proposed", column("proposed", output.name)]],
      range: [output.low, output.high],
    });
  }
  found.push({
    title: "Confidence", unit: "1", range: [0, 1],
    series: [["", columns.findIndex((c) => c.kind === "confidence")]],
  });
  columns.forEach((c, i) => {
    if (c.kind !== "signal") return;
    const signal = plant.signals.find((s) => s.name === c.name);
    found.push({
      title: capital(plain(c.name, signal.unit)), unit: signal.unit, series: [["", i]], range: null,
    });
  });
  return found;
}

// -- drawing --------------------------------------------------------------------------------------

function visible() {
  const newest = rows.length ? rows[rows.length - 1][0] : 0;
  const oldest = rows.length ? rows[0][0] : 0;
  const span = Math.min(view.seconds, Math.max(30, newest - oldest));
  view.to = newest;
  view.from = newest - span;
  return rows.filter((row) => row[0] >= view.from && row[0] <= view.to);
}

export function draw() {
  if (!plant || !rows.length) return;
  const seen = visible();
  drawBand(seen);
  for (const chart of charts) drawChart(chart, seen);
  readOut(seen);
  tools.table();
}

// Height of the small letters in a chart, and all that hangs on it.
const em = () => 0.72 * parseFloat(getComputedStyle(document.documentElement).fontSize);

const shapeOf = (node) => {
  const box = node.getBoundingClientRect();
  const width = Math.max(40, Math.round(box.width));
  const height = Math.max(20, Math.round(box.height));
  put(node, { viewBox: `0 0 ${width} ${height}` });
  return { width, height };
};

const across = (width) => {
  const span = Math.max(1e-9, view.to - view.from);
  return (seconds) => LEFT + ((seconds - view.from) / span) * (width - LEFT - RIGHT);
};

function hover(node) {
  node.addEventListener("pointermove", (event) => {
    const box = node.getBoundingClientRect();
    lookAt((event.clientX - box.left - LEFT) / Math.max(1, box.width - LEFT - RIGHT));
  });
  node.addEventListener("pointerleave", () => lookAt(null));
}

function makeChart(spec) {
  const now = el("span", { class: "now" });
  const plot = svg("rect", { class: "plot" });
  const curves = spec.series.map((_, i) => svg("path", { class: i ? "curve second" : "curve" }));
  const line = svg("line", { class: "cursor", visibility: "hidden" });
  const high = svg("text", { class: "scale inside", x: LEFT + 3 });
  const low = svg("text", { class: "scale inside", x: LEFT + 3 });
  const picture = svg("svg", { role: "img" }, plot, ...curves.reverse(), line, high, low);
  hover(picture);
  const second = spec.series.length > 1 ? " (dashed: the policy's proposal)" : "";
  const box = el("div", { class: "trend" },
    el("div", { class: "line" },
      el("span", {}, spec.title, el("span", { class: "soft", text: second })), now),
    picture);
  return { ...spec, box, now, plot, curves: curves.reverse(), line, high, low, picture };
}

function rangeOf(chart, seen) {
  if (chart.range) return chart.range;
  let low = Infinity;
  let high = -Infinity;
  for (const [, column] of chart.series) {
    for (const row of seen) {
      const value = row[column];
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return [0, 1];
  const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.005, 1e-6);
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

function drawChart(chart, seen) {
  const { width, height } = shapeOf(chart.picture);
  const [low, high] = rangeOf(chart, seen);
  const x = across(width);
  const top = 2;
  const bottom = height - 4;
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  put(chart.plot, { x: LEFT, y: top, width: width - LEFT - RIGHT, height: bottom - top });
  chart.series.forEach(([, column], i) => {
    put(chart.curves[i], { d: path(seen, column, x, y, width) });
  });
  put(chart.high, { y: top + em() });
  put(chart.low, { y: bottom - 0.35 * em() });
  say(chart.high, number(high, 3));
  say(chart.low, number(low, 3));
  const last = seen.length ? seen[seen.length - 1][chart.series[0][1]] : NaN;
  put(chart.picture, {
    "aria-label": `${chart.title}: now ${quantity(last, chart.unit)},`
      + ` between ${number(low, 3)} and ${quantity(high, chart.unit, 3)}. The table below has the numbers.`,
  });
}

// A step for every row: a value holds until the next one. Gaps stay gaps.
function path(seen, column, x, y, width) {
  const longest = 3 * Math.max(plant.wall_period_s, 1);
  const step = Math.max(1, Math.floor(seen.length / (width * 2)));
  const parts = [];
  let before = null;
  for (let i = 0; i < seen.length; i += step) {
    const row = seen[i];
    const value = row[column];
    if (!Number.isFinite(value)) { before = null; continue; }
    const at = `${x(row[0]).toFixed(1)}`;
    const level = y(value).toFixed(1);
    if (before === null || row[0] - before > longest * step) parts.push(`M${at} ${level}`);
    else parts.push(`H${at}V${level}`);
    before = row[0];
  }
  return parts.join("");
}

// -- who drove ------------------------------------------------------------------------------------

function hatch(id, turn) {
  return svg("pattern", {
    id, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})`,
  }, svg("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 7 }));
}

const HATCHES = { fallback: "hatch-fallback", hold: "hatch-hold", safe: "hatch-safe" };

function cell(source, x, y, width, height) {
  const box = { x, y, width, height };
  return [
    svg("rect", { class: `band-${source}`, ...box }),
    HATCHES[source] ? svg("rect", { fill: `url(#${HATCHES[source]})`, ...box }) : null,
  ].filter(Boolean);
}

function makeBand() {
  const cells = svg("g");
  const axis = svg("g");
  const line = svg("line", { class: "cursor", visibility: "hidden" });
  const picture = svg("svg", { role: "img" }, svg("defs", {},
    hatch("hatch-fallback", 45), hatch("hatch-hold", 0), hatch("hatch-safe", -45)), cells, axis, line);
  hover(picture);
  const legend = el("p", { class: "legend" }, ...plant.sources.map((source) => el("span", {},
    svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, ...cell(source, 0.5, 0.5, 21, 9)),
    SOURCES[source])));
  const now = el("span", { class: "now" });
  const box = el("div", { class: "trend wide" },
    el("div", { class: "line" }, el("span", { text: "Who drove" }), now), picture, legend);
  return { box, picture, cells, axis, line, now };
}

function drawBand(seen) {
  const { width, height } = shapeOf(band.picture);
  const x = across(width);
  const tall = height - 3.1 * em();
  const shapes = [];
  const shares = new Map();
  for (let i = 0; i < seen.length;) {
    let j = i;
    while (j < seen.length && seen[j][2] === seen[i][2]) j += 1;
    const end = j < seen.length ? seen[j][0] : view.to;
    const source = plant.sources[seen[i][2]];
    shares.set(source, (shares.get(source) ?? 0) + end - seen[i][0]);
    shapes.push(...cell(source, x(seen[i][0]), 1, Math.max(1, x(end) - x(seen[i][0])), tall));
    i = j;
  }
  band.cells.replaceChildren(...shapes);
  const total = [...shares.values()].reduce((sum, part) => sum + part, 0);
  const words = [...shares].map(([source, part]) =>
    `${SOURCES[source]} ${Math.round((100 * part) / Math.max(total, 1e-9))} %`);
  put(band.picture, { "aria-label": `Who drove: ${words.join(", ")}. The table below has the times.` });
  drawAxis(seen, x, width, tall);
}

function drawAxis(seen, x, width, tall) {
  const count = Math.max(2, Math.min(9, Math.floor(width / (9.5 * em()))));
  const marks = [];
  for (let i = 0; i <= count; i += 1) {
    const at = view.from + ((view.to - view.from) * i) / count;
    const row = nearest(seen, at);
    const anchor = i === 0 ? "start" : i === count ? "end" : "middle";
    const text = (words, y) => svg("text", { class: "scale", x: x(at), y, "text-anchor": anchor, text: words });
    marks.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: tall + 0.4 * em() }),
      text(clock(at), tall + 1.55 * em()));
    const near = row && Math.abs(row[0] - at) < 2 * Math.max(plant.wall_period_s, 1);
    if (near) marks.push(text(`plant ${plantTime(row[1])}`, tall + 2.75 * em()));
  }
  band.axis.replaceChildren(...marks);
}

// -- looking back ---------------------------------------------------------------------------------

function nearest(seen, at) {
  if (!seen.length) return null;
  let low = 0;
  let high = seen.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (seen[middle][0] < at) low = middle + 1; else high = middle;
  }
  const before = seen[Math.max(0, low - 1)];
  return Math.abs(before[0] - at) < Math.abs(seen[low][0] - at) ? before : seen[low];
}

function lookAt(share) {
  cursor = share === null ? null : Math.min(1, Math.max(0, share));
  readOut(visible());
}

function readOut(seen) {
  const at = cursor === null ? view.to : view.from + cursor * (view.to - view.from);
  const row = nearest(seen, at);
  for (const chart of [band, ...charts]) {
    const { width, height } = chart.picture.viewBox.baseVal;
    const place = cursor === null ? 0 : across(width)(row?.[0] ?? at);
    put(chart.line, {
      x1: place, x2: place, y1: 0, y2: height, visibility: cursor === null ? "hidden" : "visible",
    });
  }
  if (!row) return;
  for (const chart of charts) {
    say(chart.now, quantity(row[chart.series[0][1]], chart.unit));
  }
  say(band.now, SOURCES[plant.sources[row[2]]]);
  say(tools.readout, cursor === null ? "" : `at ${clock(row[0])}, plant time ${plantTime(row[1])}`);
  put(tools.slider, {
    "aria-valuetext": cursor === null ? "now"
      : `${clock(row[0])}, plant time ${plantTime(row[1])}, ${SOURCES[plant.sources[row[2]]]}`,
  });
}

// -- the same as a table --------------------------------------------------------------------------

function fillTable(table, head, body) {
  if (!table.open) return;
  const seen = visible();
  const step = Math.max(1, Math.ceil(seen.length / 40));
  const titles = ["time", "plant time", "who drove", ...charts.map((chart) =>
    unit(chart.unit) ? `${chart.title} [${unit(chart.unit)}]` : chart.title)];
  head.replaceChildren(...titles.map((text) => el("th", { scope: "col", text })));
  const lines = [];
  for (let i = seen.length - 1; i >= 0; i -= step) {
    const row = seen[i];
    lines.push(el("tr", {},
      el("th", { scope: "row", text: clock(row[0]) }),
      el("td", { text: plantTime(row[1]) }),
      el("td", { text: SOURCES[plant.sources[row[2]]] }),
      ...charts.map((chart) => el("td", { class: "number", text: number(row[chart.series[0][1]]) }))));
  }
  body.replaceChildren(...lines);
}
