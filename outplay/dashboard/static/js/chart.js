// One chart: lines over a common x axis, drawn by uPlot, with hover values, zoom and pan.

import { h, setText } from "./dom.js";
import { TIMES, axisLabels, clock, duration, number, tick, whole } from "./format.js";
import { color, onTheme } from "./theme.js";
import { logTicks, symlogTicks } from "./ticks.js";

const uPlot = window.uPlot;
const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const MOST_TIPS = 10;
/** A colour of tokens.css, which are hexadecimal, with an alpha. */
const reducedAlpha = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

/**
 * A chart in `root`. Options: height, label (for screen readers), sync (key of charts that share a cursor),
 * onZoom(window or null), and isStatic (no zoom).
 */
export class Chart {
  constructor(root, { height = 220, label = "", sync = null, onZoom = null, isStatic = false } = {}) {
    Object.assign(this, { root, height, sync, onZoom, isStatic, plot: null, lines: [], window: null, signature: "" });
    this.holder = h("div", { class: "plot", tabindex: isStatic ? null : 0, role: "group", "aria-label": label, style: { height: `${height}px` } });
    this.tip = h("div", { class: "tip hidden", "aria-hidden": "true" });
    this.note = h("div", { class: "plot-note" });
    this.holder.append(this.tip, this.note);
    root.append(this.holder);
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.holder);
    this.dropTheme = onTheme(() => this.build());
    if (!isStatic) this.holder.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draw. A line: { id, label, color (function), dash, x, y, raw, low, high, width }. */
  set({ lines, x = "timesteps_total", isLog = false, window = null, note = "" }) {
    this.lines = lines.filter((line) => line.x.length);
    this.xName = x;
    this.window = window;
    this.isSymlog = isLog && this.lines.some((line) => line.y.some((value) => value !== null && value <= 0));
    this.isLog = isLog;
    setText(this.note, this.lines.length ? "" : note);
    const signature = JSON.stringify([x, isLog, this.isSymlog, this.lines.map((line) => [line.id, line.slot, line.dash, Boolean(line.raw), Boolean(line.low), line.width])]);
    if (this.plot && signature === this.signature) this.plot.setData(this.joined());
    else {
      this.signature = signature;
      this.build();
    }
  }

  joined() {
    if (!this.lines.length) return [[], []];
    const [{ x }] = this.lines;
    if (this.lines.every((line) => line.x === x)) return [x, ...this.lines.flatMap((line) => this.columns(line))];
    return uPlot.join(this.lines.map((line) => [line.x, ...this.columns(line)]));
  }

  columns(line) {
    return [...(line.low ? [line.low, line.high] : []), ...(line.raw ? [line.raw] : []), line.y];
  }

  build() {
    this.plot?.destroy();
    this.plot = null;
    this.tip.classList.add("hidden");
    if (!this.lines.length || this.holder.clientWidth < 40) return;
    const series = [{}];
    const bands = [];
    this.owners = [null]; // the line of each column
    for (const line of this.lines) {
      const stroke = line.color();
      const plain = { points: { show: false }, spanGaps: false };
      if (line.low) {
        bands.push({ series: [series.length + 1, series.length], fill: reducedAlpha(stroke, 0.16) });
        series.push({ ...plain, width: 0, stroke: "transparent" }, { ...plain, width: 0, stroke: "transparent" });
        this.owners.push(null, null);
      }
      if (line.raw) {
        series.push({ ...plain, width: 1, stroke: reducedAlpha(stroke, 0.26) });
        this.owners.push(null);
      }
      const points = { show: (plot, index) => line.x.length < 3 || (line.x.length < 16 && this.lines.length < 4), size: 5 };
      series.push({ label: line.label, width: line.width ?? 1.75, stroke, dash: line.dash?.length ? line.dash : undefined, points, spanGaps: false });
      this.owners.push(line);
    }
    this.plot = new uPlot(this.options(series, bands), this.joined(), this.holder);
  }

