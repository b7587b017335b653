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

/** The settings that differ from the defaults, without the seed, as short text. */
export function settingsText(run, most = 4) {
  const entries = Object.entries(run.settings ?? {}).filter(([key]) => key !== "seed" && key !== "env");
  const shown = entries.slice(0, most).map(([key, each]) => `${key.split("/").pop()}=${value(each)}`);
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
  const keys = new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})));
  keys.delete("seed");
  keys.delete("env");
  let added = 0;
  for (const key of keys) {
    const texts = runs.map((run) => (key in (run.settings ?? {}) ? value(run.settings[key]) : null));
    if (new Set(texts).size < 2 || added >= 3) continue;
    added += 1;
    runs.forEach((run, index) => texts[index] !== null && parts.get(run.id).push(`${key.split("/").pop()} ${texts[index]}`));
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
      if (!text) return [run.id, runs.length === 1 ? title(run) : `${title(run)} · ${shortId(run)}`];
      return [run.id, seen.get(text) > 1 ? `${text} · ${shortId(run)}` : text];
    }),
  );
}
