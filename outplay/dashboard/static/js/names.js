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

/** Labels that tell these runs apart with as few words as possible: { id: label }. */
export function labels(runs) {
  const parts = new Map(runs.map((run) => [run.id, []]));
  const add = (read) => {
    const texts = runs.map(read);
    if (new Set(texts).size < 2) return;
    runs.forEach((run, index) => texts[index] && parts.get(run.id).push(texts[index]));
  };
  add((run) => run.algorithm ?? "");
  add((run) => run.env ?? "");
  const keys = new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})).filter(isShown));
  let added = 0;
  const named = [];
  for (const key of keys) {
    const texts = runs.map((run) => (key in (run.settings ?? {}) ? value(run.settings[key]) : null));
    if (new Set(texts).size < 2 || added >= 3) continue;
    added += 1;
    named.push(last(key));
    runs.forEach((run, index) => texts[index] !== null && parts.get(run.id).push(`${last(key)} ${texts[index]}`));
  }
  add((run) => (run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`));
  const seen = new Map();
  for (const run of runs) {
    const text = parts.get(run.id).join(" · ");
    seen.set(text, (seen.get(text) ?? 0) + 1);
  }
  return new Map(
    runs.map((run) => {
      const text = parts.get(run.id).join(" · ");
      if (!text && named.length && !seen.has(`${named[0]} default`)) return [run.id, `${named[0]} default`];
      if (!text) return [run.id, runs.length === 1 ? title(run) : `${title(run)} · ${shortId(run)}`];
      return [run.id, seen.get(text) > 1 ? `${text} · ${shortId(run)}` : text];
    }),
  );
}
