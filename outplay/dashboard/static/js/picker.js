// A menu of metrics with a search, to add charts and remove them.

import { button, h, icon } from "./dom.js";
import { metricTitle } from "./format.js";

export function metricPicker(onpick) {
  let known = [];
  let shown = [];
  const search = h("input", { class: "input", type: "search", placeholder: "Search metrics", "aria-label": "Search metrics" });
  const list = h("div", { class: "options", role: "group", "aria-label": "Metrics" });
  const menu = h("div", { class: "menu hidden", role: "dialog", "aria-label": "Metrics" }, search, list);
  const opener = button("Metrics", { symbol: "plus", kind: "small", "aria-expanded": "false", "aria-haspopup": "dialog" });
  const element = h("div", { class: "picker" }, opener, menu);

  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = known.filter((name) => `${name} ${metricTitle(name)}`.toLowerCase().includes(wanted));
    list.replaceChildren(
      ...found.slice(0, 300).map((name) => {
        const box = h("input", { type: "checkbox", checked: shown.includes(name), on: { change: () => onpick(name) } });
        return h("label", { class: "option" }, box, h("span", {}, metricTitle(name)), h("code", { class: "ellipsis" }, name));
      }),
      found.length ? "" : h("p", { class: "faint" }, known.length ? "No metric has this name." : "The runs have no metrics yet."),
    );
  };
  const place = () => {
    const room = (menu.offsetParent?.clientWidth ?? 0) - menu.offsetWidth;
    menu.style.left = `${Math.max(0, Math.min(opener.offsetLeft, room))}px`;
  };
  const toggle = (isOpen) => {
    menu.classList.toggle("hidden", !isOpen);
    opener.setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return;
    search.value = "";
    draw();
    place();
    search.focus({ preventScroll: true });
    menu.scrollIntoView({ block: "nearest" });
  };
  const outside = (event) => {
    if (!element.contains(event.target)) toggle(false);
  };
  opener.addEventListener("click", () => toggle(menu.classList.contains("hidden")));
  search.addEventListener("input", draw);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    toggle(false);
    opener.focus();
  });
  document.addEventListener("pointerdown", outside);
  addEventListener("resize", place);
  opener.append(icon("down"));

  return {
    element,
    set(names, chosen) {
      const isSame = names.join() === known.join() && chosen.join() === shown.join();
      [known, shown] = [names, chosen];
      if (!isSame && !menu.classList.contains("hidden")) draw();
    },
    close: () => {
      document.removeEventListener("pointerdown", outside);
      removeEventListener("resize", place);
    },
  };
}
