// The view "Ask": a question is kept for the map; images are taken from files.
"use strict";

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
