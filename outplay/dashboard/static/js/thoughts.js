// What the policy thinks: its action as bars, and what it sees as numbers.

import { h, setText } from "./dom.js";
import { number, percent } from "./format.js";
import { lineStyle } from "./theme.js";

const MOST_SWATCHES = 16; // actions with a line of their own in the chart

/** What a step tells of the action: its kind ("probability", "Q" or "action") and a number for each action or component. */
export function actionValues({ probabilities, q, action }) {
  if (probabilities) return { kind: "probability", values: probabilities };
  return q ? { kind: "Q", values: q } : { kind: "action", values: numbers(action) };
}

/** The title of these numbers over time. */
export const OVER_TIME = { probability: "Probabilities over time", Q: "Q-values over time", action: "Action over time" };
export const isCharted = (values) => values.length <= MOST_SWATCHES;

/** Probabilities, Q-values, or the components of a continuous action. */
export class Bars {
  constructor() {
    this.element = h("div", { class: "bars" }, h("p", { class: "faint" }, "Shown as soon as the agent acts."));
    this.names = [];
    this.rows = [];
  }

  set(message) {
    const { action, chosen } = message;
    const { kind, values } = actionValues(message);
    if (!values.length) return;
    if (kind !== this.kind || values.length !== this.rows.length) this.build(kind, values.length);
    const [low, high] = kind === "probability" ? [0, 1] : kind === "Q" ? [Math.min(...values), Math.max(...values)] : [-1, 1];
    values.forEach((value, index) => {
      const { row, fill, text } = this.rows[index];
      const share = kind === "action" ? Math.min(1, Math.abs(value)) / 2 : (value - low) / (high - low || 1);
      fill.style.width = percent(Math.max(0, Math.min(1, share)), 1);
      if (kind === "action") fill.style.marginLeft = percent(value < 0 ? 0.5 - share : 0.5, 1);
      setText(text, kind === "probability" ? percent(value, 1) : kind === "Q" ? number(value) : value.toFixed(3));
      row.classList.toggle("chosen", kind !== "action" && (chosen ?? [action]).includes(index));
    });
  }

  /** The name of an action, or of a component of a continuous one. */
  nameOf(index) {
    if (this.kind === "action") return `Component ${index}`;
    return this.names[index] && this.names[index] !== String(index) ? this.names[index] : `Action ${index}`;
  }

  build(kind, count) {
    this.kind = kind;
    this.rows = Array.from({ length: count }, (_, index) => {
      const fill = h("i");
      const text = h("b");
      const name = this.nameOf(index);
      const swatch = count <= MOST_SWATCHES ? h("i", { class: "swatch", style: { background: `var(--${lineStyle(index).name})` } }) : null;
      const row = h("div", { class: "bar-row" }, h("span", { class: "bar-name", title: name }, swatch, h("span", { class: "ellipsis" }, name)), h("div", { class: `track ${kind === "action" ? "centered" : ""}` }, fill), text);
      return { row, fill, text };
    });
    const note = { probability: "Probability of each action; the chosen one is marked.", Q: "Q-value of each action; the chosen one is marked.", action: "The continuous action." }[kind];
    this.element.replaceChildren(...this.rows.map(({ row }) => row), h("p", { class: "faint" }, note));
  }
}

const numbers = (action) => (typeof action === "number" ? [action] : Array.isArray(action) ? action.flat(3).filter((each) => typeof each === "number") : []);

/** The observation's values, with a bar for each, scaled by the largest value seen. */
export class Observation {
  constructor() {
    this.element = h("div", { class: "bars observation" }, h("p", { class: "faint" }, "No numbers to show: the observation is a picture, or nothing has been played yet."));
    this.names = [];
    this.rows = [];
    this.largest = [];
  }

  set(values) {
    if (!values?.length) return;
    if (values.length !== this.rows.length) this.build(values.length);
    values.forEach((value, index) => {
      const { fill, text } = this.rows[index];
      this.largest[index] = Math.max(this.largest[index] ?? 1e-9, Math.abs(value));
      const share = Math.min(1, Math.abs(value) / this.largest[index]) / 2;
      fill.style.width = percent(share, 1);
      fill.style.marginLeft = percent(value < 0 ? 0.5 - share : 0.5, 1);
      setText(text, typeof value === "number" ? value.toFixed(3) : "–");
    });
  }

  build(count) {
    this.largest = [];
    this.rows = Array.from({ length: count }, (_, index) => {
      const fill = h("i");
      const text = h("b");
      const row = h("div", { class: "bar-row" }, h("span", { class: "ellipsis" }, this.names?.[index] && this.names[index] !== String(index) ? this.names[index] : `[${index}]`), h("div", { class: "track centered" }, fill), text);
      return { row, fill, text };
    });
    this.element.replaceChildren(...this.rows.map(({ row }) => row));
  }
}
