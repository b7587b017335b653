// All runs: search, filter, groups, sorting; the charts of the selected ones beside the list.

import { arrange, button, command, empty, h, icon, setText } from "../dom.js";
import { matcher } from "../filter.js";
import { ChartPanel, chartState } from "../panel.js";
import { adjust, current, go, href } from "../router.js";
import { varying } from "../names.js";
import { Row } from "../row.js";
import { asParameter, chosenRuns, newest } from "../selection.js";
import { on, store } from "../store.js";
import { assignSlots } from "../theme.js";
import { compare } from "../parts.js";

const GROUPS = [["experiment", "Experiment"], ["group", "Seeds"], ["env", "Environment"], ["algorithm", "Algorithm"], ["state", "State"], ["none", "Nothing"]];
const SORTS = [["-started", "Newest"], ["-updated", "Last changed"], ["-return", "Best return"], ["name", "Name"], ["-steps_per_s", "Fastest"], ["-progress", "Progress"]];
const IS_WIDE = matchMedia("(min-width: 1081px)"); // as in runs.css: else the charts have a view of their own
const MOST_ROWS = 200; // of a group, until more are asked for

export function showRuns(root, params) {
  const view = new RunsView(root);
  view.update(params);
  return view;
}

class RunsView {
  constructor(root) {
    Object.assign(this, { root, rows: new Map(), headers: new Map(), limits: new Map(), order: [], last: null, selected: [] });
    this.build();
    this.panel = new ChartPanel(this.charts, adjust);
    this.removers = [on("runs", (ids) => this.refresh(ids)), on("studies", () => this.draw())];
    this.onWidth = () => this.draw();
    IS_WIDE.addEventListener("change", this.onWidth);
    this.clock = setInterval(() => this.rows.forEach((row) => row.tick()), 5000);
    this.keys = {
      j: () => this.move(1),
      k: () => this.move(-1),
      ArrowDown: () => this.move(1),
      ArrowUp: () => this.move(-1),
      x: () => this.focusedRow() && this.toggle(this.focusedRow()),
      Enter: () => this.focusedRow() && go("run", { run: this.focusedRow() }),
      "/": () => this.search.focus(),
      Escape: () => (current().params.has("from") ? adjust({ from: null, to: null }) : this.select([])),
      b: () => this.panel.toggleBands(),
    };
  }

  build() {
    this.search = h("input", { class: "input", type: "search", id: "search", placeholder: "Search or filter: lr=0.001", title: "Words, or conditions: lr=0.001  env:CartPole  state:running  return>400  -algo:DQN", autocomplete: "off", spellcheck: "false", "aria-label": "Search and filter runs" });
    this.search.addEventListener("input", () => adjust({ q: this.search.value }));
    const choice = (label, options, key, normal) => {
      const select = h("select", { class: "select", "aria-label": label, on: { change: () => adjust({ [key]: select.value === normal ? null : select.value }) } }, options.map(([value, text]) => h("option", { value }, text)));
      return select;
    };
    this.grouping = choice("Group by", GROUPS, "by", "experiment");
    this.sorting = choice("Sort by", SORTS, "sort", "-started");
    this.count = h("span", { class: "sub" });
    this.all = h("input", { type: "checkbox", "aria-label": "Select all runs of the list", on: { change: () => this.select(this.all.checked ? this.order : []) } });
    this.list = h("div", { class: "rows", role: "list", "aria-label": "Runs" });
    this.compare = h("a", { class: "button small" }, icon("compare"), "Compare");
    this.open = h("a", { class: "button small primary" }, icon("charts"), h("span"));
    this.clear = button("Clear", { kind: "small quiet", onclick: () => this.select([]) });
    this.bar = h("div", { class: "selection" }, this.clear, this.compare, this.open);
    const legend = h("div", { class: "row columns", "aria-hidden": "true" }, h("span"), h("span", {}, "Run"), h("span", { class: "c-state" }, "State"), h("span", { class: "num" }, "Return"), h("span", { class: "num c-speed" }, "Steps/s"), h("span", { class: "c-spark" }, "Curve"), h("span", { class: "num c-updated" }, "Changed"));
    this.body = h("div", { class: "list-body" }, legend, this.list);
    this.pane = h("section", { class: "list-pane", "aria-label": "List of runs" },
      h("div", { class: "list-head" },
        h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Runs ", this.count)), this.bar),
        h("div", { class: "filters" }, h("div", { class: "search" }, icon("search"), this.search), h("label", { class: "field" }, "Group", this.grouping), h("label", { class: "field" }, "Sort", this.sorting)),
        h("label", { class: "select-all" }, this.all, this.allText = h("span"))),
      this.body);
    this.charts = h("section", { class: "panel chart-pane", "aria-label": "Charts" });
    this.blank = h("div", { class: "hidden" });
    this.frame = h("div", { class: "runs-view" }, this.pane, this.charts);
    this.root.append(this.frame, this.blank);
  }

