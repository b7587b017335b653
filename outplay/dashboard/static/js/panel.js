// Charts of the selected runs: small multiples that share their x axis, their zoom and their legend.

import { get, isAborted } from "./api.js";
import { Chart } from "./chart.js";
import { arrange, button, empty, h, setText } from "./dom.js";
import { metricTitle, number } from "./format.js";
import { metricPicker } from "./picker.js";
import { Series, smooth } from "./series.js";
import { labels } from "./names.js";
import { assignSlots, lineStyle, onTheme, slotOf } from "./theme.js";
import { fail } from "./notices.js";
import { on, onVisible, store } from "./store.js";
import { AXES, toolbar } from "./toolbar.js";

const USUAL = ["episode_return_mean", "episode_len_mean", "learner/entropy", "learner/total_loss", "learner/loss", "env_steps_per_s"];
const MOST_RANGES = 6; // runs with a band of minimum and maximum

/** What the address says about charts. */
export function chartState(params) {
  const numbers = ["from", "to"].map((key) => (params.has(key) ? Number(params.get(key)) : null));
  return {
    metrics: params.getAll("metric"),
    x: AXES.some(([name]) => name === params.get("x")) ? params.get("x") : "timesteps_total",
    smoothing: Math.min(0.99, Math.max(0, Number(params.get("smooth") ?? 0) || 0)),
    isLog: params.get("log") === "1",
    isBands: params.get("bands") === "1",
    window: numbers.every((each) => Number.isFinite(each) && each !== null) ? numbers : null,
    hidden: new Set(params.getAll("hide")),
  };
}

const NOTHING = () => empty("charts", "No runs selected", h("p", {}, "Tick runs in the list to draw their curves here, or press ", h("kbd", {}, "x"), " on a row."));

/** Build the panel in `root`. `change(changes)` writes to the address; `blank` is shown without runs. */
export class ChartPanel {
  constructor(root, change, blank = NOTHING()) {
    Object.assign(this, { root, change, figures: new Map(), runs: [], known: [], state: null });
    const shown = () => ({ run: this.runs.map((run) => run.id), metric: this.metrics() });
    this.tools = toolbar(change, () => [...this.figures.values()].map((figure) => figure.chart), shown);
    this.legend = h("div", { class: "legend", role: "group", "aria-label": "Runs in the charts" });
    this.grid = h("div", { class: "multiples" });
    this.blank = h("div", { class: "panel-blank hidden" }, blank);
    this.picker = metricPicker((metric) => this.addMetric(metric));
    this.tools.scale.after(this.picker.element);
    root.append(this.tools.element, this.legend, this.grid, this.blank);
    this.removers = [
      on("runs", (ids) => this.refresh(ids)),
      onTheme(() => this.drawLegend()),
      onVisible(() => this.figures.forEach((figure) => figure.series.resume())),
    ];
  }

  /** Show these runs as the address says. */
  update(state, ids) {
    this.state = state;
    this.runs = ids.map((id) => store.runs.get(id)).filter(Boolean);
    assignSlots(ids);
    this.tools.update(state);
    const isEmpty = this.runs.length === 0;
    this.blank.classList.toggle("hidden", !isEmpty);
    this.grid.classList.toggle("hidden", isEmpty);
    this.legend.classList.toggle("hidden", isEmpty);
    this.tools.element.classList.toggle("hidden", isEmpty);
    this.loadMetrics(ids);
    this.drawLegend();
    this.drawFigures();
  }

  /** Which metrics there are: asked again only if the selection changed. */
  async loadMetrics(ids) {
    const key = ids.join("\n");
    if (!ids.length || key === this.metricsKey) return;
    this.metricsKey = key;
    try {
      const { metrics } = await get("metrics", { run: ids.slice(0, 100) });
      this.known = metrics;
      this.picker.set(metrics, this.metrics());
      this.drawFigures();
    } catch (error) {
      this.metricsKey = "";
      if (!isAborted(error)) fail(error);
    }
  }

  metrics() {
    if (this.state.metrics.length) return this.state.metrics;
    const usual = USUAL.filter((name) => this.known.includes(name)).slice(0, 4);
    return usual.length ? usual : [USUAL[0]];
  }

