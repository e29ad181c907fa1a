"use strict";
const EVERY_MS = 2000;
const shown = {};
const told = document.getElementById("told");
let reports = 0;

/* What the reader has unfolded stays unfolded when a part is drawn anew. */
function keyOf(details) {
  const section = details.closest("section");
  return `${section ? section.id : ""}/${[...(section || document).querySelectorAll("details")].indexOf(details)}`;
}
function replace(place, markup) {
  const open = new Set([...place.querySelectorAll("details[open]")].map(keyOf));
  const scrolled = [...place.querySelectorAll(".scroll")].map((frame) => frame.scrollLeft);
  const [x, y] = [window.scrollX, window.scrollY];
  const next = document.createElement("template");
  next.innerHTML = markup;
  place.replaceChildren(next.content);
  place.querySelectorAll("details").forEach((details) => { if (open.has(keyOf(details))) details.open = true; });
  place.querySelectorAll(".scroll").forEach((frame, i) => { frame.scrollLeft = scrolled[i] || 0; });
  window.scrollTo(x, y);
}
function runReportScript() {
  const script = document.createElement("script");
  script.src = `/report.js?${++reports}`;
  script.onload = () => script.remove();
  document.body.append(script);
}
async function look() {
  try {
    const answer = await fetch("/fragments.json", { signal: AbortSignal.timeout(20000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const fragments = await answer.json();
    for (const [name, { hash, markup }] of Object.entries(fragments)) {
      if (shown[name] === hash) continue;
      shown[name] = hash;
      replace(document.getElementById(name), markup);
      if (name === "report") runReportScript();
    }
    told.textContent = `as of ${new Date().toLocaleTimeString()}`;
    document.body.classList.remove("stale");
  } catch {
    document.body.classList.add("stale");
    if (!told.textContent.startsWith("no answer")) told.textContent = `no answer; what is shown is ${told.textContent}`;
  }
}
async function follow() {
  if (!document.hidden) await look();
  setTimeout(follow, EVERY_MS);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
follow();
