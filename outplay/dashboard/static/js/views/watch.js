// The agent plays: frames from the server's player, what the policy thinks, and controls.

import { get, post, socketAddress } from "../api.js";
import { button, card, empty, h, icon, setAttribute, setText } from "../dom.js";
import { score, whole } from "../format.js";
import { title } from "../names.js";
import { fail, toast } from "../notices.js";
import { OverTime } from "../overtime.js";
import { adjust, href } from "../router.js";
import { on, store } from "../store.js";
import { Bars, OVER_TIME, Observation, actionValues, isCharted } from "../thoughts.js";

const SPEEDS = [1, 2, 5, 10, 15, 20, 30, 40, 50, 60];

export function showWatch(root, params) {
  const run = store.runs.get(params.get("run"));
  if (!run) {
    root.append(empty("watch", "There is no such run", h("a", { class: "button", href: href("runs") }, "All runs")));
    return { isMissing: true };
  }
  return new WatchView(root, run, params);
}

/** What is wrong with a seed; empty if nothing is. No seed is the next one. */
function seedProblem(text) {
  if (text && !/^\d+$/.test(text)) return "The seed must be an integer of at least 0.";
  return Number.isSafeInteger(Number(text)) ? "" : `The seed must be at most ${Number.MAX_SAFE_INTEGER}.`;
}

class WatchView {
  constructor(root, run, params) {
    Object.assign(this, { root, run, params, isPaused: false, frames: 0, episodes: [], wait: 500, isClosed: false });
    this.build();
    this.connect();
    this.loadCheckpoints();
    this.removers = [on("runs", (ids) => ids.has(run.id) && this.loadCheckpointsSoon())];
    this.onVisibility = () => this.isPaused || this.send({ command: document.hidden ? "pause" : "resume" });
    document.addEventListener("visibilitychange", this.onVisibility);
    this.keys = { " ": () => this.togglePause(), ".": () => this.step(), r: () => this.restart(), Escape: () => (location.hash = href("run", { run: run.id })) };
  }