  addMetric(metric) {
    const shown = this.metrics();
    this.change({ metric: shown.includes(metric) ? shown.filter((each) => each !== metric) : [...shown, metric] });
  }

  drawFigures() {
    const shown = this.runs.length ? this.metrics() : [];
    this.picker.set(this.known, shown);
    for (const [metric, figure] of this.figures) {
      if (shown.includes(metric)) continue;
      figure.close();
      this.figures.delete(metric);
    }
    for (const metric of shown) if (!this.figures.has(metric)) this.figures.set(metric, this.figure(metric));
    arrange(this.grid, shown.map((metric) => this.figures.get(metric).element));
    for (const metric of shown) {
      this.figures.get(metric).remove.classList.toggle("hidden", shown.length < 2); // without charts, the usual ones are shown
      this.figures.get(metric).update();
    }
  }

  figure(metric) {
    const remove = button(`Remove the chart of ${metric}`, { symbol: "cross", kind: "quiet small", iconOnly: true, title: "Remove", onclick: () => this.change({ metric: this.metrics().filter((each) => each !== metric) }) });
    const heading = h("h2", { class: "ellipsis", title: metric }, metricTitle(metric));
    const status = h("span", { class: "figure-status", role: "status" });
    const element = h("section", { class: "figure", "aria-label": metricTitle(metric), data: { metric } }, h("header", {}, heading, metricTitle(metric) !== metric ? h("code", { class: "ellipsis" }, metric) : null, status, remove));
    const chart = new Chart(element, { label: `${metricTitle(metric)}. Arrow keys pan, plus and minus zoom, 0 resets.`, sync: "charts", onZoom: (window) => this.change({ from: window?.[0] ?? null, to: window?.[1] ?? null }) });
    const draw = () => {
      const lines = this.lines(series);
      const note = !series.isLoaded ? "Loading" : "No values of this metric in these runs yet.";
      chart.set({ lines, x: this.state.x, isLog: this.state.isLog, window: this.state.window, note });
      const isPartial = [...series.curves.values(), ...series.bands.values()].some((each) => !each.exact);
      setText(status, isPartial ? "reading more" : "");
      element.dataset.points = String(Math.max(0, ...[...series.curves.values()].map((each) => each.total ?? each.x.length)));
    };
    const series = new Series(draw, (error) => setText(status, error.message));
    return {
      element,
      remove,
      chart,
      series,
      draw,
      update: () => series.want(this.query(metric, chart), ...this.wanted()),
      close: () => {
        series.close();
        chart.close();
      },
    };
  }

  query(metric, chart) {
    const points = Math.min(800, Math.max(150, Math.round((chart.holder.clientWidth || 500) / 100) * 75));
    const [from, to] = this.state.window ?? [null, null];
    return { metric, x: this.state.x, points, from, to };
  }

  /** The runs and groups to ask for: with bands, only runs without siblings are single lines. */
  wanted() {
    const visible = this.runs.filter((run) => !this.state.hidden.has(run.id));
    if (!this.state.isBands) return [visible.map((run) => run.id), []];
    const groups = this.groups(visible);
    return [groups.filter((group) => group.runs.length === 1).flatMap((group) => group.runs), groups.filter((group) => group.runs.length > 1)];
  }

  groups(runs) {
    const found = new Map();
    for (const run of runs) {
      const key = run.group ?? run.id;
      if (!found.has(key)) found.set(key, { key, runs: [] });
      found.get(key).runs.push(run.id);
    }
    for (const group of found.values()) {
      const all = [...store.runs.values()].filter((run) => run.group === group.key).length;
      group.isWhole = all === group.runs.length;
    }
    return [...found.values()];
  }

