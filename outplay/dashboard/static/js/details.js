// The parts of a run's page: stages, workers, checkpoints, videos, settings.

import { videoAddress } from "./api.js";
import { button, command, h, icon } from "./dom.js";
import { bytes, duration, number, percent, score, value, whole } from "./format.js";
import { statePill, table } from "./parts.js";
import { href } from "./router.js";
import { since } from "./times.js";

/** The share of time of each stage as one bar, and each as a line below; stages within others are indented. */
export function stageBar(stages) {
  if (!stages?.length) return h("p", { class: "faint" }, "Shown after the first iteration.");
  const outer = stages.filter((stage) => !stage.name.includes("/")).sort((a, b) => b.share - a.share);
  const rest = 1 - outer.reduce((sum, stage) => sum + stage.share, 0);
  const slots = new Map(outer.map((stage, index) => [stage.name, index]));
  const colorOf = (name) => `var(--c${slots.get(name.split("/")[0]) % 8})`;
  const bar = h("div", { class: "stages", role: "img", "aria-label": outer.map((stage) => `${stage.name} ${percent(stage.share)}`).join(", ") },
    outer.map((stage) => h("i", { style: { width: percent(stage.share, 2), background: colorOf(stage.name) }, title: `${stage.name}: ${percent(stage.share, 1)}` })));
  const rows = outer.flatMap((stage) => [stage, ...stages.filter((each) => each.name.startsWith(`${stage.name}/`)).sort((a, b) => b.share - a.share)]);
  const lines = rows.map((stage) => {
    const isInner = stage.name.includes("/");
    return h("li", { class: isInner ? "inner" : "" }, h("i", { style: { background: colorOf(stage.name) } }), h("span", { class: "ellipsis" }, isInner ? stage.name.split("/").slice(1).join("/") : stage.name), h("b", {}, percent(stage.share, 1)), h("span", { class: "faint num" }, duration(stage.seconds)));
  });
  lines.push(h("li", {}, h("i", { class: "other" }), h("span", {}, "other"), h("b", {}, percent(Math.max(0, rest), 1)), h("span")));
  return h("div", {}, bar, h("ul", { class: "stage-list" }, lines), h("p", { class: "faint" }, "Over the last iterations."));
}

/** The newest evaluation, or how to get one. */
export function evaluationResult(run, evaluation, isRunning) {
  if (!evaluation) {
    return h("div", { class: "video-none" }, h("p", { class: "faint" }, isRunning ? "No recent evaluation. The button Evaluate does it after the current iteration." : "No recent evaluation. To evaluate the newest checkpoint:"), isRunning ? null : command(`outplay evaluate ${run}`));
  }
  const { episodes, iteration, low, high } = evaluation;
  const range = episodes > 1 ? `${score(low)} to ${score(high)} · ` : "";
  return h("div", {}, h("p", { class: "level" }, h("b", {}, score(evaluation.return)), ` mean return of ${whole(episodes)} ${episodes === 1 ? "episode" : "episodes"}`), h("p", { class: "faint" }, `${range}after iteration ${whole(iteration)}`));
}

export function workerTable(workers, status, isRunning) {
  if (!workers?.length) {
    const count = status?.workers?.number;
    const text = count === 0 ? "This run steps its environments in the training process: it has no workers." : isRunning ? "The run has not reported its workers yet." : "Workers are shown while the run is running.";
    return h("p", { class: "faint" }, text);
  }
  const columns = [
    { key: "index", title: "Worker", value: (row) => row.index, cell: (row) => `#${row.index}` },
    { key: "state", title: "State", value: (row) => row.state, cell: (row) => (isRunning ? h("span", { class: `health ${healthOf(row)}` }, row.state ?? "–") : "ended") },
    { key: "heartbeat", title: "Heartbeat", value: (row) => row.heartbeat, cell: (row) => since(row.heartbeat) },
    { key: "speed", title: "Steps/s", isNumber: true, hint: "Steps per second of the worker's own time: the time it waits for others is not counted", value: (row) => row.steps_per_s, cell: (row) => whole(row.steps_per_s) },
    { key: "lag", title: "Policy lag", isNumber: true, hint: "Versions of the weights that the worker is behind", value: (row) => row.policy_lag, cell: (row) => number(row.policy_lag) },
    { key: "restarts", title: "Restarts", isNumber: true, value: (row) => row.restarts, cell: (row) => whole(row.restarts) },
    { key: "error", title: "Last error", kind: "wrap", value: (row) => row.error, cell: (row) => row.error ?? "–" },
  ];
  return table(columns, workers, { label: "Workers" });
}

