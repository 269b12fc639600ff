// The view "Ask": marks in the fields, the question in the address, images from files, copies.
"use strict";

const question = () => document.getElementById("question");
const fields = () => [...document.querySelectorAll("#question [data-column]")];
let isRestored = false; // whether the address was read

// --- the question in the address ------------------------------------------------------------------

function typed(field) { // the text of a choice, since positions change with the model
  return field.tagName === "SELECT" && field.value ? field.selectedOptions[0].textContent : field.value;
}

function address() {
  const found = new URLSearchParams();
  const remembered = question().querySelector("input[name=remembered]");
  const features = document.getElementById("features");
  if (remembered) found.set("row", remembered.value);
  else if (features) found.set("features", features.value);
  else {
    const given = fields().filter((one) => one.value).map((one) => [one.dataset.column, typed(one)]);
    found.set("given", JSON.stringify(Object.fromEntries(given)));
  }
  for (const one of document.querySelectorAll("#answer input[name=off]:checked")) found.append("off", one.value);
  for (const one of document.querySelectorAll("#answer [name^='as.']")) {
    if (one.value && !one.disabled) found.append("as", `${one.name.slice(3)}:${typed(one)}`);
  }
  return `${location.pathname}?${found}`;
}

function noteAddress() {
  const isImage = document.getElementById("image")?.value; // a file has no address
  const next = isImage ? location.pathname : address();
  if (next === location.pathname + location.search) return;
  history[isRestored ? "pushState" : "replaceState"](null, "", next);
}

// Fill the form that has just come from the address, and ask.
function restoreForm() {
  const wanted = new URLSearchParams(location.search);
  if (isRestored || question().querySelector("input[name=remembered]")) return;
  const features = document.getElementById("features");
  const given = parsed(wanted.get("given"));
  if (features && wanted.has("features")) features.value = wanted.get("features");
  else if (given) {
    for (const one of fields().filter((field) => field.dataset.column in given)) {
      const text = given[one.dataset.column];
      if (one.tagName !== "SELECT") one.value = text;
      else for (const option of one.options) if (option.textContent === text) one.value = option.value;
    }
  } else return;
  htmx.trigger(question(), "submit");
}

// Switch neighbors as the address says; one request for all of them.
function restoreSwitches() {
  const wanted = new URLSearchParams(location.search);
  isRestored = true;
  let last = null;
  for (const id of wanted.getAll("off")) {
    const box = document.getElementById(`off${id}`);
    if (box) (last = box).checked = true;
  }
  for (const one of wanted.getAll("as")) {
    const [id, ...text] = one.split(":");
    const field = document.getElementById(`as${id}`);
    if (!field) continue;
    if (field.tagName !== "SELECT") field.value = text.join(":");
    else for (const option of field.options) if (option.textContent === text.join(":")) field.value = option.value;
    last = field;
  }
  if (last) htmx.trigger(last, "change");
  return last !== null;
}

addEventListener("popstate", () => location.reload());

// --- fields -----------------------------------------------------------------------------------------

function markAt(svg, value, low, high, kind) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const width = svg.viewBox.baseVal.width;
  const x = Math.min(Math.max((value - low) / (high - low), 0), 1) * width;
  for (const [name, at] of [["x1", x], ["x2", x], ["y1", kind === "own" ? 0 : 6], ["y2", 10]]) line.setAttribute(name, at);
  line.setAttribute("class", kind);
  svg.append(line);
}

const hintOf = (field) => field.parentElement.querySelector("[data-hint]");

// Draw the value of a field and its neighbors into its histogram, and say if it is out of range.
function mark(field, neighbors = null) {
  const hint = hintOf(field);
  hint.textContent = hint.dataset.hint;
  const svg = field.parentElement.querySelector(".histogram");
  if (!svg) return;
  const [low, high, least, most] = ["low", "high", "least", "most"].map((name) => Number(field.dataset[name]));
  const value = field.value.trim() === "" ? NaN : Number(field.value);
  const stale = neighbors ? "line" : ".own";
  svg.querySelectorAll(stale).forEach((one) => one.remove());
  for (const one of neighbors ?? []) markAt(svg, one, low, high, "near");
  if (Number.isFinite(value)) markAt(svg, value, low, high, "own");
  const side = value < least ? "Below" : value > most ? "Above" : "";
  if (side) hint.textContent = `${side} all known rows (${hint.dataset.hint})`;
  hint.classList.toggle("beyond", side !== "");
}

