// The page's entry: the frame, the views by their addresses, the connection to the server.

import { h, empty, icon } from "./dom.js";
import { listen, showHelp } from "./keyboard.js";
import { onRoute } from "./router.js";
import { buildShell } from "./shell.js";
import { connect, on, store } from "./store.js";
import { showCharts } from "./views/charts.js";
import { showCompare } from "./views/compare.js";
import { showRun } from "./views/run.js";
import { showRuns } from "./views/runs.js";
import { showStart } from "./views/start.js";
import { showStudies, showStudy } from "./views/study.js";
import { showWatch } from "./views/watch.js";

const VIEWS = {
  runs: [showRuns, "Runs"],
  charts: [showCharts, "Charts"],
  run: [showRun, "Run"],
  watch: [showWatch, "Watch"],
  compare: [showCompare, "Compare"],
  studies: [showStudies, "Studies"],
  study: [showStudy, "Study"],
  start: [showStart, "Start a run"],
};

const shell = buildShell(document.getElementById("app"), { onhelp: showHelp });
let view = null; // { update(params), close(), keys }, or { isMissing: true } if there is no such run or study
let shown = "";
let route = null;

/** Show the view of the address. The same view is updated, so that a changed parameter moves nothing. */
function render() {
  if (!route) return;
  if (store.connection === "denied") return showDenied();
  if (!store.isLoaded) return showLoading();
  const [show, title] = VIEWS[route.name] ?? VIEWS.runs;
  const name = VIEWS[route.name] ? route.name : "runs";
  const key = name === "run" || name === "watch" || name === "study" ? `${name} ${route.params.get("run") ?? route.params.get("study")}` : name;
  if (view && shown === key) {
    view.update?.(route.params);
    return;
  }
  view?.close?.();
  const isFirst = shown === "";
  shown = key;
  const subject = route.params.get(name === "study" ? "study" : "run");
  document.title = `${key === name || !subject ? title : `${title} ${subject.split("/").pop()}`} – Outplay`;
  shell.mark(name);
  shell.view.replaceChildren();
  shell.view.scrollTop = 0;
  view = show(shell.view, route.params);
  if (!isFirst) shell.view.focus({ preventScroll: true }); // else screen readers stay at the old place
}

function showLoading() {
  shown = "";
  const text = store.connection === "lost" ? store.problem : "Reading the runs";
  shell.view.replaceChildren(empty(store.connection === "lost" ? "warn" : "runs", text, store.connection === "lost" ? h("p", {}, "Trying again until it answers.") : null));
}

/** The token is missing or wrong: say how to get in. */
function showDenied() {
  view?.close?.();
  view = null;
  shown = "";
  shell.mark("");
  const input = h("input", { class: "input", id: "token", name: "token", autocomplete: "off", spellcheck: "false", placeholder: "Token, or the whole link" });
  const enter = (event) => {
    event.preventDefault();
    const token = /[?&]token=([^&#\s]+)/.exec(input.value)?.[1] ?? encodeURIComponent(input.value.trim());
    if (token) location.href = `./?token=${token}${location.hash}`;
  };
  shell.view.replaceChildren(
    h("div", { class: "empty denied" },
      icon("warn"),
      h("h2", {}, "This dashboard needs its token"),
      h("p", {}, "Open the link that ", h("code", {}, "outplay dashboard"), " printed in the terminal. It ends with ", h("code", {}, "?token=…"), ". Or paste it here:"),
      h("form", { class: "token-form", on: { submit: enter } }, h("label", { class: "unseen", for: "token" }, "Token"), input, h("button", { class: "button primary" }, "Open")),
      h("p", { class: "faint" }, store.problem)),
  );
}

on("connection", () => {
  if (store.connection === "denied" || !view) render();
});
/** What was missing may be there now: a run that was just started is known to its own link first. */
function renderMissing() {
  if (view && !view.isMissing) return;
  shown = "";
  render();
}

on("runs", renderMissing);
on("studies", renderMissing);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  shell.view.focus();
});
listen(() => view?.keys ?? {});
onRoute((next) => {
  route = next;
  render();
});
connect();