  update(params) {
    this.last = params;
    this.state = { q: params.get("q") ?? "", by: params.get("by") ?? "experiment", sort: params.get("sort") ?? "-started", closed: new Set(params.getAll("closed")), opened: new Set(params.getAll("opened")) };
    if (document.activeElement !== this.search && this.search.value !== this.state.q) this.search.value = this.state.q;
    this.grouping.value = this.state.by;
    this.sorting.value = this.state.sort;
    this.draw();
  }

  /** Runs have changed: rows are patched in place; the order is only worked out again. */
  refresh(ids) {
    for (const id of ids) {
      const run = store.runs.get(id);
      if (run) this.rows.get(id)?.update(run, this.names?.get(run.experiment));
      else this.rows.delete(id);
    }
    this.draw();
  }

  draw() {
    if (!this.last) return;
    const isEmpty = store.runs.size === 0;
    this.frame.classList.toggle("hidden", isEmpty);
    this.blank.classList.toggle("hidden", !isEmpty);
    if (isEmpty) return this.drawNothing();
    this.selected = chosenRuns(this.last) ?? newest();
    assignSlots(this.selected);
    this.findNames();
    const groups = this.grouped();
    const children = [];
    this.order = [];
    for (const [key, runs] of groups) {
      const isOpen = this.isOpen(key, runs);
      if (this.state.by !== "none") children.push(this.header(key, runs, isOpen));
      if (!isOpen) continue;
      const limit = this.limits.get(key) ?? MOST_ROWS;
      for (const run of runs.slice(0, limit)) {
        children.push(this.row(run).element);
        this.order.push(run.id);
      }
      if (runs.length > limit) children.push(this.more(key, runs.length - limit));
    }
    if (!children.length) children.push(this.nothing());
    arrange(this.list, children);
    this.drawSelection();
    const signature = `${this.selected.join()}|${this.last}`;
    if (signature !== this.drawn && IS_WIDE.matches) {
      this.drawn = signature;
      this.panel.update(chartState(this.last), this.selected);
    }
  }

  /** Which settings tell the runs of an experiment apart; rows are written again only if that changed. */
  findNames() {
    const found = varying(store.runs.values());
    const key = JSON.stringify([...found].map(([experiment, names]) => [experiment, [...names].sort()]));
    if (key === this.namesKey) return;
    [this.namesKey, this.names] = [key, found];
    for (const row of this.rows.values()) row.update(row.run, found.get(row.run.experiment));
  }

  /** [key, runs] in the order of their best run. Trials are in a group of their study. */
  grouped() {
    const matches = matcher(this.state.q);
    const isDown = this.state.sort.startsWith("-");
    const key = this.state.sort.replace(/^-/, "");
    const runs = [...store.runs.values()].filter(matches);
    const value = (run) => (typeof run[key] === "number" && Number.isNaN(run[key]) ? null : run[key]);
    runs.sort((a, b) => {
      const [x, y] = [value(a) ?? null, value(b) ?? null];
      if (x === null || y === null) return Number(x === null) - Number(y === null);
      return compare(x, y) * (isDown ? -1 : 1) || a.id.localeCompare(b.id);
    });
    const groups = new Map();
    for (const run of runs) {
      const name = this.state.by === "none" ? "" : run.study && this.state.by === "experiment" ? `study ${run.study}` : String(run[this.state.by] ?? "–");
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(run);
    }
    this.matching = runs.length;
    return groups;
  }

  /** Studies are closed until opened, since they may have thousands of trials; a search opens everything. */
  isOpen(key, runs) {
    if (this.state.by === "none") return true;
    if (key.startsWith("study ") && !this.state.q) return this.state.opened.has(key);
    return !this.state.closed.has(key) || runs.length === 0;
  }

  header(key, runs, isOpen) {
    let parts = this.headers.get(key);
    if (!parts) {
      const name = h("span", { class: "ellipsis" });
      const count = h("span", { class: "count" });
      const best = h("span", { class: "best" });
      const toggle = h("button", { type: "button", class: "group-toggle", on: { click: () => this.fold(key) } }, icon("down"), name, count);
      const box = h("input", { type: "checkbox", on: { change: () => this.selectGroup(key, box.checked) } });
      const study = key.startsWith("study ") ? h("a", { class: "button small quiet", href: href("study", { study: key.slice(6) }) }, icon("studies"), "Study") : null;
      const element = h("div", { class: "group-head", role: "listitem" }, box, toggle, best, study);
      parts = { element, name, count, best, toggle, box };
      this.headers.set(key, parts);
    }
    const title = key.startsWith("study ") ? key.slice(6) : this.state.by === "group" ? this.seedsTitle(runs) : key;
    setText(parts.name, title);
    const running = runs.filter((run) => run.state === "running").length;
    setText(parts.count, `${runs.length}${running ? ` · ${running} running` : ""}`);
    parts.toggle.setAttribute("aria-expanded", String(isOpen));
    parts.box.setAttribute("aria-label", `Select the runs of ${title}`);
    const chosen = runs.filter((run) => this.selected.includes(run.id)).length;
    parts.box.checked = chosen === runs.length;
    parts.box.indeterminate = chosen > 0 && chosen < runs.length;
    return parts.element;
  }

