// The data of charts: asked for once, and again only for runs that changed.

import { get, isAborted } from "./api.js";

const PER_REQUEST = 20; // runs, so that addresses stay short
const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;

/** The curves of one metric for any number of runs. `onchange` is called when there is something new to draw. */
export class Series {
  constructor(onchange, onerror) {
    Object.assign(this, { onchange, onerror, curves: new Map(), bands: new Map(), key: "", query: {} });
    Object.assign(this, { dirty: new Set(), groups: [], timer: 0, wait: FIRST_WAIT, isBusy: false, isLoaded: false, abort: new AbortController() });
  }

  /** Ask for these runs and groups: a group is { key, runs, isWhole }. Known curves are kept if the query is the same. */
  want(query, runs, groups) {
    const key = JSON.stringify(query);
    if (key !== this.key) {
      this.key = key;
      this.query = query;
      this.abort.abort();
      this.abort = new AbortController();
      this.isBusy = false;
      this.isStale = true; // the old curves stay visible until the new ones are there
      this.dirty = new Set(runs);
      this.dirtyGroups = new Set(groups.map(groupKey));
    }
    this.runs = runs;
    this.groups = groups;
    this.dirtyGroups ??= new Set();
    for (const run of runs) if (!this.curves.has(run)) this.dirty.add(run);
    for (const group of groups) if (!this.bands.has(groupKey(group))) this.dirtyGroups.add(groupKey(group));
    for (const run of [...this.curves.keys()]) if (!runs.includes(run)) this.curves.delete(run);
    this.schedule(0);
  }

  /** These runs have new results. */
  changed(ids) {
    let isMine = false;
    for (const id of ids) {
      if (this.curves.has(id)) isMine = Boolean(this.dirty.add(id));
      for (const group of this.groups ?? []) if (group.runs.includes(id)) isMine = Boolean(this.dirtyGroups.add(groupKey(group)));
    }
    if (isMine && !document.hidden) this.schedule(400); // a hidden page asks again when it is seen
  }

  /** The page is seen again. */
  resume() {
    if (this.dirty.size || this.dirtyGroups?.size) this.schedule(0);
  }

  schedule(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), wait);
  }

  async load() {
    if (this.isBusy) return;
    const { signal } = this.abort;
    const ids = [...this.dirty].filter((id) => this.runs.includes(id));
    const groups = (this.groups ?? []).filter((group) => this.dirtyGroups.has(groupKey(group)));
    this.dirty.clear();
    this.dirtyGroups.clear();
    if (!ids.length && !groups.length) {
      this.onchange();
      return;
    }
    this.isBusy = true;
    try {
      const inexact = await Promise.all([...chunks(ids).map((part) => this.loadRuns(part, signal)), this.loadGroups(groups, signal)]);
      this.isLoaded = true;
      this.isStale = false;
      const again = inexact.flat();
      this.wait = again.length ? Math.min(this.wait * 2, LONGEST_WAIT) : FIRST_WAIT;
      for (const [kind, key] of again) (kind === "run" ? this.dirty : this.dirtyGroups).add(key);
      this.isBusy = false;
      this.onchange();
      if (this.dirty.size || this.dirtyGroups.size) this.schedule(again.length ? this.wait : 800);
    } catch (error) {
      if (isAborted(error)) return;
      this.isBusy = false;
      this.onerror(error);
      for (const id of ids) this.dirty.add(id);
      for (const group of groups) this.dirtyGroups.add(groupKey(group));
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT);
      if (error.status === 0 || error.status >= 500) this.schedule(this.wait);
    }
  }

  async loadRuns(ids, signal) {
    const { series } = await get("series", { ...this.query, run: ids }, signal);
    for (const each of series) this.curves.set(each.run, each);
    return series.filter((each) => !each.exact).map((each) => ["run", each.run]);
  }

  async loadGroups(groups, signal) {
    const whole = groups.filter((group) => group.isWhole);
    const requests = [
      ...chunks(whole).map((part) => ({ group: part.map((group) => group.key) })),
      ...groups.filter((group) => !group.isWhole).map((group) => ({ group: "custom", run: group.runs })),
    ];
    const answers = await Promise.all(requests.map((request) => get("groups", { ...this.query, ...request }, signal)));
    const again = [];
    for (const answer of answers) {
      for (const band of answer.groups) {
        const group = groups.find((each) => sameRuns(each.runs, band.runs)) ?? groups.find((each) => each.key === band.group);
        if (!group) continue;
        this.bands.set(groupKey(group), band);
        if (!band.exact) again.push(["group", groupKey(group)]);
      }
    }
    return again;
  }

  band(group) {
    return this.bands.get(groupKey(group));
  }

  close() {
    clearTimeout(this.timer);
    this.abort.abort();
  }
}

const groupKey = (group) => `${group.key}\n${[...group.runs].sort().join("\n")}`;
const sameRuns = (a, b) => a.length === b.length && a.every((each) => b.includes(each));

function chunks(list) {
  const found = [];
  for (let start = 0; start < list.length; start += PER_REQUEST) found.push(list.slice(start, start + PER_REQUEST));
  return found;
}

/** Exponential moving average without the bias of its start; missing values stay missing. */
export function smooth(values, weight) {
  if (!weight) return values;
  let [mean, norm] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return mean / norm;
  });
}
