// What the templates cannot say by htmx's attributes: keys, forms as JSON, images, the slider.
"use strict";

const KEY = "nearwise-key";
const QUESTION = "nearwise-question";

function keyHeaders() {
  const key = sessionStorage.getItem(KEY);
  return key ? {Authorization: `Bearer ${key}`} : {};
}

function tell(text) {
  const place = document.getElementById("problem");
  place.textContent = text;
  place.hidden = !text;
}

function askForKey() {
  document.getElementById("key-form").hidden = false;
  document.getElementById("key").focus();
}

function problemIn(status, text) {
  if (status === 401) askForKey();
  try {
    return JSON.parse(text).detail;
  } catch { // not a problem of the service; the status says what there is to say
    return `The service answered ${status}.`;
  }
}

// A service that was just started says how far it is.
async function sayReady() {
  const place = document.getElementById("ready");
  try {
    const {getting_ready: step} = await (await fetch("/v2/health/ready")).json();
    place.hidden = !step;
    if (!step) return;
    place.textContent = `Getting ready (${Math.round(100 * step.progress)} % done): ${step.step} ...`;
  } catch { // it is not there now; what is asked next will say so
    place.hidden = true;
    return;
  }
  setTimeout(sayReady, 1000);
}
document.addEventListener("DOMContentLoaded", sayReady);

// Forms travel as JSON: an object of texts, lists where a name occurs more than once.
htmx.defineExtension("json-form", {
  onEvent(name, event) {
    if (name === "htmx:configRequest") event.detail.headers["Content-Type"] = "application/json";
    return true;
  },
  encodeParameters(xhr, parameters, element) {
    const body = {};
    for (const [name, value] of parameters.entries()) {
      if (name in body) body[name] = [].concat(body[name], value);
      else body[name] = value;
    }
    xhr.overrideMimeType("text/html");
    return JSON.stringify(body);
  },
});

document.addEventListener("htmx:configRequest", (event) => {
  Object.assign(event.detail.headers, keyHeaders());
  if (event.detail.elt.id === "question") { // a new question: nothing is switched off or relabelled
    for (const name of [...event.detail.formData.keys()]) {
      if (name === "off" || name.startsWith("as.")) event.detail.formData.delete(name);
    }
  }
  const button = event.detail.triggeringEvent?.submitter;
  if (button?.dataset.label !== undefined) event.detail.formData.set("label", button.dataset.label);
});

// What was pressed says so itself: the end of a long table may be far below.
function pressed(detail) {
  const {elt, requestConfig} = detail;
  return requestConfig?.triggeringEvent?.submitter ?? elt.closest("label, button") ?? elt;
}

function busy(detail, on) {
  const at = pressed(detail);
  if (at.matches("label, button")) at.setAttribute("aria-busy", on);
  if (on && at.matches("[aria-pressed]")) {
    for (const one of at.parentElement.querySelectorAll("[aria-pressed]")) {
      one.setAttribute("aria-pressed", one === at);
    }
  }
  document.getElementById("busy").textContent = on ? "Working ..." : "";
}

document.addEventListener("htmx:beforeRequest", (event) => {
  tell("");
  busy(event.detail, true);
});
document.addEventListener("htmx:afterRequest", (event) => busy(event.detail, false));
document.addEventListener("htmx:sendError", () => tell("The service cannot be reached."));
document.addEventListener("htmx:timeout", () => tell("The service did not answer in time."));
document.addEventListener("htmx:responseError", (event) => {
  const {status, responseText} = event.detail.xhr;
  tell(problemIn(status, responseText));
});
document.addEventListener("htmx:afterRequest", (event) => {
  const path = event.detail.requestConfig?.path;
  if (event.detail.successful && path === "/page/ask/answer") {
    const body = {};
    for (const [name, value] of new FormData(document.getElementById("question")).entries()) {
      if (name !== "off" && !name.startsWith("as.")) body[name] = value;
    }
    try {
      sessionStorage.setItem(QUESTION, JSON.stringify(body)); // for the map
    } catch { // an image that is too large to be kept
      sessionStorage.removeItem(QUESTION);
    }
  }
});

// A remembered row that was edited is another row.
document.addEventListener("input", (event) => {
  if (!event.target.closest("#question") || event.target.closest("#answer")) return;
  document.querySelector("#question input[name=remembered]")?.remove();
});

document.addEventListener("submit", (event) => {
  if (event.target.id !== "key-form") return;
  event.preventDefault();
  sessionStorage.setItem(KEY, document.getElementById("key").value.trim());
  location.reload();
});

document.addEventListener("click", (event) => {
  if (event.target.id !== "as-it-is") return;
  htmx.trigger("#question", "submit");
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

// --- the slider of the view "Trust" --------------------------------------------------------------

function sayCoverage() {
  const slider = document.getElementById("coverage");
  if (!slider) return;
  const curve = JSON.parse(slider.dataset.curve); // [coverage, risk, threshold], ascending
  const wanted = slider.value / 100;
  const [coverage, risk, threshold] = curve.find((point) => point[0] >= wanted) ?? curve.at(-1);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const text =
    `${percent(coverage)} of the rows are answered, those with a confidence of at least ` +
    `${percent(threshold)}; ${percent(risk)} of them wrongly.`;
  document.getElementById("coverage-says").textContent = text;
  slider.setAttribute("aria-valuetext", text);
}
document.addEventListener("input", (event) => {
  if (event.target.id === "coverage") sayCoverage();
});
document.addEventListener("htmx:afterSettle", sayCoverage);
