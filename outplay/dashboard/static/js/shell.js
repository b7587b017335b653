// The frame around the views: navigation, machine, connection, theme.

import { button, h, icon, setAttribute, setText } from "./dom.js";
import { bytesOf, percent } from "./format.js";
import { href } from "./router.js";
import { on, store } from "./store.js";
import { isDark, onTheme, toggleTheme } from "./theme.js";
import { progressBar } from "./parts.js";

const PAGES = [
  ["runs", "Runs", "runs", ["runs", "run", "watch"]],
  ["charts", "Charts", "charts", ["charts"]],
  ["compare", "Compare", "compare", ["compare"]],
  ["studies", "Studies", "studies", ["studies", "study"]],
  ["start", "Start a run", "start", ["start"]],
];

/** Build the frame. Returns the element for views and a function that marks the current page. */
export function buildShell(app, { onhelp }) {
  const counts = { runs: h("span", { class: "count" }), studies: h("span", { class: "count" }) };
  const links = PAGES.map(([name, title, symbol]) =>
    h("a", { href: href(name), data: { page: name } }, icon(symbol), h("span", {}, title), counts[name]),
  );
  const state = h("span", { class: "link-state", role: "status", data: { state: "starting" } }, "Connecting");
  const where = h("div", { class: "where ellipsis" });
  const version = h("small");
  const meters = h("div", { class: "meters", role: "group", "aria-label": "Machine" });
  const side = h(
    "aside",
    { class: "side", "aria-label": "Navigation" },
    h("a", { class: "brand", href: href("runs") }, h("img", { src: "static/icon.svg", alt: "" }), "Outplay", version),
    h("nav", { class: "nav", "aria-label": "Views" }, links),
    h("div", { class: "fill" }),
    meters,
    where,
    h("div", { class: "foot" }, state, h("span", {}, button("Keyboard shortcuts", { symbol: "keyboard", kind: "quiet small", iconOnly: true, onclick: onhelp }), themeButton())),
  );
  const top = h("header", { class: "top" }, h("a", { class: "brand", href: href("runs") }, h("img", { src: "static/icon.svg", alt: "" }), "Outplay"), h("span", { class: "link-state", "aria-hidden": "true", data: { state: "starting" } }), themeButton());
  const banner = h("div", { class: "banner hidden", role: "alert" });
  const view = h("main", { class: "view", id: "main", tabindex: -1 });
  app.replaceChildren(top, side, h("div", { class: "main" }, banner, view));

  const updateConnection = () => {
    const text = { starting: "Connecting", live: "Live", lost: "Reconnecting", denied: "No access" }[store.connection];
    for (const each of [state, top.querySelector(".link-state")]) {
      each.dataset.state = store.connection === "denied" ? "lost" : store.connection;
      setText(each, text);
    }
    banner.classList.toggle("hidden", store.connection !== "lost");
    banner.replaceChildren(icon("warn"), h("span", {}, `${store.problem} What you see may be old. Reconnecting.`));
  };
  const updateCounts = () => {
    setText(counts.runs, store.isLoaded ? String([...store.runs.values()].filter((run) => !run.study).length) : "");
    setText(counts.studies, store.studies.size ? String(store.studies.size) : "");
    setText(version, store.version);
    setText(where, store.results);
    setAttribute(where, "title", store.results);
  };
  on("connection", updateConnection);
  on("runs", updateCounts);
  on("studies", updateCounts);
  const updateMachine = machineMeters(meters);
  on("machine", () => updateMachine(store.machine));
  updateConnection();

  return {
    view,
    mark(name) {
      for (const [index, [, , , names]] of PAGES.entries()) {
        setAttribute(links[index], "aria-current", names.includes(name) ? "page" : null);
      }
    },
  };
}

function themeButton() {
  const element = button("Light or dark", { symbol: isDark() ? "sun" : "moon", kind: "quiet small", iconOnly: true, onclick: toggleTheme, "data-theme-switch": "" });
  onTheme(() => element.replaceChildren(icon(isDark() ? "sun" : "moon")));
  return element;
}

const FULL = 0.95; // share of memory that warns; a busy processor is as it should be

/** CPU, memory and GPUs as bars. Returns a function that updates them. */
export function machineMeters(holder) {
  const rows = new Map();
  return (machine) => {
    const values = machineValues(machine);
    if (values.map(({ name }) => name).join() !== [...rows.keys()].join()) {
      rows.clear();
      holder.replaceChildren();
      for (const { name } of values) {
        const bar = progressBar(name);
        const text = h("b");
        const element = h("div", { class: "meter" }, h("span", { class: "ellipsis" }, name), text, bar.element);
        holder.append(element);
        rows.set(name, { bar, text, element });
      }
    }
    for (const { name, share, text, title, isMemory } of values) {
      const row = rows.get(name);
      row.bar.set(share, isMemory && share > FULL ? "hot" : "");
      setText(row.text, text);
      setAttribute(row.element, "title", title);
    }
  };
}

/** What is known: [{ name, share, text, title, isMemory }]. */
function machineValues(machine) {
  const values = [];
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const busy = (name, used, title) => isNumber(used) && values.push({ name, share: used / 100, text: percent(used / 100), title });
  const memory = (name, used, all, title) => isNumber(used) && all > 0 && values.push({ name, share: used / all, text: bytesOf(used, all), title, isMemory: true });
  busy("CPU", machine?.cpu_percent);
  memory("Memory", machine?.memory_used_bytes, machine?.memory_total_bytes);
  for (const [index, gpu] of (machine?.gpus ?? []).entries()) {
    const number = machine.gpus.length > 1 ? ` ${gpu.index ?? index}` : "";
    busy(`GPU${number}`, gpu.percent, gpu.name);
    memory(`VRAM${number}`, gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.name);
  }
  return values;
}
