// The view "Review": addresses of cases, keys, decisions that can be undone, and a file of all.
"use strict";

const DECISIONS = "nearwise-decisions"; // versions of the decisions of this tab, newest last
const REVIEW = "review";
let isWorking = false; // from a request until its case can take keys
let isNewPlace = true; // false while the address is that of the browser's history already

function kept(name) {
  const found = parsed(sessionStorage.getItem(name));
  return Array.isArray(found) ? found : [];
}

function go(search, {isNew = true, again = false} = {}) {
  const values = Object.fromEntries(new URLSearchParams(search));
  if (values.kind === "selection") values.selection = kept(SELECTION).join(",");
  if (again) values.again = "1";
  isNewPlace = isNew;
  htmx.ajax("POST", `${REVIEW}/queue`, {source: "#review", values});
}

// What was decided in this tab can be undone from it, the newest first.
function note(made, undone) {
  let versions = kept(DECISIONS);
  if (made) versions.push(Number(made));
  if (undone) versions = versions.filter((one) => one !== Number(undone));
  sessionStorage.setItem(DECISIONS, JSON.stringify(versions));
  const form = document.getElementById("undo");
  if (!form) return;
  form.elements.version.value = versions.at(-1) ?? "";
  form.querySelector("button").disabled = !versions.length;
}

function sayChosen() {
  const place = document.getElementById("chosen");
  if (!place) return;
  const boxes = [...document.querySelectorAll("#several input[name=ids]")];
  const n = boxes.filter((one) => one.checked).length;
  document.getElementById("every").checked = n === boxes.length;
  place.textContent = n ? `${n} chosen` : "None chosen";
}

function settled(event) {
  if (event.target.id === "review") isWorking = false;
  const queue = document.getElementById("queue");
  if (!queue || queue.dataset.seen) return;
  queue.dataset.seen = "yes";
  const {query, said, made, undone} = queue.dataset;
  const address = REVIEW + (query ? `?${query}` : "");
  const isElsewhere = address !== location.pathname + location.search;
  if (isElsewhere) history[isNewPlace && document.body.dataset.began ? "pushState" : "replaceState"](null, "", address);
  note(made, undone);
  const chosen = kept(SELECTION).length;
  const link = document.getElementById("to-selection");
  if (link && chosen) {
    link.hidden = false;
    link.textContent = `selected on the map (${chosen})`;
  }
  const title = document.getElementById("case");
  if (document.body.dataset.began) {
    document.getElementById("review-says").textContent = [said, title?.textContent].filter(Boolean).join(" ");
    title?.focus({preventScroll: true});
    if (title && title.getBoundingClientRect().top < 0) title.scrollIntoView();
  }
  document.body.dataset.began = "yes";
}

function pressKey(key) {
  const element = document.querySelector(`#review [data-key="${key}"]`);
  if (element) element.click();
}

const KEYS = {ArrowRight: "j", ArrowLeft: "i"};

document.addEventListener("keydown", (event) => {
  const {target, key} = event;
  if (event.ctrlKey || event.metaKey || event.altKey || isWorking) return;
  if (key === "Enter" && target.id === "label") {
    event.preventDefault();
    document.getElementById("relabel").click();
    return;
  }
  if (key === "Escape" && target.id === "label") document.getElementById("case")?.focus();
  if (event.repeat || target.matches("input, select, textarea") || target.closest("body > header")) return;
  if (key === "?") {
    const keys = document.getElementById("keys");
    if (keys) {
      keys.open = !keys.open;
      if (keys.open) keys.scrollIntoView({block: "nearest"});
    }
  } else if (key === "r") {
    const label = document.getElementById("label");
    if (!label) return;
    event.preventDefault(); // the key is not typed into the field
    label.focus();
  } else if ("akxuji".includes(KEYS[key] ?? key)) {
    pressKey(KEYS[key] ?? key);
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-go]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    go(link.search);
  }
  if (event.target.id === "again") go(location.search, {again: true});
  if (event.target.id === "export") save("review.csv", `${REVIEW}/findings.csv`);
});

document.addEventListener("change", (event) => {
  if (event.target.id === "every") {
    for (const box of document.querySelectorAll("#several input[name=ids]")) box.checked = event.target.checked;
  }
  sayChosen();
});

// Path of a request that shows another case, or undefined.
function changesCase(event) {
  const path = event.detail.requestConfig?.path ?? "";
  return [`${REVIEW}/queue`, `${REVIEW}/decide`, `${REVIEW}/undo`].find((one) => one === path);
}

document.addEventListener("htmx:beforeRequest", (event) => {
  const path = changesCase(event);
  if (!path) return;
  if (path !== `${REVIEW}/queue`) isNewPlace = true;
  isWorking = true;
});
document.addEventListener("htmx:afterRequest", (event) => {
  const path = changesCase(event);
  if (!path || event.detail.successful) return;
  isWorking = false;
  const cannot = [404, 422].includes(event.detail.xhr.status); // no such change, or undone already
  if (path === `${REVIEW}/undo` && cannot) note("", document.getElementById("undo")?.elements.version.value);
});
document.addEventListener("htmx:afterSettle", settled);
window.addEventListener("popstate", () => go(location.search, {isNew: false}));
document.addEventListener("DOMContentLoaded", () => go(location.search, {isNew: false}));