const healthOf = (worker) => (/dead|lost|fail|kill/.test(worker.state ?? "") ? "bad" : /start|restart|slow|silent/.test(worker.state ?? "") ? "warn" : "good");

export function checkpointTable(run, checkpoints) {
  if (!checkpoints?.length) return h("p", { class: "faint" }, "No checkpoints yet. One is written every few minutes and at the end; the button Checkpoint writes one now.");
  const columns = [
    { key: "name", title: "Checkpoint", value: (row) => row.iteration, cell: (row) => h("span", { class: "named" }, h("span", { class: "mono" }, row.name), row.is_best ? h("span", { class: "badge" }, "best") : null) },
    { key: "return", title: "Return", isNumber: true, value: (row) => row.return, cell: (row) => score(row.return) },
    { key: "steps", title: "Steps", isNumber: true, value: (row) => row.timesteps, cell: (row) => whole(row.timesteps) },
    { key: "size", title: "Size", isNumber: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
    { key: "written", title: "Written", isNumber: true, value: (row) => row.written, cell: (row) => since(row.written) },
    { key: "watch", title: h("span", { class: "unseen" }, "Watch"), isNumber: true, value: () => 0, cell: (row) => h("a", { class: "button small quiet", href: href("watch", { run, checkpoint: row.name }), "aria-label": `Watch ${row.name}` }, icon("watch"), "Watch") },
  ];
  return table(columns, [...checkpoints].reverse(), { label: "Checkpoints" });
}

export function videoList(run, videos, isRunning) {
  if (!videos?.length) {
    return h("div", { class: "video-none" }, h("p", { class: "faint" }, isRunning ? "No videos yet. The button Record video records an episode." : "No videos. To record one:"), isRunning ? null : command(`outplay evaluate ${run} --video game.mp4`));
  }
  return h("div", { class: "videos" }, videos.map((video) =>
    h("figure", {}, h("video", { controls: true, preload: "metadata", playsinline: true, src: videoAddress(run, video.name), "aria-label": `Video ${video.name}` }),
      h("figcaption", {}, h("span", { class: "ellipsis" }, video.name), h("span", { class: "faint" }, `${bytes(video.bytes)} · `, since(video.written))))));
}

/** All settings with a search; by default only those that differ from the defaults. */
export function settingsCard(config, run) {
  const { config: own = {}, ...experiment } = config ?? {};
  const all = [...flat(own), ...flat(experiment)];
  const changed = new Set(Object.keys(run.settings ?? {}));
  const isChanged = (name) => changed.has(name);
  const search = h("input", { class: "input", type: "search", placeholder: "Search settings", "aria-label": "Search settings" });
  const only = h("input", { type: "checkbox", role: "switch", checked: true });
  const list = h("dl", { class: "settings" });
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const shown = all.filter(([name]) => (wanted ? name.toLowerCase().includes(wanted) : !only.checked || isChanged(name)));
    list.replaceChildren(...shown.map(([name, each]) => h("div", { class: isChanged(name) ? "changed" : "" }, h("dt", {}, breakable(name)), h("dd", {}, value(each)))));
    if (!shown.length) list.append(h("div", {}, h("dt", {}, wanted ? "No setting has this name." : "All settings have their defaults."), h("dd")));
  };
  search.addEventListener("input", draw);
  only.addEventListener("change", draw);
  draw();
  const copy = button("Copy as JSON", { symbol: "copy", kind: "quiet small", iconOnly: true, onclick: () => navigator.clipboard?.writeText(JSON.stringify(config, null, 2)) });
  return h("section", { class: "card", "aria-label": "Settings" }, h("header", {}, h("h2", {}, "Settings"), copy), h("div", { class: "body" }, h("div", { class: "settings-tools" }, search, h("label", { class: "switch" }, only, "Changed only")), list));
}

/** A long name may be broken after its dots and underscores. */
const breakable = (name) => name.split(/(?<=[._])/).flatMap((part, index) => (index ? [h("wbr"), part] : [part]));

/** Nested settings as [name with dots, value]. */
function flat(config, prefix = "") {
  return Object.entries(config ?? {}).flatMap(([key, each]) =>
    each !== null && typeof each === "object" && !Array.isArray(each) && Object.keys(each).length ? flat(each, `${prefix}${key}.`) : [[prefix + key, each]],
  );
}

export const trialState = (state) => statePill({ done: "finished", "cut short": "stopped" }[state] ?? state, "bare");
