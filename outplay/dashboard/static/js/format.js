// Numbers, times and names as text. Missing values are an en dash everywhere.

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A number with four significant digits at most: 0.00123, 12.35, 1,234, 61.4k, 1.2M. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  for (const [limit, unit, name] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e5, 1e3, "k"]]) {
    if (size >= limit) return trimmed((value / unit).toPrecision(4)) + name;
  }
  if (size >= 1000) return WHOLE.format(value);
  return trimmed(value.toPrecision(4));
}

function trimmed(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

/** A return or score: one decimal, so that the width stays the same while it changes. */
export function score(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 0.1)) return number(value);
  return size >= 10 || Number.isInteger(value) ? value.toFixed(1) : value.toFixed(2);
}

/** Labels of evenly spaced numbers on an axis, with as many decimals as tell neighbours apart. */
export function axisLabels(values, increment) {
  const largest = Math.max(0, ...values.map((value) => Math.abs(value ?? 0)));
  const isTiny = largest > 0 && largest < 1e-4;
  if (isTiny || largest >= 1e15) return values.map((value) => (value === null ? "" : value === 0 ? "0" : exponential(value, increment)));
  const [, unit, name] = [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]].find(([limit]) => largest >= limit) ?? [0, 1, ""];
  const digits = decimals(increment / unit);
  const format = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return values.map((value) => (value === null ? "" : Math.abs(value) < increment / 1e6 ? "0" : format.format(value / unit) + name));
}

/** The decimals that a number needs, at most 12: 2 for 0.25. */
function decimals(value) {
  let [digits, scaled] = [0, value];
  while (digits < 12 && Math.abs(scaled - Math.round(scaled)) > scaled * 1e-6) [digits, scaled] = [digits + 1, scaled * 10];
  return digits;
}

function exponential(value, increment) {
  const power = (number) => Math.floor(Math.log10(Math.abs(number)) + 1e-9);
  const digits = power(value) - power(increment) + decimals(increment / 10 ** power(increment));
  return trimmed(value.toExponential(Math.min(12, Math.max(0, digits)))).replace("e+", "e");
}

/** A number on a logarithmic axis. */
export function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return trimmed((value / 1e9).toPrecision(4)) + "G";
  if (size >= 1e6) return trimmed((value / 1e6).toPrecision(4)) + "M";
  if (size >= 1e4) return trimmed((value / 1e3).toPrecision(4)) + "k";
  return number(value);
}

export function whole(value) {
  return typeof value === "number" && Number.isFinite(value) ? WHOLE.format(value) : NONE;
}

export function percent(share, digits = 0) {
  return typeof share === "number" && Number.isFinite(share) ? `${(share * 100).toFixed(digits)}%` : NONE;
}

export function bytes(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NONE;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${value >= 100 || index === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[index]}`;
}

/** Bytes in use of all: 71.2 of 151 GB. */
export function bytesOf(used, all) {
  const [text, unit] = bytes(all).split(" ");
  const size = { B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 }[unit];
  if (!size || typeof used !== "number" || !Number.isFinite(used)) return NONE;
  return `${used / size >= 100 ? (used / size).toFixed(0) : (used / size).toFixed(1)} of ${text} ${unit}`;
}

/** Seconds as text: 3.1 s, 2 min 05 s, 1 h 02 min, 3 d 4 h. */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NONE;
  const sign = seconds < 0 ? "-" : "";
  const all = Math.abs(seconds);
  if (all < 60) return `${sign}${all < 10 ? all.toFixed(1) : Math.floor(all)} s`;
  const [days, hours, minutes, rest] = [all / 86400, (all % 86400) / 3600, (all % 3600) / 60, all % 60].map(Math.floor);
  const two = (value) => String(value).padStart(2, "0");
  if (all < 3600) return `${sign}${minutes} min ${two(rest)} s`;
  if (all < 86400) return `${sign}${hours} h ${two(minutes)} min`;
  return `${sign}${days} d ${hours} h`;
}

/** Distances between labels of an axis of seconds: from a millisecond to 50 days. */
export const TIMES = [
  ...[1e-3, 1e-2, 1e-1].flatMap((power) => [1, 2, 5].map((factor) => factor * power)),
  ...[1, 2, 5, 10, 15, 30].flatMap((each) => [each, each * 60]),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
  ...[1, 2, 5, 10, 20, 50].map((days) => days * 86400),
].sort((a, b) => a - b);

/** Seconds on an axis: 2.5s, 30s, 5m, 5m30, 1h30, 1h30m05, 1d06h. The increment says how exact they are. */
export function clock(seconds, increment = 1) {
  const digits = increment < 1 ? decimals(increment) : 0;
  const sign = seconds <= -increment / 2 ? "-" : "";
  const all = Number(Math.abs(seconds).toFixed(digits));
  if (all < 60) return `${sign}${all.toFixed(all ? digits : 0)}s`;
  const [days, hours, minutes] = [all / 86400, (all % 86400) / 3600, (all % 3600) / 60].map(Math.floor);
  const rest = all - days * 86400 - hours * 3600 - minutes * 60;
  const parts = [[days, "d"], [hours, "h"], [minutes, "m"], [rest, "s"]];
  const first = parts.findIndex(([value]) => value > 0);
  const last = parts.findLastIndex(([value]) => value >= 10 ** -digits / 2);
  const shown = parts.slice(first, last + 1).map(([value, unit], index) => (index ? value.toFixed(unit === "s" ? digits : 0).padStart(unit === "s" && digits ? digits + 3 : 2, "0") : value) + unit);
  const text = shown.join("");
  return sign + (shown.length > 1 ? text.replace(/[ms]$/, "") : text);
}

/** How long ago a moment was. */
export function ago(iso) {
  const then = Date.parse(iso ?? "");
  if (Number.isNaN(then)) return NONE;
  const seconds = Math.max(0, (Date.now() - then) / 1000);
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function moment(iso) {
  const then = Date.parse(iso ?? "");
  return Number.isNaN(then) ? NONE : new Date(then).toLocaleString();
}

/** A setting's value as YAML would have it on one line. */
export function value(thing) {
  if (thing === null || thing === undefined) return "null";
  if (typeof thing === "number") return Number.isInteger(thing) ? String(thing) : String(Number(thing.toPrecision(6)));
  if (typeof thing === "string") return thing === "" ? '""' : thing;
  return JSON.stringify(thing);
}

/** learner/policy_loss -> Policy loss; the names that everyone knows get their usual form. */
const KNOWN = {
  episode_return_mean: "Return",
  episode_return_min: "Return, minimum",
  episode_return_max: "Return, maximum",
  episode_len_mean: "Episode length",
  env_steps_per_s: "Steps per second",
  timesteps_total: "Steps",
  episodes_total: "Episodes",
  time_total_s: "Time",
  training_iteration: "Iteration",
};

export function metricTitle(name) {
  if (KNOWN[name]) return KNOWN[name];
  if (name.startsWith("evaluation/")) return `Evaluation: ${metricTitle(name.slice(11)).replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase())}`;
  const words = name.split("/").pop().replaceAll("_", " ");
  const acronym = /^(kl|lr|td|vf|q|sgd)\b/i;
  const text = words.replace(acronym, (found) => found.toUpperCase());
  return text.charAt(0).toUpperCase() + text.slice(1);
}
