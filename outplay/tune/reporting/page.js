// A tooltip, and the same trial highlighted in all figures. Without JavaScript, browsers show the titles.
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;
for (const title of document.querySelectorAll("svg title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
const byTrial = new Map();
for (const mark of document.querySelectorAll("[data-trial]")) {
  const trial = mark.dataset.trial;
  if (!trial) continue;
  if (!byTrial.has(trial)) byTrial.set(trial, []);
  byTrial.get(trial).push(mark);
}
let shown = null;
function highlight(trial) {
  if (trial === shown) return;
  for (const mark of byTrial.get(shown) || []) mark.classList.remove("on");
  for (const mark of byTrial.get(trial) || []) mark.classList.add("on");
  document.body.classList.toggle("marked", trial !== null);
  shown = trial;
}
document.addEventListener("mousemove", (event) => {
  const target = event.target.closest ? event.target : null;
  const mark = target && target.closest("[data-tip], [data-trial]");
  highlight((mark && mark.dataset.trial) || null);
  tip.hidden = !(mark && mark.dataset.tip);
  if (tip.hidden) return;
  tip.textContent = mark.dataset.tip;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 12) + "px";
});
