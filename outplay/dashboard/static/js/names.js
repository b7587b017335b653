// What a run is called where several stand side by side.

import { value } from "./format.js";

/** The part of the folder's name that is unique: its six hexadecimal digits, else the last part of the id. */
export function shortId(run) {
  const last = run.id.split("/").pop();
  return /_([0-9a-f]{6})_/.exec(last)?.[1] ?? last;
}

export function title(run) {
  return run.algorithm && run.env ? `${run.algorithm} · ${run.env}` : run.name;
}

const MOST_SETTINGS = 3; // in a label
const last = (name) => name.split(/[./]/).pop();
const isShown = (name) => name !== "seed" && name !== "env" && !name.startsWith("stop.");

/** The settings that vary between the runs of each experiment: { experiment: set of names }. Others say nothing in a list. */
export function varying(runs) {
  const seen = new Map(); // experiment -> { name: [text of its value, number of runs that have it] }
  const counts = new Map();
  const found = new Map();
  for (const run of runs) {
    if (!seen.has(run.experiment)) {
      seen.set(run.experiment, new Map());
      found.set(run.experiment, new Set());
    }
    counts.set(run.experiment, (counts.get(run.experiment) ?? 0) + 1);
    const values = seen.get(run.experiment);
    for (const [name, each] of Object.entries(run.settings ?? {})) {
      const text = value(each);
      const known = values.get(name);
      if (!known) values.set(name, [text, 1]);
      else if (known[0] !== text) found.get(run.experiment).add(name);
      else known[1] += 1;
    }
  }
  for (const [experiment, values] of seen) {
    for (const [name, [, count]] of values) if (count < counts.get(experiment)) found.get(experiment).add(name);
  }
  return found;
}

/** The settings among `names` that differ from the defaults, as short text. */
export function settingsText(run, names, most = 4) {
  const entries = Object.entries(run.settings ?? {}).filter(([name]) => isShown(name) && names?.has(name));
  const shown = entries.slice(0, most).map(([name, each]) => `${last(name)}=${value(each)}`);
  return shown.join("  ") + (entries.length > most ? `  +${entries.length - most}` : "");
}

/** Labels that tell these runs apart with as few words as possible: Map of id to label. */
export function labels(runs) {
  const parts = new Map(runs.map((run) => [run.id, []]));
  const text = (run) => parts.get(run.id).join(" · ");
  addVarying(runs, parts, (run) => run.algorithm ?? "");
  addVarying(runs, parts, (run) => run.env ?? "");
  for (const alike of buckets(runs, text)) {
    const names = new Set(alike.flatMap((run) => Object.keys(run.settings ?? {})).filter(isShown));
    let left = MOST_SETTINGS;
    for (const name of names) {
      if (left > 0 && addVarying(alike, parts, (run) => (name in (run.settings ?? {}) ? `${last(name)} ${value(run.settings[name])}` : `${last(name)} default`))) left -= 1;
    }
    addVarying(alike, parts, (run) => (run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`));
  }
  for (const alike of buckets(runs, text)) {
    for (const run of alike) if (alike.length > 1) parts.get(run.id).push(shortId(run));
  }
  return new Map(runs.map((run) => [run.id, text(run) || title(run)]));
}

/** Add a part to the label of each of these runs, if it is not the same for all of them. */
function addVarying(runs, parts, read) {
  const texts = runs.map(read);
  if (new Set(texts).size < 2) return false;
  runs.forEach((run, index) => texts[index] && parts.get(run.id).push(texts[index]));
  return true;
}

/** Runs with the same text, together. */
function buckets(runs, text) {
  const found = new Map();
  for (const run of runs) found.set(text(run), [...(found.get(text(run)) ?? []), run]);
  return [...found.values()];
}
