// Light and dark: the system's preference until the switch is used.

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export const isDark = () => root.dataset.theme === "dark";

function stored() {
  try {
    return localStorage.getItem("outplay.theme");
  } catch {
    return null;
  }
}

function apply(theme) {
  root.dataset.theme = theme;
  for (const listener of [...listeners]) listener();
}

export function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("outplay.theme", theme);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  apply(theme);
}

system.addEventListener("change", () => {
  if (!stored()) apply(system.matches ? "dark" : "light");
});

/** Call `listener` when the colours have changed. Returns a remover. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The value of a colour of tokens.css, for canvases. */
export const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

// Line styles: eight colours, then the same with dashes, so that no two of 32 lines look the same.
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

export function lineStyle(slot) {
  return { name: `c${slot % 8}`, color: color(`c${slot % 8}`), dash: DASHES[Math.floor(slot / 8) % DASHES.length] };
}

// A run keeps its colour while it is selected; a freed colour goes to the next run.
const slots = new Map();

export function assignSlots(ids) {
  const wanted = new Set(ids);
  for (const id of [...slots.keys()]) if (!wanted.has(id)) slots.delete(id);
  const taken = new Set(slots.values());
  let next = 0;
  for (const id of ids) {
    if (slots.has(id)) continue;
    while (taken.has(next)) next += 1;
    slots.set(id, next);
    taken.add(next);
  }
}

export const slotOf = (id) => slots.get(id) ?? 0;
