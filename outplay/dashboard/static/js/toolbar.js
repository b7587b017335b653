// The controls above the charts.

import { button, h, segments, setText } from "./dom.js";
import { toast } from "./notices.js";
import { changed } from "./router.js";

export const AXES = [["timesteps_total", "Steps"], ["time_total_s", "Time"], ["episodes_total", "Episodes"], ["training_iteration", "Iterations"]];

/** Build the controls. `change` writes to the address; `charts()` are those to zoom; `shown()` is what a link must name. */
export function toolbar(change, charts, shown) {
  const axis = segments("X axis", AXES, (value) => change({ x: value === "timesteps_total" ? null : value, from: null, to: null }));
  const scale = segments("Y axis", [["linear", "Linear"], ["log", "Log"]], (value) => change({ log: value === "log" ? "1" : null }));
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, id: "smoothing", "aria-label": "Smoothing" });
  const amount = h("output", { class: "mono", for: "smoothing" });
  slider.addEventListener("input", () => change({ smooth: Number(slider.value) ? slider.value : null }));
  const bands = h("input", { type: "checkbox", role: "switch", on: { change: () => change({ bands: bands.checked ? "1" : null }) } });
  const each = (action) => () => charts()[0] && action(charts()[0]);
  const reset = button("Reset the zoom", { symbol: "reset", kind: "quiet small", iconOnly: true, onclick: () => change({ from: null, to: null }) });
  const share = button("Copy a link to this view", { symbol: "link", kind: "quiet small", iconOnly: true, onclick: () => copyLink(shown()) });
  const element = h(
    "div",
    { class: "tools", role: "toolbar", "aria-label": "Charts" },
    axis.element,
    scale.element,
    h("label", { class: "field" }, "Smoothing", slider, amount),
    h("label", { class: "switch", title: "Inter-quartile mean of runs that differ in the seed only, with a 95% bootstrap band" }, bands, "Seeds as bands"),
    h("span", { class: "zooms", role: "group", "aria-label": "Zoom" },
      button("Pan left", { symbol: "left", kind: "quiet small", iconOnly: true, onclick: each((chart) => chart.pan(-0.25)) }),
      button("Zoom out", { symbol: "minus", kind: "quiet small", iconOnly: true, onclick: each((chart) => chart.scale(1.5)) }),
      button("Zoom in", { symbol: "plus", kind: "quiet small", iconOnly: true, onclick: each((chart) => chart.scale(0.6)) }),
      button("Pan right", { symbol: "right", kind: "quiet small", iconOnly: true, onclick: each((chart) => chart.pan(0.25)) }),
      reset,
      share),
  );
  return {
    element,
    scale: scale.element,
    update(state) {
      axis.set(state.x);
      scale.set(state.isLog ? "log" : "linear");
      if (document.activeElement !== slider) slider.value = String(state.smoothing);
      setText(amount, state.smoothing.toFixed(2));
      bands.checked = state.isBands;
      reset.disabled = !state.window;
    },
  };
}

/** Copy the address, with what is shown by default: the newest runs are others tomorrow. */
async function copyLink(shown) {
  try {
    await navigator.clipboard.writeText(new URL(changed(shown), location.href).href);
    toast("The link to this view is copied.");
  } catch {
    toast("The browser does not allow copying here. Copy the address from the address bar.", { isError: true });
  }
}
