// Building the page without innerHTML: text from runs is only ever text.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Keys of `props`: `on` (listeners), `data`, `style` (through the CSSOM); all others are attributes. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (key === "data") {
      Object.assign(element.dataset, value);
    } else if (key === "style") {
      for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    } else if (key === "value" || key === "checked" || key === "disabled") {
      element[key] = value;
    } else {
      element.setAttribute(key, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set the text only if it changed: an unchanged cell costs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Make the children of `parent` those of `wanted`, in order, touching only what moved. */
export function arrange(parent, wanted) {
  let place = parent.firstChild;
  const kept = new Set(wanted);
  for (const child of wanted) {
    while (place && place !== child && !kept.has(place)) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
    if (place === child) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** Make `holder` look like it had the child `wanted`, keeping the nodes that are there: focus and scroll position stay. */
export function morph(holder, wanted) {
  if (holder.childNodes.length === 1) sync(holder.firstChild, wanted);
  else holder.replaceChildren(wanted);
}

function sync(node, wanted) {
  if (node.nodeType !== wanted.nodeType || node.nodeName !== wanted.nodeName) {
    node.replaceWith(wanted);
    return;
  }
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of [...wanted.attributes]) {
    if (name === "style") node.style.cssText = wanted.style.cssText; // through the CSSOM, as the page's policy asks
    else setAttribute(node, name, value);
  }
  const children = [...wanted.childNodes];
  while (node.childNodes.length > children.length) node.lastChild.remove();
  children.forEach((child, index) => (node.childNodes[index] ? sync(node.childNodes[index], child) : node.append(child)));
}

const PATHS = {
  runs: "M3 4h10M3 8h10M3 12h6",
  charts: "M2.5 2.5v11h11M5 10l2.5-3 2 1.8L13 4.5",
  compare: "M5.5 2.5v11M10.5 2.5v11M2.5 5.5l3-3 3 3M7.5 10.5l3 3 3-3",
  studies: "M8 2.2l5.5 3v5.6L8 13.8l-5.5-3V5.2zM2.5 5.2L8 8.2l5.5-3M8 8.2v5.6",
  start: "M4.5 2.8l8 5.2-8 5.2z",
  play: "M4.5 2.8l8 5.2-8 5.2z",
  pause: "M5.5 3v10M10.5 3v10",
  step: "M4 3l6 5-6 5zM12.5 3v10",
  restart: "M3 8a5 5 0 1 0 1.6-3.7M3 2.5v3h3",
  stop: "M4 4h8v8H4z",
  save: "M3 3h8l2 2v8H3zM5.5 3v3h4V3M5.5 13V9.5h5V13",
  evaluate: "M8 2.5a5.5 5.5 0 1 0 5.5 5.5M8 5.5A2.5 2.5 0 1 0 10.5 8M8 8l5-5",
  video: "M2.5 4.5h7.5v7H2.5zM10 7l3.5-2v6L10 9",
  watch: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 6.2a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6z",
  check: "M3 8.5l3.2 3L13 4.5",
  cross: "M4 4l8 8M12 4l-8 8",
  warn: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.6v.2",
  info: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 7.2v3.6M8 5v.2",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.4 10.4L14 14",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.4M8 13.6V15M1 8h1.4M13.6 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8z",
  keyboard: "M1.5 4h13v8h-13zM4 6.7h.1M6.7 6.7h.1M9.3 6.7h.1M12 6.7h.1M5 9.4h6",
  link: "M6.5 9.5l3-3M7 4.5l1.2-1.2a2.8 2.8 0 0 1 4 4L11 8.5M9 11.5l-1.2 1.2a2.8 2.8 0 0 1-4-4L5 7.5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  left: "M10 3L5 8l5 5",
  right: "M6 3l5 5-5 5",
  down: "M3.5 6L8 10.5 12.5 6",
  copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
  reset: "M2.5 6V2.5H6M13.5 6V2.5H10M2.5 10v3.5H6M13.5 10v3.5H10",
  dash: "M4 8h8",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

/** A button with an icon, a label, or both. */
export function button(label, { symbol, kind = "", onclick, title, iconOnly = false, ...more } = {}) {
  return h(
    "button",
    {
      type: "button",
      class: `button ${kind} ${iconOnly ? "square" : ""}`.trim(),
      "aria-label": iconOnly ? label : null,
      title: title ?? (iconOnly ? label : null),
      on: onclick ? { click: onclick } : {},
      ...more,
    },
    symbol ? icon(symbol) : null,
    iconOnly ? null : h("span", {}, label),
  );
}

/** A command to type, with a button that copies it. */
export function command(text) {
  const copy = button("Copy the command", { symbol: "copy", kind: "quiet small", iconOnly: true });
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    copy.replaceChildren(icon("check"));
    setTimeout(() => copy.replaceChildren(icon("copy")), 1200);
  });
  return h("div", { class: "command" }, h("code", {}, text), copy);
}

export function empty(symbol, title, ...parts) {
  return h("div", { class: "empty" }, icon(symbol), h("h2", {}, title), ...parts);
}

export function card(title, body, ...headerParts) {
  const header = h("header", {}, h("h2", {}, title), ...headerParts);
  return h("section", { class: "card", "aria-label": title }, header, body);
}

/** A group of buttons of which one is pressed. Returns the element and a function that sets the choice. */
export function segments(label, options, onchoose) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", data: { value }, on: { click: () => onchoose(value) } }, text),
  );
  const element = h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
  const set = (value) => {
    for (const each of buttons) setAttribute(each, "aria-pressed", String(each.dataset.value === value));
  };
  return { element, set };
}