  seedsTitle(runs) {
    const [run] = runs;
    const settings = Object.entries(run.settings ?? {}).filter(([name]) => name !== "seed" && this.names.get(run.experiment)?.has(name)).map(([name, each]) => `${name}=${JSON.stringify(each)}`);
    return [`${run.algorithm} · ${run.env}`, ...settings.slice(0, 3)].join("  ");
  }

  row(run) {
    let row = this.rows.get(run.id);
    if (!row) {
      row = new Row(run, this.names.get(run.experiment), (id, isRange) => this.toggle(id, isRange));
      this.rows.set(run.id, row);
    }
    row.select(this.selected.includes(run.id));
    return row;
  }

  more(key, count) {
    return h("div", { class: "more", role: "listitem" }, button(`Show ${Math.min(count, MOST_ROWS)} more of ${count}`, { kind: "small", onclick: () => {
      this.limits.set(key, (this.limits.get(key) ?? MOST_ROWS) + MOST_ROWS);
      this.draw();
    } }));
  }

  nothing() {
    return h("div", { role: "listitem" }, empty("search", "No run matches", h("p", {}, "Conditions are a name and a value, as ", h("code", {}, "lr=0.001"), ", ", h("code", {}, "env:CartPole"), " or ", h("code", {}, "return>400"), "."), button("Clear the search", { onclick: () => {
      this.search.value = "";
      adjust({ q: null });
    } })));
  }

  drawNothing() {
    if (this.blank.childNodes.length) return;
    this.blank.append(empty("runs", "No runs yet", h("p", {}, "Runs of ", h("code", {}, store.results), " appear here as soon as they start. Type this in a terminal:"), command("outplay train cartpole"), h("p", {}, "or ", h("a", { href: href("start") }, "start a run from this page"), ".")));
  }

  // Selection.

  drawSelection() {
    const count = this.selected.length;
    const trials = [...store.runs.values()].filter((run) => run.study).length;
    const all = `${store.runs.size - trials}${trials ? `, and ${trials} trials of studies` : ""}`;
    setText(this.count, this.state.q ? `${this.matching} of ${store.runs.size}` : all);
    setText(this.allText, count ? `${count} selected` : "Select all");
    this.all.checked = count > 0 && this.order.length > 0 && this.order.every((id) => this.selected.includes(id));
    this.all.indeterminate = count > 0 && !this.all.checked;
    this.bar.classList.toggle("none", count === 0);
    this.compare.href = href("compare", { run: this.selected.slice(0, 2) });
    this.compare.classList.toggle("hidden", count !== 2);
    const shared = new URLSearchParams(this.last);
    shared.delete("run");
    for (const id of this.selected) shared.append("run", id);
    this.open.href = href("charts", shared);
    setText(this.open.lastChild, count === 1 ? "Chart of 1" : `Charts of ${count}`);
  }

  select(ids) {
    adjust({ run: asParameter([...new Set(ids)]) });
  }

  toggle(id, isRange = false) {
    if (isRange && this.anchor && this.order.includes(this.anchor)) {
      const [a, b] = [this.order.indexOf(this.anchor), this.order.indexOf(id)].sort((x, y) => x - y);
      this.select([...this.selected, ...this.order.slice(a, b + 1)]);
      return;
    }
    this.anchor = id;
    this.select(this.selected.includes(id) ? this.selected.filter((each) => each !== id) : [...this.selected, id]);
  }

  selectGroup(key, isChosen) {
    const ids = (this.grouped().get(key) ?? []).map((run) => run.id);
    this.select(isChosen ? [...this.selected, ...ids] : this.selected.filter((id) => !ids.includes(id)));
  }

  fold(key) {
    const name = key.startsWith("study ") ? "opened" : "closed";
    const set = new Set(this.state[name]);
    set.has(key) ? set.delete(key) : set.add(key);
    adjust({ [name]: [...set] });
  }

  // Keyboard.

  focusedRow() {
    return document.activeElement?.closest?.(".run-row")?.dataset.id ?? null;
  }

  move(step) {
    const index = this.order.indexOf(this.focusedRow());
    const next = this.order[index < 0 ? (step > 0 ? 0 : this.order.length - 1) : Math.min(this.order.length - 1, Math.max(0, index + step))];
    const row = this.rows.get(next);
    row?.link.focus({ preventScroll: true });
    row?.element.scrollIntoView({ block: "nearest" });
  }

  close() {
    clearInterval(this.clock);
    IS_WIDE.removeEventListener("change", this.onWidth);
    for (const remove of this.removers) remove();
    this.panel.close();
  }
}
