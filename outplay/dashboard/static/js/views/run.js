// One run: how it is doing, its curve, its workers, checkpoints, videos and settings.

import { get, post } from "../api.js";
import { button, card, command, empty, h, icon, morph, setAttribute, setText } from "../dom.js";
import { bytes, duration, moment, percent, score, whole } from "../format.js";
import { title } from "../names.js";
import { confirm, fail, toast } from "../notices.js";
import { ChartPanel, chartState } from "../panel.js";
import { progressBar, updatePill } from "../parts.js";
import { adjust, href } from "../router.js";
import { checkpointTable, evaluationResult, settingsCard, stageBar, videoList, workerTable } from "../details.js";
import { machineMeters } from "../shell.js";
import { on, onVisible, store } from "../store.js";

const ACTIONS = [
  ["checkpoint", "Checkpoint", "save", "Write a checkpoint after this iteration"],
  ["evaluate", "Evaluate", "evaluate", "Evaluate after this iteration"],
  ["video", "Record video", "video", "Record an episode after this iteration"],
];

export function showRun(root, params) {
  const id = params.get("run");
  if (!store.runs.has(id)) {
    root.append(empty("search", "There is no such run", h("p", {}, "It was moved or deleted, or the link is of another results folder."), h("p", {}, h("code", {}, id ?? "")), h("a", { class: "button", href: href("runs") }, "All runs")));
    return { isMissing: true };
  }
  return new RunView(root, id, params);
}

class RunView {
  constructor(root, id, params) {
    Object.assign(this, { root, id, details: null, seenStages: new Set() });
    this.build();
    this.panel = new ChartPanel(this.charts, adjust);
    this.removers = [
      on("runs", (ids) => ids.has(id) && this.changed()),
      on("machine", () => this.drawMachine()),
      onVisible(() => this.load()),
    ];
    this.drawMachine();
    this.drawRun();
    this.update(params);
    this.load();
    this.timer = setInterval(() => this.isRunning() && !document.hidden && this.load(), 5000);
    this.keys = { b: () => this.panel.toggleBands(), Escape: () => adjust({ from: null, to: null }) };
  }

  run() {
    return store.runs.get(this.id);
  }

  isRunning() {
    return this.run()?.state === "running";
  }

