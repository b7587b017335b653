// Texts as "5 min ago", which stay true while the page is open.

import { h, setText } from "./dom.js";
import { ago, moment } from "./format.js";

const INTERVAL = 5000;

/** How long ago a moment was. */
export function since(iso) {
  return Number.isNaN(Date.parse(iso ?? "")) ? ago(iso) : h("time", { datetime: iso, title: moment(iso) }, ago(iso));
}

setInterval(() => {
  if (document.hidden) return;
  for (const each of document.querySelectorAll("time[datetime]")) setText(each, ago(each.dateTime));
}, INTERVAL);