function markAll() {
  const near = document.getElementById("near");
  const columns = near ? JSON.parse(near.dataset.columns) : {};
  for (const one of fields()) mark(one, columns[one.dataset.column] ?? []);
}

document.addEventListener("input", (event) => {
  if (!event.target.closest("#question") || event.target.closest("#answer")) return;
  question().querySelector("input[name=remembered]")?.remove(); // an edited row is another one
  document.getElementById("answer").classList.add("stale");
  event.target.removeAttribute("aria-invalid");
  if (event.target.dataset.column) mark(event.target);
});

// --- answers ------------------------------------------------------------------------------------------

// A form of many columns is taller than the window.
function showVerdict() {
  const {top, bottom} = document.querySelector("#answer .answer").getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) document.getElementById("answer").scrollIntoView();
}

// The answers for several targets lead to the same question about each.
function showAnswers() {
  const isImage = document.getElementById("image")?.value;
  const {search} = new URL(address(), location);
  for (const link of document.querySelectorAll("#answers .with-question")) if (!isImage) link.search = search;
  isRestored = true;
  noteAddress();
}

document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id === "asking") {
    markAll();
    restoreForm();
    isRestored ||= !location.search;
  }
  if (event.target.id !== "answer" || !document.querySelector("#near, #answers")) return;
  document.getElementById("answer").classList.remove("stale");
  if (document.getElementById("answers")) return showAnswers();
  document.getElementById("said").textContent = document.querySelector("#answer .answer").textContent;
  markAll();
  showVerdict();
  if (isRestored || !restoreSwitches()) noteAddress();
});

document.addEventListener("htmx:afterRequest", (event) => {
  const path = event.detail.requestConfig?.path;
  if (event.detail.successful && path === "ask/answer") {
    const body = {};
    for (const [name, value] of new FormData(question()).entries()) {
      if (name !== "off" && !name.startsWith("as.")) body[name] = value;
    }
    try {
      sessionStorage.setItem(QUESTION, JSON.stringify(body)); // for the map
    } catch { // an image that is too large to be kept
      sessionStorage.removeItem(QUESTION);
    }
  }
});

// A value that cannot be read is said at its field.
document.addEventListener("htmx:responseError", (event) => {
  const {status, responseText} = event.detail.xhr;
  if (event.detail.requestConfig?.path !== "ask/answer" || status !== 422) return;
  const said = problemIn(status, responseText);
  const field = fields().find((one) => said.startsWith(`${one.dataset.column}: `));
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  hintOf(field).textContent = said;
  field.focus();
});

document.addEventListener("click", async (event) => {
  if (event.target.id === "as-it-is") htmx.trigger(question(), "submit");
  const text =
    event.target.id === "copy-link" ? location.href : event.target.matches(".copy") && event.target.parentElement.nextElementSibling.textContent;
  if (!text) return;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not of https or of this machine, or not allowed
    tell("The browser does not let this page copy. Select the text and copy it by hand.");
    return;
  }
  const before = event.target.textContent;
  event.target.textContent = "Copied";
  setTimeout(() => { event.target.textContent = before; }, 1500);
});

// Enter in a number of the answer is not a new question; leaving the field is what it waits for.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.target.matches("#answer input:not([type=checkbox])")) return;
  event.preventDefault();
  event.target.blur();
});

// --- images -------------------------------------------------------------------------------------

function takeImage(file) {
  if (!file) return;
  const reader = new FileReader();
  reader.onload = () => {
    document.querySelector("#question input[name=remembered]")?.remove();
    document.getElementById("image").value = reader.result;
    const preview = document.getElementById("preview");
    preview.src = reader.result;
    preview.hidden = false;
    document.getElementById("answer").replaceChildren();
    htmx.trigger("#question", "submit");
  };
  reader.readAsDataURL(file);
}

document.addEventListener("change", (event) => {
  if (event.target.id === "file") takeImage(event.target.files[0]);
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    const place = event.target.closest?.("#drop");
    if (!place) return;
    event.preventDefault();
    place.classList.toggle("over", name === "dragover");
    if (name === "drop") takeImage(event.dataTransfer.files[0]);
  });
}
