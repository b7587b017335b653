// Start a run: from a recipe, or from the text of an experiment file.

import { get, post } from "../api.js";
import { arrange, button, card, empty, h, icon, setText } from "../dom.js";
import { ago } from "../format.js";
import { fail, toast } from "../notices.js";
import { adjust, href } from "../router.js";
import { on, store } from "../store.js";
import { statePill } from "../parts.js";

const EXAMPLE = `my-run:
  env: CartPole-v1
  run: PPO
  stop:
    timesteps_total: 50000
  config:
    lr: 0.001
`;

export function showStart(root, params) {
  return new StartView(root, params);
}

class StartView {
  constructor(root, params) {
    Object.assign(this, { params, recipes: [], processes: new Map(), original: EXAMPLE });
    this.search = h("input", { class: "input", type: "search", placeholder: "Search recipes", "aria-label": "Search recipes", on: { input: () => this.drawRecipes() } });
    this.list = h("div", { class: "recipes", role: "group", "aria-label": "Recipes" }, h("p", { class: "faint" }, "Loading"));
    this.text = h("textarea", { class: "textarea editor", id: "editor", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": "Experiment as YAML", "aria-describedby": "editor-error" });
    this.text.value = EXAMPLE;
    this.text.addEventListener("input", () => this.edited());
    this.text.addEventListener("keydown", (event) => this.indent(event));
    this.error = h("div", { id: "editor-error", role: "alert" });
    this.name = h("input", { class: "input", placeholder: "Name (optional)", "aria-label": "Name of the experiment", autocomplete: "off" });
    this.begin = button("Start", { symbol: "start", kind: "primary", onclick: () => this.start(), "data-command": "start" });
    this.hint = h("span", { class: "faint" });
    this.started = h("div", { class: "starts" });
    root.append(h("div", { class: "page start" },
      h("div", { class: "head" }, h("div", { class: "title" }, h("h1", {}, "Start a run"), h("p", { class: "sub" }, "Choose a recipe, change it if you like, or paste an experiment file. The run goes on if this page or the dashboard is closed."))),
      h("div", { class: "start-grid" },
        card("Recipes", h("div", { class: "body" }, this.search, this.list)),
        card("Experiment", h("div", { class: "body editor-body" }, this.text, this.error, h("div", { class: "start-actions" }, this.name, this.begin, this.hint)))),
      card("Started from this page", h("div", { class: "body" }, this.started))));
    this.keys = { "/": () => this.search.focus() };
    this.remove = on("runs", () => this.loadStarts());
    this.drawHint();
    this.loadRecipes();
    this.loadStarts();
    this.timer = setInterval(() => document.hidden || this.loadStarts(), 2000);
  }

  update(params) {
    this.params = params;
    this.pickFromAddress();
  }

  async loadRecipes() {
    try {
      this.recipes = (await get("recipes")).recipes;
      this.drawRecipes();
      this.pickFromAddress();
    } catch (error) {
      fail(error);
    }
  }

  drawRecipes() {
    const wanted = this.search.value.trim().toLowerCase();
    const shown = this.recipes.filter((recipe) => `${recipe.name} ${recipe.description}`.toLowerCase().includes(wanted));
    const own = h("button", { type: "button", class: "recipe", data: { recipe: "" }, on: { click: () => adjust({ recipe: null }) } }, h("b", {}, "Your own"), h("span", {}, "Write or paste an experiment file."));
    this.list.replaceChildren(wanted ? "" : own, ...shown.map((recipe) => h("button", { type: "button", class: "recipe", data: { recipe: recipe.name }, on: { click: () => adjust({ recipe: recipe.name }) } }, h("b", {}, recipe.name), h("span", {}, recipe.description || "–"))));
    if (!shown.length && wanted) this.list.append(h("p", { class: "faint" }, "No recipe has these words."));
    this.markRecipe();
  }

  markRecipe() {
    const name = this.params.get("recipe") ?? "";
    for (const each of this.list.querySelectorAll(".recipe")) each.setAttribute("aria-pressed", String(each.dataset.recipe === name));
  }

  pickFromAddress() {
    const name = this.params.get("recipe") ?? "";
    if (name === this.picked) return;
    const isFirst = this.picked === undefined;
    this.picked = name;
    const recipe = this.recipes.find((each) => each.name === name);
    this.original = recipe?.text ?? EXAMPLE;
    const isTyped = isFirst && this.text.value !== EXAMPLE; // before the recipes were there
    if (!isTyped) this.text.value = this.original;
    this.text.scrollTop = 0;
    this.error.replaceChildren();
    this.markRecipe();
    this.drawHint();
  }

  edited() {
    this.error.replaceChildren();
    this.drawHint();
  }

  /** Tab would leave the editor: two spaces are inserted while Shift+Tab and Escape still leave it. */
  indent(event) {
    if (event.key !== "Tab" || event.shiftKey) return;
    event.preventDefault();
    this.text.setRangeText("  ", this.text.selectionStart, this.text.selectionEnd, "end");
    this.edited();
  }

  drawHint() {
    const isRecipe = this.picked && this.text.value === this.original;
    setText(this.hint, !store.canControl ? "Starting is off: the dashboard is read-only." : isRecipe ? "As it ships." : this.picked ? "Changed: starts as an experiment of your own." : "");
    this.begin.disabled = !store.canControl;
  }

  async start() {
    const isRecipe = this.picked && this.text.value === this.original;
    const name = this.name.value.trim();
    this.begin.disabled = true;
    try {
      const body = isRecipe ? { recipe: this.picked } : { text: this.text.value };
      const { message } = await post("start", { ...body, ...(name ? { name } : {}) });
      this.error.replaceChildren();
      toast(message);
      await this.loadStarts();
    } catch (error) {
      this.error.replaceChildren(h("div", { class: "callout bad" }, icon("warn"), h("div", {}, error.message)));
    }
    this.begin.disabled = !store.canControl;
  }

  async loadStarts() {
    const answer = await get("starts").catch(() => null);
    if (!answer) return;
    const elements = answer.starts.map((each) => this.process(each));
    arrange(this.started, elements.length ? elements : [this.blank ??= empty("start", "Nothing started from this page yet", h("p", {}, "What a run prints, and the link to it, appear here."))]);
  }

  process(each) {
    const key = each.process;
    let parts = this.processes.get(key);
    if (!parts) {
      parts = { name: h("b"), state: h("span"), link: h("a", { class: "button small" }, icon("charts"), "Open the run"), time: h("span", { class: "faint" }), output: h("pre", { class: "output", tabindex: 0, role: "group", "aria-label": "Output" }) };
      parts.element = h("article", { class: "process", data: { process: key } }, h("header", {}, parts.name, parts.state, parts.time, parts.link), parts.output);
      this.processes.set(key, parts);
    }
    const state = each.state === "ended" ? "finished" : each.state;
    setText(parts.name, each.what);
    if (parts.state.firstChild?.dataset?.state !== state) parts.state.replaceChildren(statePill(state));
    setText(parts.time, each.started ? ago(each.started) : "");
    parts.link.classList.toggle("hidden", !each.run);
    if (each.run) parts.link.href = href("run", { run: each.run });
    const isAtEnd = parts.output.scrollTop + parts.output.clientHeight >= parts.output.scrollHeight - 8;
    setText(parts.output, each.output.join("\n") || "Waiting for the first line");
    if (isAtEnd) parts.output.scrollTop = parts.output.scrollHeight;
    return parts.element;
  }

  close() {
    clearInterval(this.timer);
    this.remove();
  }
}