  build() {
    this.canvas = h("canvas", { class: "screen", width: 4, height: 3, role: "img", "aria-label": "The environment as the agent plays", data: { frames: "0" } });
    this.cover = h("div", { class: "cover", role: "status" }, "Starting the player");
    this.badge = h("span", { class: "badge plain hidden" });
    this.box = h("div", { class: "screen-box" }, this.canvas, this.cover, this.badge);
    this.counters = new Map(["Return", "Step", "Episode", "Seed"].map((name) => [name, h("dd")]));
    this.play = button("Pause", { symbol: "pause", kind: "primary", onclick: () => this.togglePause(), "data-command": "pause" });
    this.stepper = button("Step", { symbol: "step", onclick: () => this.step(), "data-command": "step" });
    this.seed = h("input", { class: "input seed", inputmode: "numeric", pattern: "[0-9]*", placeholder: "next", "aria-label": "Seed", value: this.params.get("seed") ?? "" });
    this.seed.addEventListener("keydown", (event) => event.key === "Enter" && this.restart());
    const again = button("Restart", { symbol: "restart", onclick: () => this.restart(), "data-command": "restart" });
    this.speed = h("input", { type: "range", min: 0, max: SPEEDS.length - 1, step: 1, value: SPEEDS.indexOf(30), "aria-label": "Speed in steps per second" });
    this.speedText = h("output", { class: "mono" }, "30/s");
    this.speed.addEventListener("input", () => {
      this.hasSpeed = true;
      this.setSpeed();
    });
    this.checkpoint = h("select", { class: "select", "aria-label": "Checkpoint" }, h("option", { value: "newest" }, "Newest"));
    this.checkpoint.addEventListener("change", () => {
      adjust({ checkpoint: this.checkpoint.value === "newest" ? null : this.checkpoint.value });
      this.send({ command: "checkpoint", name: this.checkpoint.value });
      setText(this.cover, "Loading the checkpoint");
      this.cover.classList.remove("hidden");
    });
    this.bars = new Bars();
    this.observation = new Observation();
    this.value = new OverTime("Value of the state over the steps of this episode");
    this.actions = new OverTime("Probabilities of the actions over the steps of this episode");
    this.actionsCard = card(OVER_TIME.probability, this.actions.element);
    this.videos = h("a", { class: "button", href: href("run", { run: this.run.id, part: "videos" }) }, icon("video"), "Videos", h("span", { class: "video-count faint" }));
    this.history = h("ol", { class: "episodes" }, h("li", { class: "faint" }, "No episode has ended yet."));
    const stage = h("section", { class: "card stage", "aria-label": "Game" },
      this.box,
      h("dl", { class: "counters" }, [...this.counters].map(([name, element]) => h("div", {}, h("dt", {}, name), element))),
      h("div", { class: "transport" }, this.play, this.stepper, h("span", { class: "restart" }, again, h("label", { class: "field" }, "on seed", this.seed)), h("label", { class: "field" }, "Speed", this.speed, this.speedText)));
    this.observationCard = card("Observation", h("div", { class: "body" }, this.observation.element));
    this.barsCard = card("Action", h("div", { class: "body" }, this.bars.element));
    this.root.append(h("div", { class: "page watch" },
      h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: href("runs") }, "Runs"), "/", h("a", { class: "ellipsis", href: href("run", { run: this.run.id }) }, this.run.name)),
      h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, title(this.run)), h("p", { class: "sub" }, "Evaluation episodes in a process of their own: training is not touched.")), h("div", { class: "actions" }, this.videos, h("label", { class: "field" }, "Checkpoint", this.checkpoint))),
      h("div", { class: "watch-grid" }, stage, h("div", { class: "thoughts" }, this.barsCard, this.actionsCard, card("Value of the state", this.value.element), this.observationCard, card("Episodes", h("div", { class: "body" }, this.history))))));
    this.drawCharts();
  }

  update(params) {
    this.params = params;
  }

  // The connection.

  connect() {
    const socket = new WebSocket(socketAddress("play", { run: this.run.id, checkpoint: this.params.get("checkpoint"), seed: this.params.get("seed") }));
    socket.binaryType = "blob";
    this.socket = socket;
    socket.addEventListener("message", (event) => (typeof event.data === "string" ? this.message(JSON.parse(event.data)) : this.frame(event.data)));
    socket.addEventListener("close", () => this.lost(socket));
  }

  /** Connect again after a problem. */
  start() {
    this.problem = "";
    setText(this.cover, "Starting the player");
    this.connect();
  }

  lost(socket) {
    if (this.isClosed || socket !== this.socket) return;
    this.cover.classList.remove("hidden");
    if (this.problem) return;
    setText(this.cover, "The connection to the player was lost. Reconnecting.");
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(this.wait * 2, 8000);
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  message(message) {
    if (message.type === "ready") this.ready(message);
    else if (message.type === "step") this.stepped(message);
    else if (message.type === "error") this.failed(message);
    else if (message.type === "newer") this.newer(message.checkpoint);
  }

  ready(message) {
    this.problem = "";
    this.wait = 500;
    this.hasPictures = message.has_pictures;
    this.box.classList.toggle("blind", !message.has_pictures);
    this.cover.classList.toggle("hidden", Boolean(message.has_pictures && this.frames));
    if (!message.has_pictures) this.cover.replaceChildren(icon("info"), h("span", {}, "No pictures: the observation's values are shown instead."));
    const names = Array.isArray(message.actions) ? message.actions : Array.from({ length: message.actions ?? 0 }, (_, index) => String(index));
    this.bars.names = names;
    this.observation.names = message.observation_names ?? [];
    if (this.hasSpeed) this.setSpeed();
    else this.showSpeed(message.speed ?? 30);
    if (this.isPaused) this.send({ command: "pause" });
    this.root.querySelector(".watch").dataset.ready = "true";
    setText(this.badge, message.checkpoint ?? "");
    this.badge.classList.toggle("hidden", !message.checkpoint);
  }

  failed({ error: text, fatal: isFatal = true }) {
    if (!isFatal && this.hasPictures) {
      toast(text, { isError: true });
      return;
    }
    if (isFatal) this.problem = text;
    this.cover.classList.remove("hidden");
    if (this.wasWithout) return; // said already
    this.cover.replaceChildren(icon("warn"), h("span", {}, text));
  }

  newer(name) {
    this.loadCheckpoints();
    if (this.checkpoint.value === "newest") setText(this.badge, name);
  }

  // What the player sends.

  stepped(message) {
    if (message.episode !== this.episode || message.step < this.lastStep) {
      this.episode = message.episode;
      this.value.clear();
      this.actions.clear();
    }
    this.lastStep = message.step;
    if (message.checkpoint) setText(this.badge, message.checkpoint);
    const texts = { Return: score(message.return), Step: whole(message.step), Episode: whole(message.episode), Seed: message.seed === undefined ? "–" : String(message.seed) };
    for (const [name, element] of this.counters) setText(element, texts[name]);
    this.bars.set(message);
    this.observation.set(message.observation);
    const value = message.value ?? (message.q ? Math.max(...message.q) : null);
    if (value !== null && value !== undefined) this.value.add(message.step, [value]);
    const action = actionValues(message);
    this.hasMany = !isCharted(action.values);
    if (action.values.length && !this.hasMany) this.actions.add(message.step, action.values);
    setText(this.actionsCard.querySelector("h2"), OVER_TIME[action.values.length ? action.kind : "probability"]);
    this.drawSoon();
    if (message.terminated || message.truncated) this.ended(message);
  }

  drawSoon() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      this.drawCharts();
    });
  }

  drawCharts() {
    this.value.draw(["Value"], "This policy estimates no values, or has not acted yet.");
    const names = this.actions.columns.map((_, index) => this.bars.nameOf(index));
    this.actions.draw(names, this.hasMany ? "There are too many actions to draw." : "Shown as soon as the agent acts.");
  }

  ended(message) {
    this.episodes.unshift(message);
    this.episodes.length = Math.min(this.episodes.length, 50);
    const shown = this.episodes.map((each) => h("li", {}, h("span", {}, `Episode ${whole(each.episode)}`), h("span", { class: "faint" }, `seed ${each.seed} · ${whole(each.step)} steps${each.truncated && !each.terminated ? " · time limit" : ""}`), h("b", {}, score(each.return))));
    this.history.replaceChildren(...shown);
  }

  async frame(blob) {
    const picture = await createImageBitmap(blob).catch(() => null);
    if (!picture || this.isClosed) return;
    if (this.canvas.width !== picture.width || this.canvas.height !== picture.height) {
      [this.canvas.width, this.canvas.height] = [picture.width, picture.height];
      this.canvas.classList.toggle("pixels", picture.width <= 260);
    }
    this.canvas.getContext("2d").drawImage(picture, 0, 0);
    picture.close();
    this.frames += 1;
    this.canvas.dataset.frames = String(this.frames);
    this.cover.classList.add("hidden");
  }

  // Controls.

  togglePause() {
    this.isPaused = !this.isPaused;
    this.send({ command: this.isPaused ? "pause" : "resume" });
    this.play.replaceChildren(icon(this.isPaused ? "play" : "pause"), h("span", {}, this.isPaused ? "Play" : "Pause"));
  }

  step() {
    if (!this.isPaused) this.togglePause();
    this.send({ command: "step" });
  }

  restart() {
    const text = this.seed.value.trim();
    const problem = seedProblem(text);
    this.seed.classList.toggle("wrong", Boolean(problem));
    setAttribute(this.seed, "aria-invalid", Boolean(problem) && "true");
    if (problem) {
      toast(problem, { isError: true });
      return;
    }
    adjust({ seed: text || null });
    if (this.problem) this.start(); // the player has ended with it
    else this.send({ command: "restart", ...(text ? { seed: Number(text) } : {}) });
  }

  showSpeed(value) {
    this.speed.value = String(SPEEDS.reduce((best, each, index) => (Math.abs(each - value) < Math.abs(SPEEDS[best] - value) ? index : best), 0));
    setText(this.speedText, `${Math.round(value)}/s`);
  }

  setSpeed() {
    const value = SPEEDS[Number(this.speed.value)];
    this.showSpeed(value);
    this.send({ command: "speed", value });
  }

  loadCheckpointsSoon() {
    // Not started anew by each event: they may come every second.
    this.soon ??= setTimeout(() => {
      this.soon = null;
      this.loadCheckpoints();
    }, 2000);
  }

  async loadCheckpoints() {
    const details = await get("run", { run: this.run.id }).catch(() => null);
    if (!details || this.isClosed) return;
    setText(this.videos.querySelector(".video-count"), String(details.videos.length));
    this.hasCheckpoints = details.checkpoints.length > 0;
    const wanted = this.params.get("checkpoint") ?? "newest";
    const options = [...details.checkpoints].reverse().map((each) => h("option", { value: each.name }, `${each.name.replace("checkpoint_", "Iteration ").replace(/ 0+(?=\d)/, " ")} · ${score(each.return)}${each.is_best ? " · best" : ""}`));
    this.checkpoint.replaceChildren(h("option", { value: "newest" }, "Newest"), ...options);
    this.checkpoint.value = wanted;
    if (!this.hasCheckpoints && !this.frames) this.showNoCheckpoint();
    else if (this.problem && this.wasWithout) {
      this.wasWithout = false;
      this.start();
    }
  }

  /** A running run can be asked for a checkpoint; it is played as soon as it is there. */
  showNoCheckpoint() {
    this.wasWithout = true;
    const isRunning = store.runs.get(this.run.id)?.state === "running";
    const ask = button("Write a checkpoint", { symbol: "save", onclick: () => post("control", { run: this.run.id, action: "checkpoint" }).then(({ done }) => toast(done), fail) });
    this.cover.replaceChildren(icon("info"), h("span", {}, isRunning ? "This run has no checkpoint to play yet." : "This run has no checkpoint to play."), isRunning ? ask : "");
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.retry);
    clearTimeout(this.soon);
    cancelAnimationFrame(this.pending);
    for (const remove of this.removers) remove();
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.socket.close();
    this.value.close();
    this.actions.close();
  }
}