  build() {
    const run = this.run();
    this.state = h("span");
    this.sub = h("p", { class: "sub" });
    this.stop = button("Stop", { symbol: "stop", kind: "danger", onclick: () => this.control("stop") });
    this.actions = ACTIONS.map(([action, text, symbol, hint]) => button(text, { symbol, title: hint, onclick: () => this.control(action), "data-action": action }));
    this.stop.dataset.action = "stop";
    const watch = h("a", { class: "button primary", href: href("watch", { run: this.id }) }, icon("watch"), "Watch");
    const crumbs = h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: href("runs") }, "Runs"), "/", run.study ? h("a", { class: "ellipsis", href: href("study", { study: run.study }) }, run.study) : h("a", { class: "ellipsis", href: href("runs", { q: `experiment=${quoted(run.experiment)}` }) }, run.experiment ?? ""));
    const head = h("div", { class: "head run-head" }, h("div", { class: "title" }, h("h1", {}, title(run), " ", this.state), this.sub), h("div", { class: "actions" }, watch, this.actions, this.stop));
    this.problem = h("div", { class: "hidden" });
    this.tiles = new Map();
    const tile = (key, label) => {
      const value = h("dd", { class: "tile-value" });
      const note = h("dd", { class: "tile-note" });
      this.tiles.set(key, { value, note });
      return h("div", { class: "tile" }, h("dt", {}, label), value, note);
    };
    const tiles = h("dl", { class: "tiles" }, tile("return", "Return"), tile("steps", "Steps"), tile("speed", "Steps per second"), tile("iteration", "Iteration"), tile("time", "Time"), tile("progress", "Progress"));
    this.bar = progressBar("Progress of the run");
    this.tiles.get("progress").note.replaceWith(h("dd", { class: "tile-bar" }, this.bar.element));
    this.charts = h("div", { class: "panel run-charts" });
    const body = () => h("div", { class: "body" });
    Object.assign(this, { evaluation: body(), stages: body(), workers: body(), machine: h("div", { class: "body" }), checkpoints: body(), videos: body(), level: h("div", { class: "body" }), settings: h("div") });
    const meters = h("div", { class: "meters" });
    this.machineNote = h("p", { class: "faint" });
    this.machine.append(meters, this.machineNote);
    this.meters = machineMeters(meters);
    this.levelCard = card("Curriculum", this.level);
    this.levelCard.classList.add("hidden");
    this.root.append(h("div", { class: "page" }, crumbs, head, this.problem, tiles,
      h("div", { class: "run-grid" },
        h("div", { class: "run-main" }, this.charts, card("Workers", this.workers), card("Checkpoints", this.checkpoints), this.videosCard = card("Videos", this.videos)),
        h("div", { class: "run-side" }, card("Evaluation", this.evaluation), card("Time of each stage", this.stages), this.levelCard, card("Machine", this.machine), this.settings))));
  }

  update(params) {
    this.params = params;
    const state = chartState(params);
    this.panel.update(state.metrics.length ? state : { ...state, metrics: ["episode_return_mean"] }, [this.id]);
    this.panel.legend.classList.add("hidden");
  }

  changed() {
    if (!this.run()) return;
    this.drawRun();
    // Not started anew by each event: they may come every second.
    this.soon ??= setTimeout(() => {
      this.soon = null;
      if (!document.hidden) this.load();
    }, 1500);
  }

  async load() {
    try {
      this.details = await get("run", { run: this.id });
      this.drawDetails();
    } catch (error) {
      if (!this.details) this.problem.replaceChildren(h("div", { class: "callout bad" }, icon("warn"), h("div", {}, error.message)));
      this.problem.classList.toggle("hidden", Boolean(this.details));
    }
  }

  drawRun() {
    const run = this.run();
    updatePill(this.state, run.state);
    const seed = run.seed === null || run.seed === undefined ? "" : `seed ${run.seed} · `;
    setText(this.sub, `${seed}${run.name} · started ${moment(run.started)}`);
    const set = (key, text, note = "") => {
      setText(this.tiles.get(key).value, text);
      setText(this.tiles.get(key).note, note);
    };
    const last = this.details?.last ?? {};
    set("return", score(run.return), last.episode_return_max === undefined ? "" : `${score(last.episode_return_min)} to ${score(last.episode_return_max)}`);
    set("steps", whole(run.timesteps), last.episodes_total === undefined ? "" : `${whole(last.episodes_total)} episodes`);
    set("speed", whole(run.steps_per_s));
    set("iteration", whole(run.iteration));
    set("time", duration(run.seconds), this.remaining(run));
    set("progress", percent(run.progress ?? (run.state === "finished" ? 1 : null)));
    this.bar.set(run.progress ?? (run.state === "finished" ? 1 : 0), run.state === "finished" ? "done" : "");
    if (run.error) {
      this.problem.replaceChildren(h("div", { class: "callout bad", role: "alert" }, icon("warn"), h("div", {}, run.error)));
      this.problem.classList.remove("hidden");
    } else if (run.state === "killed" || run.state === "interrupted" || run.state === "stopped") {
      const text = { killed: "The process of this run has ended without finishing it.", interrupted: "This run was interrupted.", stopped: "This run was stopped." }[run.state];
      this.problem.replaceChildren(h("div", { class: "callout" }, icon("info"), h("div", { class: "resume" }, h("span", {}, `${text} To go on from its newest checkpoint:`), command(`outplay train --resume ${run.id}`))));
      this.problem.classList.remove("hidden");
    } else this.problem.classList.add("hidden");
    this.drawActions(run);
  }

  remaining(run) {
    if (run.state !== "running" || !run.progress || run.progress < 0.02 || !run.seconds) return "";
    return `about ${duration((run.seconds * (1 - run.progress)) / run.progress)} left`;
  }

  drawActions(run) {
    const isHere = this.details?.is_here ?? true;
    const reason = !store.canControl ? "Control is off: the dashboard was started read-only" : run.state !== "running" ? `The run is ${run.state}` : !isHere ? `The run is on ${this.details.host}; the request goes through the shared folder` : "";
    for (const each of [this.stop, ...this.actions]) {
      each.disabled = !store.canControl || run.state !== "running";
      if (each.disabled || !isHere) setAttribute(each, "title", reason);
    }
  }

  drawDetails() {
    const { stages, workers, checkpoints, videos, curriculum, config, evaluation } = this.details;
    morph(this.evaluation, evaluationResult(this.id, evaluation, this.isRunning()));
    morph(this.stages, stageBar(this.allStages(stages)));
    morph(this.workers, workerTable(workers, this.details.status, this.isRunning()));
    morph(this.checkpoints, checkpointTable(this.id, checkpoints));
    const shown = videos.map((video) => video.name).join();
    if (shown !== this.shownVideos) {
      this.shownVideos = shown; // a video that plays must not be replaced
      this.videos.replaceChildren(videoList(this.id, videos, this.isRunning()));
    }
    this.levelCard.classList.toggle("hidden", !curriculum);
    if (curriculum) {
      const bar = progressBar("Level of the curriculum");
      bar.set(curriculum.levels ? (curriculum.level + 1) / curriculum.levels : 0);
      this.level.replaceChildren(h("p", { class: "level" }, h("b", {}, `Level ${curriculum.level}`), curriculum.levels ? ` of ${curriculum.levels - 1}` : ""), bar.element);
    }
    this.drawMachine();
    if (!this.hasSettings) {
      this.hasSettings = true;
      this.settings.replaceChildren(settingsCard(config, this.run()));
      if (this.params.get("part") === "videos") this.videosCard.scrollIntoView();
    }
    this.drawRun();
  }

  /** With the stages that only some iterations have, as evaluations, so that the list keeps its length. */
  allStages(stages) {
    for (const stage of stages) this.seenStages.add(stage.name);
    return [...this.seenStages].map((name) => stages.find((stage) => stage.name === name) ?? { name, seconds: 0, share: 0 });
  }

  /** The machine as the run reports it; of a run that has ended, the dashboard's. A run reports the GPU of its learner only. */
  drawMachine() {
    const { host, is_here: isHere, status } = this.details ?? {};
    const own = this.isRunning() ? status?.machine : null;
    const gpus = isHere && !own?.gpus?.length ? store.machine?.gpus : own?.gpus;
    this.meters(own ? { ...own, gpus } : store.machine);
    const used = own?.run_cpu_percent === undefined ? "" : ` This run uses ${(own.run_cpu_percent / 100).toFixed(1)} of ${own.cpus ?? "its"} CPUs and ${bytes(own.run_memory_bytes)}.`;
    setText(this.machineNote, own ? `On ${host}.${used}` : host ? `${isHere ? `${host}, where the run was` : `The dashboard's machine. The run was on ${host}`}.` : "");
  }

  async control(action) {
    if (action === "stop" && !(await confirm("Stop this run?", "It writes a checkpoint first, so it can be resumed later. Other processes of the run end with it.", "Stop the run"))) return;
    try {
      const { done } = await post("control", { run: this.id, action });
      toast(done);
      setTimeout(() => this.load(), 1000);
    } catch (error) {
      fail(error);
    }
  }

  close() {
    clearInterval(this.timer);
    clearTimeout(this.soon);
    for (const remove of this.removers) remove();
    this.panel.close();
  }
}

const quoted = (text) => (/\s/.test(text ?? "") ? `"${text}"` : (text ?? ""));
