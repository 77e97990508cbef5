// Numbers, times and names as people read them.

const digits = new Map();

export function number(value, significant = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  if (!digits.has(significant)) {
    digits.set(significant, new Intl.NumberFormat("en", {
      maximumSignificantDigits: significant, useGrouping: false,
    }));
  }
  return digits.get(significant).format(value).replace("-", "\u2212");
}

export const share = (value) =>
  (value === null || value === undefined || !Number.isFinite(value) ? "unknown" : value.toFixed(2));

export const unit = (name) => (name === "degC" ? "°C" : name === "1" ? "" : name);

export const quantity = (value, name, significant = 4) => {
  const text = number(value, significant);
  return text === "unknown" || !unit(name) ? text : `${text} ${unit(name)}`;
};

const two = (value) => String(Math.floor(value)).padStart(2, "0");

// 42 s, 3 min 05 s, 2 h 05 min, 3 d 4 h
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(s < 1 ? 1 : 0)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${two(s % 60)} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function clock(seconds, withSeconds = true) {
  if (!Number.isFinite(seconds)) return "--:--:--";
  const at = new Date(seconds * 1000);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return withSeconds ? `${text}:${two(at.getSeconds())}` : text;
}

export function day(seconds) {
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

// Time of day, with the date where it is not today's.
export function moment(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  const today = day(Date.now() / 1000);
  return day(seconds) === today ? clock(seconds) : `${day(seconds)} ${clock(seconds)}`;
}

// Plant time since the start: 2 d 06:15
export function plantTime(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  const s = Math.max(0, seconds);
  const days = Math.floor(s / 86400);
  const rest = `${two((s % 86400) / 3600)}:${two((s % 3600) / 60)}`;
  const fine = s < 3600 ? `:${two(s % 60)}` : "";
  return `${days ? `${days} d ` : ""}${rest}${fine}`;
}

// storage_energy_kwh in kWh: "storage energy"
export function plain(name, unitName = "") {
  const suffix = unitName.toLowerCase().replace("1/", "per_").replaceAll("/", "_per_");
  const stem = suffix && name.endsWith(`_${suffix}`) ? name.slice(0, -suffix.length - 1) : name;
  return stem.replaceAll("_", " ");
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// "FALLBACK -> POLICY: why" as the journal has it, in the words of the page.
export const driver = (text) => text.replace(/^([A-Z_]+) -> ([A-Z_]+)(?=:)/, (all, from, to) =>
  (from.toLowerCase() in SOURCES && to.toLowerCase() in SOURCES
    ? `${capital(SOURCES[from.toLowerCase()])} → ${SOURCES[to.toLowerCase()]}` : all));

// Whom one output follows.
export const FOLLOWS = {
  none: "nobody of ours",
  policy: "the policy",
  fallback: "the heuristic",
  hold: "the last value",
  safe: "the safe set-point",
  override: "a person",
  plant: "the plant, which keeps it to itself",
};

export const SOURCES = {
  policy: "policy",
  fallback: "heuristic",
  hold: "last value held",
  safe: "safe set-point",
  hands_off: "plant's own control",
};
