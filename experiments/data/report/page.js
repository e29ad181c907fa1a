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
for (const output of document.querySelectorAll(".output")) {
  const tokens = [...output.querySelectorAll(".t")], told = output.querySelector(".told");
  let current = tokens[0];
  const choose = (token) => {
    current.tabIndex = -1;
    current.classList.remove("chosen");
    current = token;
    current.tabIndex = 0;
    current.classList.add("chosen");
    told.textContent = token.title;
  };
  output.addEventListener("pointerover", (event) => { if (tokens.includes(event.target)) choose(event.target); });
  output.addEventListener("focusin", (event) => { if (tokens.includes(event.target)) choose(event.target); });
  output.addEventListener("keydown", (event) => {
    const place = tokens.indexOf(document.activeElement);
    const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tokens.length - 1 };
    if (place < 0 || !(event.key in moves)) return;
    event.preventDefault();
    tokens[Math.min(Math.max(moves[event.key], 0), tokens.length - 1)].focus();
  });
}
