// Small parts that several views show: a run's state, a sparkline, a progress bar.

import { h, icon, setAttribute, svg } from "./dom.js";
import { percent } from "./format.js";

const STATES = {
  running: null,
  finished: "check",
  stopped: "stop",
  paused: "pause",
  failed: "cross",
  killed: "cross",
  interrupted: "warn",
  pending: "dash",
  unknown: "dash",
};

/** A pill with the state: told by shape and word, not by colour alone. */
export function statePill(state, kind = "") {
  const known = state in STATES ? state : "unknown";
  const sign = known === "running" ? h("i", { class: "pulse" }) : icon(STATES[known]);
  return h("span", { class: `pill ${known} ${kind}`, data: { state } }, sign, state);
}

/** Replace a pill only if the state changed: its animation goes on otherwise. */
export function updatePill(holder, state, kind = "") {
  if (holder.firstChild?.dataset?.state !== state) holder.replaceChildren(statePill(state, kind));
}

export function progressBar(label = "Progress") {
  const fill = h("i");
  const element = h("div", { class: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const set = (share, kind = "") => {
    const bounded = Math.min(1, Math.max(0, share ?? 0));
    fill.style.width = percent(bounded, 1);
    setAttribute(element, "aria-valuenow", Math.round(bounded * 100));
    setAttribute(element, "class", `bar ${kind}`.trim());
  };
  return { element, set };
}

const WIDTH = 88;
const HEIGHT = 26;

/** A sparkline of fixed size. `set` redraws it. */
export function sparkline() {
  const path = svg("path", { fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-linejoin": "round", "stroke-linecap": "round" });
  const end = svg("circle", { r: 2, fill: "currentColor" });
  const element = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, path, end);
  const set = (values) => {
    const known = values.filter((value) => value !== null);
    const low = Math.min(...known);
    const span = Math.max(...known) - low || 1;
    let text = "";
    let place = null;
    values.forEach((value, index) => {
      if (value === null) return;
      const x = 3 + (index / Math.max(1, values.length - 1)) * (WIDTH - 6);
      const y = HEIGHT - 4 - ((value - low) / span) * (HEIGHT - 8);
      text += `${text ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      place = [x, y];
    });
    setAttribute(path, "d", text || "M0 0");
    setAttribute(end, "cx", place ? place[0].toFixed(1) : -9);
    setAttribute(end, "cy", place ? place[1].toFixed(1) : -9);
  };
  return { element, set };
}

/** A sortable table. Columns: { key, title, isNumber, value(row), cell(row) }. Clicking a heading calls onsort(key). */
export function table(columns, rows, { sort = "", onsort = null, label, rowProps = null } = {}) {
  const key = sort.replace(/^-/, "");
  const heads = columns.map((column) => {
    const direction = column.key !== key ? null : sort.startsWith("-") ? "descending" : "ascending";
    const next = direction === "ascending" ? `-${column.key}` : direction === "descending" ? column.key : column.isNumber ? `-${column.key}` : column.key;
    const mark = direction ? (direction === "descending" ? " ↓" : " ↑") : "";
    const text = onsort
      ? h("button", { type: "button", class: "sorter", on: { click: () => onsort(next) } }, column.title, h("span", { "aria-hidden": "true" }, mark))
      : column.title;
    return h("th", { scope: "col", class: column.isNumber ? "num" : column.kind, "aria-sort": direction, title: column.hint }, text);
  });
  const sorted = [...rows];
  const chosen = columns.find((column) => column.key === key);
  if (chosen) sorted.sort((a, b) => compare(chosen.value(a), chosen.value(b)) * (sort.startsWith("-") ? -1 : 1));
  const body = sorted.map((row) =>
    h("tr", rowProps?.(row) ?? {}, columns.map((column) => h("td", { class: column.isNumber ? "num" : column.kind }, column.cell ? column.cell(row) : String(column.value(row) ?? "–")))),
  );
  return h("div", { class: "table-scroll", tabindex: 0, role: "group", "aria-label": label },
    h("table", { class: "table" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body)));
}

/** Numbers by size, texts by alphabet, missing values last. */
export function compare(a, b) {
  const isMissing = (value) => value === null || value === undefined || Number.isNaN(value);
  if (isMissing(a) || isMissing(b)) return Number(isMissing(a)) - Number(isMissing(b));
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}
