// Which runs are in the charts: those of the address, else the newest ones.

import { store } from "./store.js";

const NEWEST = 6;

/** The runs that the address names; null if it names none. An empty `run` means that nothing is selected. */
export function chosenRuns(params) {
  if (!params.has("run")) return null;
  return params.getAll("run").filter((id) => store.runs.has(id));
}

/** The newest runs that are not trials of a study. */
export function newest() {
  return [...store.runs.values()]
    .filter((run) => !run.study)
    .sort((a, b) => (b.started ?? "").localeCompare(a.started ?? ""))
    .slice(0, NEWEST)
    .map((run) => run.id);
}

/** The parameter `run` for a selection: "none" has no run of that name, so that an empty selection survives a reload. */
export const asParameter = (ids) => (ids.length ? ids : ["none"]);
