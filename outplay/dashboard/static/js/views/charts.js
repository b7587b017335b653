// Charts over the whole width, for the runs that the address names.

import { empty, h } from "../dom.js";
import { ChartPanel, chartState } from "../panel.js";
import { adjust, href } from "../router.js";
import { chosenRuns, newest } from "../selection.js";
import { on, store } from "../store.js";

export function showCharts(root, params) {
  const edit = h("a", { class: "button" }, "Choose runs");
  const count = h("span", { class: "sub" });
  const holder = h("div", { class: "panel" });
  root.append(h("div", { class: "page wide" }, h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Charts"), count), h("div", { class: "actions" }, edit)), holder));
  const choose = h("a", { class: "button primary" }, "Choose runs");
  const blank = empty("charts", "No runs to draw", h("p", {}, "Choose runs in the list, or ", h("a", { href: href("start") }, "start one"), "."), choose);
  const panel = new ChartPanel(holder, adjust, blank);
  let last = params;

  const update = (next) => {
    last = next;
    const ids = chosenRuns(next) ?? newest();
    count.textContent = ids.length === 1 ? "1 run" : `${ids.length} runs`;
    edit.href = choose.href = href("runs", next);
    edit.classList.toggle("hidden", !ids.length);
    panel.update(chartState(next), ids);
  };
  update(params);
  const remove = on("runs", (ids) => {
    if (!chosenRuns(last) && [...ids].some((id) => !panel.runs.some((run) => run.id === id) || !store.runs.has(id))) update(last);
  });
  return {
    update,
    keys: { b: () => panel.toggleBands(), Escape: () => adjust({ from: null, to: null }) },
    close: () => {
      remove();
      panel.close();
    },
  };
}
