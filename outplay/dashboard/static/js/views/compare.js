// Two runs side by side: what differs in their settings, and their curves.

import { get } from "../api.js";
import { button, card, empty, h, icon, setText } from "../dom.js";
import { duration, score, value, whole } from "../format.js";
import { labels, shortId, title } from "../names.js";
import { fail } from "../notices.js";
import { ChartPanel, chartState } from "../panel.js";
import { adjust, href } from "../router.js";
import { newest } from "../selection.js";
import { on, store } from "../store.js";
import { statePill } from "../parts.js";

export function showCompare(root, params) {
  const view = new CompareView(root);
  view.update(params);
  return view;
}

class CompareView {
  constructor(root) {
    this.root = root;
    this.selects = [0, 1].map((index) => h("select", { class: "select", "aria-label": index ? "Second run" : "First run", on: { change: () => this.choose() } }));
    const swap = button("Swap", { symbol: "compare", onclick: () => adjust({ run: [...this.ids].reverse() }) });
    const picks = this.selects.map((select, index) => h("label", { class: "pick-run" }, h("i", { class: "swatch", style: { background: `var(--c${index})` } }), select));
    this.diff = h("div", { class: "body" });
    this.same = h("span", { class: "faint" });
    this.charts = h("div", { class: "panel" });
    this.missing = h("div", { class: "callout warn hidden", role: "status" }, icon("warn"), h("div"));
    this.page = h("div", { class: "page" }, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Compare"), h("p", { class: "sub" }, "What differs between two runs."))), this.missing, h("div", { class: "picks" }, picks[0], swap, picks[1]), card("Result and settings", this.diff, this.same), this.charts);
    this.blank = h("div", { class: "hidden" }, empty("compare", "Comparing needs two runs", h("p", {}, "Start a second one, with another setting: "), h("a", { class: "button", href: href("start") }, "Start a run")));
    root.append(this.page, this.blank);
    this.panel = new ChartPanel(this.charts, adjust);
    this.removers = [on("runs", (ids) => this.refresh(ids))];
    this.keys = { b: () => this.panel.toggleBands(), Escape: () => adjust({ from: null, to: null }) };
  }

  update(params) {
    this.params = params;
    const isEnough = store.runs.size >= 2;
    this.page.classList.toggle("hidden", !isEnough);
    this.blank.classList.toggle("hidden", isEnough);
    if (!isEnough) return;
    const named = params.getAll("run").filter((id) => store.runs.has(id));
    this.gone = params.getAll("run").filter((id) => !store.runs.has(id));
    this.missing.classList.toggle("hidden", !this.gone.length);
    setText(this.missing.lastChild, `There is no run ${this.gone.join(", ")}: it was moved or deleted, or the link is of another results folder. Choose the runs to compare below.`);
    const others = [...newest(), ...store.runs.keys()].filter((id) => !named.includes(id));
    this.ids = [...named, ...others].slice(0, 2);
    this.drawSelects();
    const state = chartState(params);
    this.panel.update(state.metrics.length ? state : { ...state, metrics: ["episode_return_mean"] }, this.ids);
    const key = this.ids.join("\n");
    if (key !== this.loaded) {
      this.loaded = key;
      this.load();
    }
  }

  drawSelects() {
    const runs = [...store.runs.values()].filter((run) => !run.study || this.ids.includes(run.id)).sort((a, b) => (b.started ?? "").localeCompare(a.started ?? ""));
    const key = `${runs.map((run) => run.id)} ${this.ids}`;
    if (key === this.listed) return;
    this.listed = key;
    this.selects.forEach((select, index) => {
      select.replaceChildren(...runs.map((run) => h("option", { value: run.id }, `${title(run)} · ${run.seed === null || run.seed === undefined ? "" : `seed ${run.seed} · `}${run.experiment === run.env ? "" : `${run.experiment} · `}${shortId(run)}`)));
      select.value = this.ids[index];
    });
  }

  choose() {
    adjust({ run: this.selects.map((select) => select.value) });
  }

  refresh(ids) {
    if (this.ids?.some((id) => ids.has(id)) && this.settings) this.drawTable();
    if ((!this.ids && store.runs.size >= 2) || this.gone?.some((id) => ids.has(id))) this.update(this.params);
  }

  async load() {
    try {
      const { settings, same } = await get("diff", { run: this.ids });
      this.settings = settings;
      setText(this.same, `${whole(same)} settings are the same`);
      this.drawTable();
    } catch (error) {
      fail(error);
    }
  }

  drawTable() {
    const runs = this.ids.map((id) => store.runs.get(id)).filter(Boolean);
    if (runs.length < 2) return;
    const names = labels(runs);
    const row = (name, cells, kind = "") => h("tr", { class: kind }, h("th", { scope: "row" }, name), cells.map((cell) => h("td", {}, cell)));
    const facts = [
      ["State", (run) => statePill(run.state, "bare")],
      ["Return", (run) => score(run.return)],
      ["Steps", (run) => whole(run.timesteps)],
      ["Steps per second", (run) => whole(run.steps_per_s)],
      ["Time", (run) => duration(run.seconds)],
    ];
    const heads = runs.map((run, index) => h("th", { scope: "col" }, h("span", { class: "named" }, h("i", { class: "swatch", style: { background: `var(--c${index})` } }), h("a", { href: href("run", { run: run.id }) }, names.get(run.id)))));
    const settings = this.settings.map(({ name, values }) => row(name, values.map((each) => h("code", {}, value(each))), "differs"));
    if (!settings.length) settings.push(h("tr", {}, h("td", { colspan: 3, class: "faint" }, "All settings are the same.")));
    this.diff.replaceChildren(h("div", { class: "table-scroll", tabindex: 0, role: "group", "aria-label": "Differences" }, h("table", { class: "table compare" }, h("thead", {}, h("tr", {}, h("td", {}), heads)), h("tbody", {}, facts.map(([name, read]) => row(name, runs.map(read)))), h("tbody", {}, settings))));
  }

  close() {
    for (const remove of this.removers) remove();
    this.panel.close();
  }
}
