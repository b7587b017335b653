// Studies: the list of them, and one with its trials and figures.

import { get } from "../api.js";
import { card, command, empty, h, icon, morph, setText } from "../dom.js";
import { duration, number, value, whole } from "../format.js";
import { fail } from "../notices.js";
import { progressBar, statePill, table, updatePill } from "../parts.js";
import { adjust, href } from "../router.js";
import { sanitized } from "../sanitize.js";
import { since } from "../times.js";
import { on, store } from "../store.js";
import { trialState } from "../details.js";

const [SMALLEST, LARGEST] = [0.885, 1.1]; // scales of a figure: its texts stay readable, and a narrow screen scrolls it
const INTERVAL = 3000; // between two looks at a study that runs: its figures are work for the server
const MOST_TRIALS = 500;
const TABLE = { most: 476, head: 52, row: 38 }; // heights, for the room of the trials until they are there

export function showStudies(root) {
  const holder = h("div", { class: "study-list" });
  const blank = h("div", {}, empty("studies", "No studies yet", h("p", {}, "A study searches for the best settings. Type this in a terminal:"), command("outplay tune -f tune-cartpole")));
  root.append(h("div", { class: "page" }, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Studies"), h("p", { class: "sub" }, "Searches for hyper-parameters."))), holder, blank));
  const draw = () => {
    const studies = [...store.studies.values()].sort((a, b) => (b.updated ?? "").localeCompare(a.updated ?? ""));
    blank.classList.toggle("hidden", studies.length > 0);
    holder.replaceChildren(...studies.map(studyCard));
  };
  draw();
  const remove = on("studies", draw);
  return { update: () => {}, close: remove };
}

function studyCard(study) {
  const bar = progressBar("Trials that have ended");
  bar.set(study.trials ? (study.finished + study.failed) / study.trials : 0, study.state === "finished" ? "done" : "");
  return h("a", { class: "card study-card", href: href("study", { study: study.id }) },
    h("div", { class: "study-name" }, h("b", { class: "ellipsis" }, study.name), statePill(study.state)),
    h("div", { class: "study-facts" }, fact("Best", number(study.best), [study.metric, study.mode].filter(Boolean).join(", ")), fact("Trials", whole(study.trials), study.running ? `${study.running} running` : `${study.finished} done`), fact("Failed", whole(study.failed)), fact("Changed", since(study.updated))),
    bar.element,
    study.error ? h("p", { class: "wrong" }, study.error) : null);
}

const fact = (name, text, note = "") => h("span", { class: "fact" }, h("small", {}, name), h("b", {}, text), h("small", { class: "ellipsis" }, note));

export function showStudy(root, params) {
  const id = params.get("study");
  if (!store.studies.has(id)) {
    root.append(empty("studies", "There is no such study", h("p", {}, h("code", {}, id ?? "")), h("a", { class: "button", href: href("studies") }, "All studies")));
    return { isMissing: true };
  }
  return new StudyView(root, id, params);
}

class StudyView {
  constructor(root, id, params) {
    Object.assign(this, { id, params, details: null, figures: new Map(), isBusy: false });
    this.state = h("span");
    this.sub = h("p", { class: "sub" });
    this.tiles = h("dl", { class: "tiles study-tiles" });
    this.values = new Map(["Best", "Trials", "Running", "Finished", "Failed", "Changed"].map((name) => {
      const text = h("dd", { class: "tile-value" });
      const note = h("dd", { class: "tile-note" });
      this.tiles.append(h("div", { class: "tile" }, h("dt", {}, name), text, note));
      return [name, { text, note }];
    }));
    const height = Math.min(TABLE.most, TABLE.head + TABLE.row * store.studies.get(id).trials);
    this.trials = h("div", { class: "body trials", style: { "min-height": `${height}px` } }, h("p", { class: "faint" }, "Reading the trials."));
    this.pictures = h("div", { class: "figures" }, card("Figures", h("div", { class: "body figure-wait faint" }, "Drawing the figures.")));
    root.append(h("div", { class: "page study" },
      h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: href("studies") }, "Studies")),
      h("div", { class: "head run-head" }, h("div", { class: "title" }, h("h1", {}, store.studies.get(id).name, " ", this.state), this.sub), h("div", { class: "actions" }, h("a", { class: "button", href: href("runs", { q: `study="${id}"`, by: "none", sort: "-return" }) }, icon("charts"), "Runs and charts"))),
      this.tiles, card("Trials", this.trials), this.pictures));
    this.pictures.addEventListener("click", (event) => {
      const trial = event.target.closest?.("[data-trial]")?.dataset.trial;
      const run = this.details?.trials.find((each) => each.id === trial)?.run;
      if (run) location.hash = href("run", { run });
    });
    this.pictures.addEventListener("pointerover", (event) => this.mark(event.target.closest?.("[data-trial]")?.dataset.trial));
    this.trials.addEventListener("pointerover", (event) => this.mark(event.target.closest?.("[data-trial]")?.dataset.trial));
    this.remove = on("studies", (ids) => (!ids || ids.has(id)) && this.changed());
    this.drawStudy();
    this.load();
  }

  update(params) {
    this.params = params;
    if (this.details) this.drawTrials();
  }

  changed() {
    if (!store.studies.has(this.id)) return;
    this.drawStudy();
    // Not started anew by each event: they may come every second.
    this.soon ??= setTimeout(() => {
      this.soon = null;
      this.load();
    }, INTERVAL);
  }

  async load() {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      this.details = await get("study", { study: this.id });
      this.drawTrials();
      this.drawFigures();
    } catch (error) {
      fail(error);
    }
    this.isBusy = false;
  }

  drawStudy() {
    const study = store.studies.get(this.id);
    updatePill(this.state, study.state);
    setText(this.sub, `${study.algorithm ?? study.trainable ?? ""} · ${study.metric ?? "no metric"}${study.mode ? `, ${study.mode}` : ""}`);
    const set = (name, text, note = "") => {
      setText(this.values.get(name).text, text);
      setText(this.values.get(name).note, note);
    };
    set("Best", number(study.best), study.metric ?? "");
    set("Trials", whole(study.trials));
    set("Running", whole(study.running));
    set("Finished", whole(study.finished));
    set("Failed", whole(study.failed));
    this.values.get("Changed").text.replaceChildren(since(study.updated));
  }

  drawTrials() {
    const { trials, variables, study } = this.details;
    this.trials.style.minHeight = "";
    if (!trials.length) {
      this.trials.replaceChildren(h("p", { class: "faint" }, "No trial has started yet."));
      return;
    }
    const best = study.best;
    const columns = [
      { key: "id", title: "Trial", value: (row) => row.id, cell: (row) => h("span", { class: "named" }, row.run ? h("a", { href: href("run", { run: row.run }) }, row.id) : row.id, row.value !== null && row.value === best ? h("span", { class: "badge" }, "best") : null) },
      { key: "state", title: "State", value: (row) => row.state, cell: (row) => h("span", { title: row.error }, trialState(row.state)) },
      { key: "value", title: study.metric ?? "Value", isNumber: true, value: (row) => row.value, cell: (row) => number(row.value) },
      { key: "iterations", title: "Iterations", isNumber: true, value: (row) => row.iterations, cell: (row) => whole(row.iterations) },
      { key: "seconds", title: "Time", isNumber: true, value: (row) => row.seconds, cell: (row) => duration(row.seconds) },
      ...variables.map((name) => ({ key: `v.${name}`, title: name, isNumber: trials.every((row) => typeof (row.config[name] ?? 0) === "number"), value: (row) => row.config[name], cell: (row) => (name in row.config ? value(row.config[name]) : "–") })),
    ];
    const sort = this.params.get("sort") ?? "";
    const list = table(columns, trials.slice(0, MOST_TRIALS), { label: "Trials", sort, onsort: (key) => adjust({ sort: key }), rowProps: (row) => ({ data: { trial: row.id } }) });
    if (sort === this.sorted && trials.length <= MOST_TRIALS) morph(this.trials, list); // headings keep their listeners
    else this.trials.replaceChildren(list);
    this.sorted = sort;
    if (trials.length > MOST_TRIALS) this.trials.append(h("p", { class: "faint" }, `The best ${MOST_TRIALS} of ${whole(trials.length)} trials. All of them: outplay tune report --csv FILE.`));
  }

  /** Each figure is replaced only if it changed, at its place. */
  drawFigures() {
    const { figures } = this.details;
    const wanted = figures.map(({ id, title, note, html: drawn }) => {
      const html = `<p class="note">${note}</p>${drawn}`;
      const known = this.figures.get(id);
      if (known?.html === html) return known.element;
      const body = h("div", { class: "body drawing", tabindex: 0, role: "group", "aria-label": `${title}, drawn` }, sanitized(html));
      for (const each of body.querySelectorAll("svg")) { // a small drawing is not blown up, so that all texts have one size
        const { width } = each.viewBox.baseVal;
        if (width) Object.assign(each.style, { maxWidth: `${width * LARGEST}px`, minWidth: `${Math.round(width * SMALLEST)}px` });
      }
      const element = known?.element ?? card(title, body);
      if (known) element.lastChild.replaceWith(body);
      this.figures.set(id, { html, element });
      return element;
    });
    if (!wanted.length) wanted.push(card("Figures", h("div", { class: "body faint" }, "Figures are drawn as soon as two trials have results.")));
    if (wanted.length !== this.pictures.children.length || wanted.some((each, index) => each !== this.pictures.children[index])) this.pictures.replaceChildren(...wanted);
  }

  /** Emphasize a trial in the table and in all figures. */
  mark(trial) {
    if (trial === this.marked) return;
    this.marked = trial;
    this.pictures.classList.toggle("marked", Boolean(trial));
    for (const each of document.querySelectorAll(".study [data-trial]")) each.classList.toggle("on", Boolean(trial) && each.dataset.trial === trial);
  }

  close() {
    clearTimeout(this.soon);
    this.remove();
  }
}
