// Tables that sort and filter, pictures that enlarge, a list of contents. Without it all is there, in one order.
"use strict";

const LONG = 8; // rows from which a table has a filter

function numberIn(text) {
  const found = text.replace("\u2212", "-").match(/^\s*[<>]?\s*([+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)/i);
  return found ? Number(found[1]) : NaN;
}

function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const order = new Map([...table.querySelectorAll("tbody tr")].map((row) => [row, Number(row.dataset.place)]));
  const value = (row) => row.cells[column]?.firstChild?.textContent ?? "";
  const compare = (one, other) => {
    if (!direction) return order.get(one) - order.get(other);
    const [a, b] = [value(one), value(other)];
    const [x, y] = [numberIn(a), numberIn(b)];
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1; // what is no number, last
    return direction * (Number.isNaN(x) ? a.localeCompare(b) : x - y) || order.get(one) - order.get(other);
  };
  body.append(...[...body.rows].sort(compare));
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  [...table.tBodies[0].rows].forEach((row, place) => { row.dataset.place = place; });
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const now = before === "ascending" ? "descending" : before === "descending" ? null : "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      if (now) head.setAttribute("aria-sort", now);
      sortBy(table, column, now === "ascending" ? 1 : now === "descending" ? -1 : 0);
    });
  });
}

function addFilter(table) {
  const label = document.createElement("label");
  label.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  label.append("Show rows with ", input);
  (table.closest(".scroll") ?? table).before(label);
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}

function enlargePictures() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "Enlarged picture");
  const shown = document.createElement("img");
  const text = document.createElement("p");
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.append(shown, text, close);
  document.body.append(dialog);
  for (const image of document.querySelectorAll(".card img")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "enlarge";
    button.setAttribute("aria-label", `Enlarge ${image.alt}`);
    image.replaceWith(button);
    button.append(image);
    button.addEventListener("click", () => {
      shown.src = image.src;
      shown.alt = image.alt;
      text.textContent = image.alt;
      dialog.showModal();
    });
  }
}

function listContents() {
  const heads = [...document.querySelectorAll("main h2, main h3")];
  if (heads.length < 4) return;
  const contents = document.createElement("details");
  contents.className = "contents";
  const summary = document.createElement("summary");
  summary.textContent = "Contents";
  const list = document.createElement("ul");
  heads.forEach((head, place) => {
    head.id ||= `heading-${place}`;
    const item = document.createElement("li");
    item.className = head.tagName.toLowerCase();
    const link = document.createElement("a");
    link.href = `#${head.id}`;
    link.textContent = head.textContent;
    item.append(link);
    list.append(item);
  });
  contents.append(summary, list);
  document.querySelector("main").before(contents);
}

for (const table of document.querySelectorAll(".scroll > table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  makeSortable(table);
  if (table.tBodies[0].rows.length >= LONG) addFilter(table);
}
enlargePictures();
listContents();
