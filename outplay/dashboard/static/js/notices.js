// Toasts and dialogs.

import { button, h, icon } from "./dom.js";

const region = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
document.body.append(region);

/** A short message at the corner. Errors stay longer. */
export function toast(text, { isError = false, link = null } = {}) {
  const close = button("Dismiss", { symbol: "cross", kind: "quiet small", iconOnly: true, onclick: () => element.remove() });
  const body = h("div", {}, text, link ? [" ", h("a", { href: link.href }, link.text)] : null);
  const element = h("div", { class: `toast ${isError ? "bad" : ""}` }, icon(isError ? "warn" : "check"), body, close);
  region.append(element);
  while (region.children.length > 4) region.firstChild.remove();
  setTimeout(() => element.remove(), isError ? 12_000 : 6_000);
}

export const fail = (error) => toast(error.message, { isError: true });

/** Ask before something that cannot be undone. Resolves to whether it was confirmed. */
export function confirm(title, text, action) {
  return new Promise((resolve) => {
    const yes = h("button", { class: "button danger solid", value: "yes" }, action);
    const no = h("button", { class: "button", value: "no", autofocus: true }, "Cancel");
    show(resolve, title, h("p", {}, text), h("div", { class: "actions" }, no, yes));
  });
}

export function help(rows) {
  const list = h("div", { class: "keys" }, rows.flatMap(([keys, text]) => [
    h("div", {}, keys.flatMap((key, index) => [index ? " " : null, h("kbd", {}, key)])),
    h("div", { class: "soft" }, text),
  ]));
  const close = h("button", { class: "button", value: "no", autofocus: true }, "Close");
  show(() => {}, "Keyboard", list, h("div", { class: "actions" }, close));
}

function show(resolve, title, ...parts) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const form = h("form", { method: "dialog", class: "inside" }, heading, ...parts);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  dialog.addEventListener("close", () => {
    resolve(dialog.returnValue === "yes");
    dialog.remove();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close("no");
  });
  document.body.append(dialog);
  dialog.showModal();
}
