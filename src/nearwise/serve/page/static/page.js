// What the templates cannot say by htmx's attributes: keys, forms as JSON, messages.
"use strict";

const KEY = "nearwise-key";
const QUESTION = "nearwise-question"; // of the view "Ask", for the map
const SELECTION = "nearwise-selection"; // ids chosen on the map, for the view "Review"
const UNREACHABLE = "The service cannot be reached.";

const percent = (share) => `${(100 * share).toFixed(1)} %`;

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

// A value in JSON, or null.
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch { // written by something else
    return null;
  }
}

function problemIn(status, text) {
  if (status === 401) askForKey();
  return parsed(text)?.detail ?? `The service answered ${status}.`;
}

// Response to a request; throws with a message for people.
async function fetched(path, options = {}) {
  for (;;) {
    const headers = {...keyHeaders(), ...(options.headers ?? {})};
    const response = await fetch(path, {...options, headers}).catch((error) => {
      throw error.name === "AbortError" ? error : new Error(UNREACHABLE);
    });
    if (response.ok) return response;
    if (response.status !== 504) throw new Error(problemIn(response.status, await response.text()));
  } // it goes on meanwhile
}

// Save what a request gives as a file.
async function save(name, path, options) {
  tell("");
  try {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await (await fetched(path, options)).blob());
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  }
}

// A service that was just started says how far it is.
async function sayReady() {
  const place = document.getElementById("ready");
  try {
    const {getting_ready: step} = await (await fetch("../v2/health/ready")).json();
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

// The frame is public, so the name of the model comes with its content.
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.id !== "model") return;
  const view = document.querySelector("main h1").textContent;
  document.title = `${view} \u00b7 ${document.getElementById("model-name").textContent}`;
});

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
});

// What was pressed says so itself: the end of a long table may be far below.
function pressed(detail) {
  const {elt, requestConfig} = detail;
  return requestConfig?.triggeringEvent?.submitter ?? elt.closest("label, button") ?? elt;
}

function busy(detail, on) {
  const at = pressed(detail);
  if (at.matches("label, button")) at.setAttribute("aria-busy", on);
  document.getElementById("busy").textContent = on ? "Working ..." : "";
}

document.addEventListener("htmx:beforeRequest", (event) => {
  tell("");
  busy(event.detail, true);
});
document.addEventListener("htmx:afterRequest", (event) => busy(event.detail, false));

// What was waited for does not come: a link leads to the view as it is without an address.
function failed({target}, text) {
  tell(text);
  const place = target.matches(".waiting") ? target : target.querySelector(":scope > .waiting");
  const link = document.createElement("a");
  [link.href, link.textContent] = [location.pathname, "Start again"];
  place?.replaceChildren("This could not be shown. ", link);
}

document.addEventListener("htmx:sendError", ({detail}) => failed(detail, UNREACHABLE));
document.addEventListener("htmx:timeout", ({detail}) => failed(detail, "The service did not answer in time."));
document.addEventListener("htmx:responseError", ({detail}) => {
  const {status, responseText} = detail.xhr;
  failed(detail, problemIn(status, responseText));
});
document.addEventListener("submit", (event) => {
  if (event.target.id !== "key-form") return;
  event.preventDefault();
  sessionStorage.setItem(KEY, document.getElementById("key").value.trim());
  location.reload();
});
