// A run in the list. Its cells have fixed widths and are patched in place, so that nothing moves while data arrives.

import { h, setAttribute, setText } from "./dom.js";
import { ago, moment, score, tick, whole } from "./format.js";
import { settingsText, shortId, title } from "./names.js";
import { progressBar, sparkline, updatePill } from "./parts.js";
import { href } from "./router.js";
import { lineStyle, slotOf } from "./theme.js";

export class Row {
  constructor(run, names, ontoggle) {
    this.box = h("input", { type: "checkbox" });
    this.box.addEventListener("click", (event) => {
      event.preventDefault(); // the address says what is checked
      ontoggle(run.id, event.shiftKey);
    });
    this.mark = h("i", { class: "mark" });
    this.link = h("a", { class: "run-link ellipsis", href: href("run", { run: run.id }) });
    this.sub = h("div", { class: "run-sub ellipsis" });
    this.state = h("div", { class: "state" });
    this.bar = progressBar("Progress of the run");
    this.steps = h("div", { class: "steps" });
    this.return = h("div", { class: "num strong" });
    this.speed = h("div", { class: "num c-speed" });
    this.updated = h("div", { class: "num faint c-updated" });
    this.spark = sparkline();
    this.element = h("div", { class: "row run-row", role: "listitem", data: { id: run.id } },
      h("label", { class: "pick" }, this.box, this.mark),
      h("div", { class: "run-name" }, this.link, this.sub),
      h("div", { class: "c-state" }, this.state, this.bar.element, this.steps),
      this.return, this.speed, h("div", { class: "c-spark" }, this.spark.element), this.updated);
    this.update(run, names);
  }

  /** `names`: the settings to show. */
  update(run, names) {
    this.run = run;
    this.names = names ?? this.names;
    setText(this.link, title(run));
    const seed = run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`;
    setText(this.sub, [seed, settingsText(run, this.names), shortId(run)].filter(Boolean).join(" · "));
    setAttribute(this.element, "title", run.error ?? null);
    setAttribute(this.box, "aria-label", `Show ${title(run)} ${shortId(run)} in the charts`);
    updatePill(this.state, run.state, "bare");
    this.bar.set(run.progress);
    this.bar.element.classList.toggle("hidden", run.state !== "running");
    this.steps.classList.toggle("hidden", run.state === "running");
    setText(this.steps, `${run.timesteps >= 1e6 ? tick(run.timesteps) : whole(run.timesteps ?? 0)} steps`);
    setText(this.return, score(run.return));
    setText(this.speed, run.state === "running" || run.steps_per_s ? whole(run.steps_per_s) : "–");
    this.spark.set(run.spark ?? []);
    this.tick();
  }

  tick() {
    setText(this.updated, ago(this.run.updated));
    setAttribute(this.updated, "title", moment(this.run.updated));
  }

  select(isSelected) {
    this.box.checked = isSelected;
    this.element.classList.toggle("selected", isSelected);
    this.element.style.setProperty("--line-color", isSelected ? `var(--${lineStyle(slotOf(this.run.id)).name})` : "var(--faint)");
  }
}
