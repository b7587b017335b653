// The server's own figures as SVG: parsed, and rebuilt from a list of harmless elements and attributes.

import { h, svg } from "./dom.js";

const SHAPES = new Set(["svg", "g", "path", "line", "circle", "rect", "ellipse", "polyline", "polygon", "text", "tspan", "title", "defs", "lineargradient", "stop"]);
const PLAIN = new Set(["div", "figure", "p", "span", "i", "small", "b", "code"]);
const ATTRIBUTES = new Set([
  "class", "role", "aria-label", "viewbox", "d", "points", "transform", "text-anchor", "dominant-baseline", "data-trial",
  "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "cx", "cy", "r", "rx", "ry", "width", "height", "fill-opacity", "stroke-opacity",
]);
const SPELLING = { viewbox: "viewBox" };

/** A fragment with the allowed parts of `text`. */
export function sanitized(text) {
  const parsed = new DOMParser().parseFromString(text, "text/html");
  const fragment = document.createDocumentFragment();
  fragment.append(...[...parsed.body.childNodes].map(copy).filter(Boolean));
  return fragment;
}

function copy(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE) return null;
  const name = node.localName.toLowerCase();
  const make = SHAPES.has(name) ? svg : PLAIN.has(name) ? h : null;
  if (!make) return null;
  const element = make(node.localName);
  for (const { name: key, value } of node.attributes) {
    const lower = key.toLowerCase();
    if (ATTRIBUTES.has(lower)) element.setAttribute(SPELLING[lower] ?? lower, value);
  }
  element.append(...[...node.childNodes].map(copy).filter(Boolean));
  return element;
}
