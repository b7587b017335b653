// Runs before the first paint, so that the page never flashes in the other theme.
(() => {
  let choice = null;
  try {
    choice = localStorage.getItem("outplay.theme");
  } catch {
    // Storage may be forbidden: the system's preference is used then.
  }
  const isDark = choice ? choice === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
})();
