// Numbers over the steps of an episode: the value of the state, the probabilities of the actions.

import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { lineStyle } from "./theme.js";

const MOST_STEPS = 2000;

export class OverTime {
  constructor(label) {
    this.element = h("div", { class: "body flush" });
    this.chart = new Chart(this.element, { height: 150, label, isStatic: true });
    this.clear();
  }

  /** Another episode begins. */
  clear() {
    this.x = [];
    this.columns = [];
  }

  /** The numbers of a step; one step is drawn once. */
  add(step, values) {
    if (values.length !== this.columns.length) {
      this.clear();
      this.columns = values.map(() => []);
    }
    if (this.x.at(-1) === step) return;
    this.x.push(step);
    values.forEach((value, index) => this.columns[index].push(value));
    if (this.x.length > MOST_STEPS) for (const list of [this.x, ...this.columns]) list.shift();
  }

  /** `labels`: of the numbers. `note` is shown if there are none. */
  draw(labels, note) {
    const lines = this.columns.map((y, slot) => ({ id: slot, slot, label: labels[slot], color: () => lineStyle(slot).color, dash: lineStyle(slot).dash, width: this.columns.length > 1 ? 1.4 : undefined, x: this.x, y }));
    this.chart.set({ lines, note });
  }

  close() {
    this.chart.close();
  }
}
