// The frame around the views: navigation, machine, connection, theme.

import { button, h, icon, setAttribute, setText } from "./dom.js";
import { bytes, percent } from "./format.js";
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

/** CPU, memory and GPUs as bars. Returns a function that updates them. */
export function machineMeters(holder) {
  const rows = new Map();
  return (machine) => {
    const values = machineValues(machine);
    if (values.map(([name]) => name).join() !== [...rows.keys()].join()) {
      rows.clear();
      holder.replaceChildren();
      for (const [name] of values) {
        const bar = progressBar(name);
        const text = h("b");
        holder.append(h("div", { class: "meter" }, h("span", { class: "ellipsis" }, name), text, bar.element));
        rows.set(name, { bar, text });
      }
    }
    for (const [name, share, text] of values) {
      const row = rows.get(name);
      row.bar.set(share, name !== "CPU" && share > 0.95 ? "hot" : "");
      setText(row.text, text);
    }
  };
}

function machineValues(machine) {
  const values = [];
  const add = (name, share, text) => typeof share === "number" && Number.isFinite(share) && values.push([name, share, text]);
  add("CPU", machine?.cpu_percent / 100, percent(machine?.cpu_percent / 100));
  add("Memory", machine?.memory_used_bytes / machine?.memory_total_bytes, `${bytes(machine?.memory_used_bytes)} of ${bytes(machine?.memory_total_bytes)}`);
  for (const gpu of machine?.gpus ?? []) {
    const name = machine.gpus.length > 1 ? `GPU ${gpu.index}` : "GPU";
    if (gpu.percent !== null) add(name, gpu.percent / 100, percent(gpu.percent / 100));
    if (gpu.memory_total_bytes) add(`${name} RAM`, gpu.memory_used_bytes / gpu.memory_total_bytes, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`);
  }
  return values;
}
