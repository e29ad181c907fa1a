"use strict";
function compare(a, b) {
  const x = a === "-inf" ? -Infinity : Number(a), y = b === "-inf" ? -Infinity : Number(b);
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x === y ? 0 : x < y ? -1 : 1;
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => compare(a.cells[column].dataset.sort, b.cells[column].dataset.sort));
    body.append(...(down ? rows.reverse() : rows));
  }));
}
for (const filter of document.querySelectorAll(".filter")) {
  const input = filter.querySelector("input"), said = filter.querySelector("span");
  const rows = [...filter.nextElementSibling.querySelectorAll("tbody tr")];
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (row) => wanted.every((word) => row.textContent.toLowerCase().includes(word));
    for (const row of rows) row.hidden = !has(row);
    said.textContent = wanted.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  });
}
for (const output of document.querySelectorAll(".output")) {
  const tokens = [...output.querySelectorAll(".t")], told = output.querySelector(".told");
  let current = tokens[0];
  const hide = () => { told.hidden = true; if (current) current.classList.remove("chosen"); };
  const choose = (token) => {
    if (token.title) { token.dataset.told = token.title; token.removeAttribute("title"); }
    current.tabIndex = -1;
    current.classList.remove("chosen");
    current = token;
    current.tabIndex = 0;
    current.classList.add("chosen");
    told.textContent = token.dataset.told;
    told.hidden = false;
    const frame = output.getBoundingClientRect(), box = token.getClientRects()[0];
    const left = Math.min(box.left - frame.left, frame.width - told.offsetWidth);
    const below = box.bottom - frame.top + 8;
    const fits = box.bottom + told.offsetHeight + 16 < innerHeight || box.top < told.offsetHeight + 16;
    told.style.left = `${Math.max(left, 0)}px`;
    told.style.top = `${fits ? below : box.top - frame.top - told.offsetHeight - 8}px`;
  };
  output.addEventListener("pointerover", (event) => { if (tokens.includes(event.target)) choose(event.target); });
  output.addEventListener("focusin", (event) => { if (tokens.includes(event.target)) choose(event.target); });
  output.addEventListener("pointerleave", () => { if (!output.contains(document.activeElement)) hide(); });
  output.addEventListener("focusout", hide);
  output.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const place = tokens.indexOf(document.activeElement);
    const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tokens.length - 1 };
    if (place < 0 || !(event.key in moves)) return;
    event.preventDefault();
    tokens[Math.min(Math.max(moves[event.key], 0), tokens.length - 1)].focus();
  });
}