  options(series, bands) {
    const axis = { stroke: color("faint"), font: FONT, grid: { stroke: color("line"), width: 1 }, ticks: { show: false } };
    const isTime = this.xName === "time_total_s";
    return {
      width: this.holder.clientWidth,
      height: this.height,
      padding: [10, 20, 0, 0],
      legend: { show: false },
      series,
      bands,
      scales: {
        x: { time: false, range: (plot, low, high) => this.xRange(low, high) },
        y: this.isSymlog ? { distr: 4, asinh: this.largest() / 100 } : this.isLog ? { distr: 3, range: (plot, low, high) => (low === null ? [1, 10] : [low / 1.15, high * 1.15]) } : { range: (plot, low, high) => yRange(low, high) },
      },
      axes: [
        { ...axis, size: 28, gap: 6, space: 64, incrs: isTime ? TIMES : undefined, grid: { show: false }, border: { show: true, stroke: color("line-strong"), width: 1 }, values: (plot, values, index, space, increment) => (isTime ? values.map((value) => (value === null ? "" : clock(value, increment))) : axisLabels(values, increment)) },
        { ...axis, ...this.ticks(), size: (plot, texts) => axisWidth(texts), gap: 8, space: 34, values: (plot, values, index, space, increment) => (this.isLog ? values.map((value) => (value === null ? "" : tick(value))) : axisLabels(values, increment)) },
      ],
      focus: { alpha: 0.22 },
      cursor: {
        y: false,
        sync: this.sync ? { key: this.sync, setSeries: false } : undefined,
        drag: { x: !this.isStatic, y: false, setScale: false, dist: 4 },
        points: { size: (plot, index) => (this.owners[index] ? 8 : 0), width: 2, stroke: () => color("card"), fill: (plot, index) => this.owners[index]?.color() ?? "transparent" },
        dataIdx: (plot, index, hovered) => nearest(plot.data[index], hovered),
        bind: { mousedown: (plot, target, handler) => (event) => this.press(event, handler), dblclick: () => () => this.zoom(null) },
      },
      hooks: {
        setCursor: [(plot) => this.showTip(plot)],
        setSelect: [(plot) => this.selected(plot)],
        ready: [(plot) => this.bindWheel(plot)],
      },
    };
  }

  /** The largest size of a value: a logarithmic axis with values of both signs is linear below a hundredth of it. */
  largest() {
    return this.lines.reduce((most, line) => line.y.reduce((best, value) => Math.max(best, Math.abs(value ?? 0)), most), 1e-9);
  }

  /** Options of the y axis: uPlot's own labels of logarithmic axes assume whole decades. */
  ticks() {
    const all = (plot, values) => values;
    if (this.isSymlog) return { splits: (plot, axis, low, high) => symlogTicks(low, high, this.largest() / 100), filter: all };
    return this.isLog ? { splits: (plot, axis, low, high) => logTicks(low, high), filter: all } : {};
  }

