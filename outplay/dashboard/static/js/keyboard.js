// Shortcuts. A view offers its own through `keys`: { key: function }.

import { help } from "./notices.js";
import { go } from "./router.js";
import { toggleTheme } from "./theme.js";

const ROWS = [
  [["j", "k"], "Next or previous row"],
  [["Enter"], "Open it"],
  [["x"], "Select it for the charts"],
  [["/"], "Search"],
  [["Esc"], "Leave the search, else reset the zoom, else clear the selection"],
  [["b"], "Seeds as bands"],
  [["←", "→", "+", "-", "0"], "Pan, zoom and reset a chart that has the focus"],
  [["Space", ".", "r", "Esc"], "While watching: pause, one step, restart, back to the run"],
  [["g", "r"], "Go to the runs; g c charts, g d compare, g s studies, g n start"],
  [["t"], "Light or dark"],
  [["?"], "This help"],
];
const PLACES = { r: "runs", c: "charts", d: "compare", s: "studies", n: "start" };

export const showHelp = () => help(ROWS);

/** Listen for keys; `viewKeys()` returns those of the current view. */
export function listen(viewKeys) {
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isTyping = event.target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select");
    if (isTyping) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (isGoing && PLACES[event.key]) {
      isGoing = false;
      event.preventDefault();
      go(PLACES[event.key]);
      return;
    }
    isGoing = event.key === "g";
    if (event.key === " " && event.target.closest("button, a, summary, input")) return;
    const action = viewKeys()[event.key] ?? { "?": showHelp, t: toggleTheme }[event.key];
    if (action) {
      event.preventDefault();
      action(event);
    }
  });
}
