// The view "Trust": the slider, the largest share of wrong answers, and the mark on the curve.
"use strict";

function sayAt({coverage, risk, threshold}) {
  const text =
    `${percent(coverage)} of the rows are answered, those with a confidence of at least ` +
    `${percent(threshold)}; ${percent(risk)} of them wrongly.`;
  const mark = document.getElementById("risk-at");
  const [left, right] = [Number(mark.dataset.left), Number(mark.dataset.right)];
  for (const name of ["x1", "x2"]) mark.setAttribute(name, left + coverage * (right - left));
  document.getElementById("coverage-says").textContent = text;
  document.getElementById("coverage").setAttribute("aria-valuetext", text);
}

function sayCoverage(asked = null) {
  const slider = document.getElementById("coverage");
  if (!slider) return;
  const curve = JSON.parse(slider.dataset.curve); // by ascending coverage
  if (asked !== "max-risk") {
    sayAt(curve.find((point) => point.coverage >= slider.value / 100) ?? curve.at(-1));
    return;
  }
  const field = document.getElementById("max-risk");
  if (field.value === "") return;
  const found = curve.findLast((point) => point.risk <= Number(field.value) / 100);
  if (found) {
    slider.value = Math.round(100 * found.coverage);
    sayAt(found);
  } else document.getElementById("coverage-says").textContent = "Not even the surest rows are right this often.";
}

document.addEventListener("input", (event) => {
  if (["coverage", "max-risk"].includes(event.target.id)) sayCoverage(event.target.id);
});
document.addEventListener("htmx:afterSettle", (event) => {
  if (event.target.querySelector("#coverage")) sayCoverage();
});