  xRange(low, high) {
    if (this.window) return this.window;
    if (low === null) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  resize() {
    if (!this.plot) this.build();
    else if (this.plot.width !== this.holder.clientWidth && this.holder.clientWidth > 40) {
      this.plot.setSize({ width: this.holder.clientWidth, height: this.height });
    }
  }

  /** Emphasize one line; null for none. */
  focus(id) {
    if (!this.plot) return;
    const index = this.owners.findIndex((line) => line?.id === id);
    this.plot.setSeries(index > 0 ? index : null, { focus: index > 0 }, false);
  }

  // Zoom and pan.

  zoom(window) {
    if (this.isStatic) return;
    this.window = window;
    this.onZoom?.(window);
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const window = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom(window);
  }

  /** Dragging selects; with Shift or the middle button it pans. */
  press(event, handler) {
    if (this.isStatic || !(event.shiftKey || event.button === 1)) return this.isStatic ? null : handler(event);
    event.preventDefault();
    const { min, max } = this.plot.scales.x;
    const perPixel = (max - min) / this.plot.over.clientWidth;
    const move = (now) => {
      const shift = (event.clientX - now.clientX) * perPixel;
      this.window = [min + shift, max + shift];
      this.plot.setScale("x", { min: this.window[0], max: this.window[1] });
    };
    const up = () => {
      removeEventListener("mousemove", move);
      this.onZoom?.(this.window);
    };
    addEventListener("mousemove", move);
    addEventListener("mouseup", up, { once: true });
    return null;
  }

  /** Ctrl and the wheel zooms at the pointer. The plain wheel scrolls the page. */
  bindWheel(plot) {
    if (this.isStatic) return;
    plot.over.addEventListener("wheel", (event) => {
      const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (!event.ctrlKey && !event.metaKey && !isSideways) return;
      event.preventDefault();
      if (isSideways) this.pan((event.deltaX || event.deltaY) / plot.over.clientWidth);
      else this.scale(event.deltaY < 0 ? 0.8 : 1.25, plot.posToVal(event.offsetX, "x"));
    }, { passive: false });
  }

  pan(share) {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    const shift = (max - min) * share;
    this.zoom([min + shift, max + shift]);
  }

  scale(factor, center = null) {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    const middle = center ?? (min + max) / 2;
    this.zoom([middle - (middle - min) * factor, middle + (max - middle) * factor]);
  }

  key(event) {
    const action = { ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.scale(0.7), "=": () => this.scale(0.7), "-": () => this.scale(1.4), 0: () => this.zoom(null) }[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  // Hover values.

  showTip(plot) {
    const { left, top, idx } = plot.cursor;
    const isHere = plot.cursor.event?.type !== undefined && plot.cursor.event.target?.closest?.(".u-over") === plot.over;
    if (left === undefined || left < 0 || idx === null || idx === undefined || !isHere) {
      this.tip.classList.add("hidden");
      return;
    }
    const x = plot.posToVal(left, "x");
    const rows = this.lines.map((line) => ({ line, value: line.y[nearestX(line.x, x)], at: nearestX(line.x, x) }))
      .filter(({ line, value }) => value !== null && value !== undefined && x >= line.x[0] - Math.abs(line.x[0]) * 0.02 && x <= line.x.at(-1) * 1.02)
      .sort((a, b) => b.value - a.value);
    if (!rows.length) return;
    const near = rows.reduce((best, row) => (Math.abs(plot.valToPos(row.value, "y") - top) < Math.abs(plot.valToPos(best.value, "y") - top) ? row : best));
    const from = Math.max(0, Math.min(rows.indexOf(near) - MOST_TIPS / 2, rows.length - MOST_TIPS));
    const shown = rows.slice(from, from + MOST_TIPS);
    const format = this.xName === "time_total_s" ? duration : whole;
    const head = h("div", { class: "tip-head" }, format(near.line.x[near.at]), rows.length > shown.length ? ` · ${shown.length} of ${rows.length}` : "");
    this.tip.replaceChildren(head, ...shown.map(({ line, value, at }) => tipRow(line, value, at, line === near.line && rows.length > 1)));
    this.tip.classList.remove("hidden");
    const place = plot.over.offsetLeft + left;
    const isRight = place + 20 + this.tip.offsetWidth > this.holder.clientWidth;
    this.tip.style.left = `${Math.max(0, isRight ? place - this.tip.offsetWidth - 14 : place + 14)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(top - 12, this.height - this.tip.offsetHeight))}px`;
  }

  close() {
    this.sizes.disconnect();
    this.dropTheme();
    this.plot?.destroy();
    this.holder.remove();
  }
}

function tipRow(line, value, at, isNear) {
  const range = line.isBand && line.low ? h("span", { class: "tip-range" }, `${number(line.low[at])} – ${number(line.high[at])}`) : null;
  return h("div", { class: `tip-row ${isNear ? "near" : ""}` }, h("i", { style: { background: line.color() } }), h("span", { class: "ellipsis" }, line.label), range, h("b", {}, number(value)));
}

/** Room for the labels of a y axis. It is the same for most charts, so that charts below each other are aligned. */
const axisWidth = (texts) => Math.max(52, 14 + 6.5 * Math.max(0, ...(texts ?? []).map((text) => text.length)));

function yRange(low, high) {
  if (low === null) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

/** The index of the value nearest to `index` that is not missing. */
function nearest(values, index) {
  if (!values || index === null || index === undefined) return null;
  for (let step = 0; step < values.length; step += 1) {
    for (const each of [index - step, index + step]) if (values[each] !== null && values[each] !== undefined) return each;
  }
  return null;
}

/** The index of the number nearest to `x` in a sorted list. */
export function nearestX(list, x) {
  let [low, high] = [0, list.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] <= x) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(list[high] - x) < Math.abs(list[low] - x) ? high : low;
}