  lines(series) {
    const { smoothing, isBands, hidden } = this.state;
    const visible = this.runs.filter((run) => !hidden.has(run.id));
    const names = this.names();
    const lines = [];
    if (isBands) {
      for (const group of this.groups(visible).filter((each) => each.runs.length > 1)) {
        const band = series.band(group);
        if (!band) continue;
        const slot = slotOf(group.runs[0]);
        lines.push({ id: group.runs[0], slot, isBand: true, label: names.get(group.runs[0]), color: () => lineStyle(slot).color, dash: lineStyle(slot).dash, width: 2, x: band.x, y: smooth(band.iqm, smoothing), low: smooth(band.low, smoothing), high: smooth(band.high, smoothing) });
      }
    }
    const inGroup = new Set(isBands ? this.groups(visible).filter((each) => each.runs.length > 1).flatMap((each) => each.runs) : []);
    const isFew = visible.length - inGroup.size <= MOST_RANGES;
    for (const run of visible) {
      const curve = series.curves.get(run.id);
      if (!curve || inGroup.has(run.id)) continue;
      const slot = slotOf(run.id);
      const hasRange = curve.low && isFew && !smoothing;
      lines.push({ id: run.id, slot, label: names.get(run.id), color: () => lineStyle(slot).color, dash: lineStyle(slot).dash, x: curve.x, y: smooth(curve.y, smoothing), raw: smoothing ? curve.y : null, low: hasRange ? curve.low : null, high: hasRange ? curve.high : null });
    }
    return lines;
  }

  /** Labels: of runs, or of groups by their first run. */
  names() {
    if (!this.state.isBands) return labels(this.runs);
    const groups = this.groups(this.runs);
    const firsts = groups.map((group) => {
      const run = store.runs.get(group.runs[0]);
      return group.runs.length > 1 ? { ...run, seed: null } : run;
    });
    const found = labels(firsts);
    for (const group of groups) if (group.runs.length > 1) found.set(group.runs[0], `${found.get(group.runs[0]).replace(/ · [0-9a-f]{6}$/, "")} · ${group.runs.length} seeds`);
    return found;
  }

  drawLegend() {
    if (!this.state) return;
    const names = this.names();
    this.namesKey = JSON.stringify([...names]);
    const entries = this.state.isBands ? this.groups(this.runs).map((group) => group.runs) : this.runs.map((run) => [run.id]);
    const chips = entries.map((ids) => {
      const isHidden = ids.every((id) => this.state.hidden.has(id));
      const style = lineStyle(slotOf(ids[0]));
      const last = ids.length === 1 ? number(store.runs.get(ids[0])?.return) : "";
      const toggle = () => {
        const hidden = new Set(this.state.hidden);
        for (const id of ids) isHidden ? hidden.delete(id) : hidden.add(id);
        this.change({ hide: [...hidden] });
      };
      const focus = (id) => () => [...this.figures.values()].forEach((figure) => figure.chart.focus(id));
      return h("button", { type: "button", class: "chip", "aria-pressed": String(!isHidden), title: ids.join("\n"), on: { click: toggle, mouseenter: focus(ids[0]), mouseleave: focus(null) } },
        h("i", { class: style.dash.length ? "dashed" : "", style: { "--chip": `var(--${style.name})` } }), h("span", { class: "ellipsis" }, names.get(ids[0])), last ? h("b", {}, last) : null);
    });
    this.legend.replaceChildren(...chips);
  }

  /** Some runs have new results. */
  refresh(ids) {
    if (!this.state || !this.runs.some((run) => ids.has(run.id))) return;
    const kept = this.runs.filter((run) => store.runs.has(run.id)).map((run) => run.id);
    if (kept.length < this.runs.length) {
      this.update(this.state, kept);
      return;
    }
    this.runs = kept.map((id) => store.runs.get(id));
    if (this.namesKey !== JSON.stringify([...this.names()])) {
      this.drawLegend(); // settings have become known
      for (const figure of this.figures.values()) figure.draw();
    }
    [...this.legend.querySelectorAll(".chip")].forEach((chip, index) => {
      const value = chip.querySelector("b");
      if (value && this.runs[index] && !this.state.isBands) setText(value, number(this.runs[index].return));
    });
    for (const figure of this.figures.values()) figure.series.changed(ids);
  }

  toggleBands() {
    this.change({ bands: this.state.isBands ? null : "1" });
  }

  close() {
    for (const remove of this.removers) remove();
    for (const figure of this.figures.values()) figure.close();
    this.picker.close();
  }
}
