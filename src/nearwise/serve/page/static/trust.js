// The view "Trust": what the slider says.
"use strict";

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
