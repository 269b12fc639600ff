// The rows of a lasso: a summary beside the map, and what can be done with them.
"use strict";

const MOST_CLASSES = 5; // of a summary

const mean = (values) => {
  let [sum, n] = [0, 0];
  for (const value of values) if (!Number.isNaN(value)) [sum, n] = [sum + value, n + 1];
  return n ? sum / n : NaN;
};

// Means over the chosen points and over all others; NaN where no value is known.
function bothMeans(values, chosen) {
  const isChosen = new Uint8Array(values.length);
  for (const i of chosen) isChosen[i] = 1;
  const [here, elsewhere] = [values.filter((_, i) => isChosen[i]), values.filter((_, i) => !isChosen[i])];
  return [mean(here), mean(elsewhere)];
}

function beside([here, elsewhere], written) {
  return Number.isNaN(elsewhere) ? written(here) : `${written(here)} (elsewhere ${written(elsewhere)})`;
}

const posted = (body, signal) => ({
  method: "POST", body: JSON.stringify(body), signal, headers: {"Content-Type": "application/json"},
});

// `valuesOf(by)` gives a coloring.
class Selection {
  constructor(place, {valuesOf, cleared}) {
    Object.assign(this, {place, valuesOf, chosen: []});
    this.leave = new AbortController();
    place.addEventListener("click", (event) => {
      const {action} = event.target.dataset;
      if (action === "clear") cleared();
      else if (action) this[action]();
    });
  }

  clear() {
    this.leave.abort();
    this.chosen = [];
    this.place.hidden = true;
    this.place.replaceChildren();
    el("map-rows").replaceChildren();
  }

  ids() {
    return this.chosen.map((i) => this.points.id[i]);
  }

  show(chosen, points, labels, colors) {
    this.leave.abort();
    this.leave = new AbortController();
    Object.assign(this, {chosen, points});
    const share = percent(chosen.length / points.n);
    const head = made("h2", {}, `${counted(chosen.length)} row${chosen.length === 1 ? "" : "s"} (${share})`);
    this.place.replaceChildren(head);
    this.place.hidden = false;
    if (!chosen.length) {
      this.place.append(made("p", {}, "No shown point is inside."), buttons([["clear", "Clear"]]));
      return;
    }
    this.facts = made("ul", {class: "facts"});
    this.facts.setAttribute("aria-busy", "true");
    const actions = [["list", "List rows"], ["review", "Review these"], ["save", "Export as CSV"], ["clear", "Clear"]];
    this.place.append(this.facts, buttons(actions));
    if (labels.isCategory) this.facts.before(this.classes(labels, colors));
    else {
      const said = beside(bothMeans(labels.values, chosen), (value) => short(value));
      this.facts.append(made("li", {}, `Mean ${labels.title}: ${said}`));
    }
    this.tellMore(labels, this.leave.signal);
  }

  classes(labels, colors) {
    const counts = new Map();
    for (const i of this.chosen) counts.set(labels.values[i], (counts.get(labels.values[i]) ?? 0) + 1);
    const most = [...counts].sort((a, b) => b[1] - a[1]);
    const share = (n) => made("span", {class: "number"}, `${counted(n)}, ${percent(n / this.chosen.length)}`);
    const items = most.slice(0, MOST_CLASSES).map(([category, n]) => {
      const {color, shape} = look(category, colors.hues);
      const name = named(labels.categories[category]);
      return made("li", {class: "entry"}, swatch(color, shape), name, " ", share(n));
    });
    const others = most.slice(MOST_CLASSES);
    if (others.length) {
      const n = others.reduce((sum, one) => sum + one[1], 0);
      items.push(made("li", {class: "entry"}, named(`${others.length} further`), " ", share(n)));
    }
    return made("ul", {class: "entries"}, ...items);
  }

  // What the service has to compute comes when it is there.
  async tellMore(labels, signal) {
    const {chosen, facts} = this;
    const body = {ids: this.ids().join(",")};
    const told = [
      fetched("map/columns", posted(body, signal)).then((found) => found.json()).then(({differences}) =>
        differences.map(({column, here, elsewhere}) => `${column}: ${here} against ${elsewhere}`)),
      labels.isCategory
        ? this.valuesOf("right", signal).then(({values}) => known("Accuracy", values.map((value) => 1 - value), chosen, percent))
        : this.valuesOf("error", signal).then(({values}) => known("Mean error", values, chosen, (value) => short(value))),
      this.valuesOf("doubt", signal).then(({values}) => known("Mean doubt", values, chosen, percent)),
    ];
    const items = told.map((one) => one.then(
      (texts) => texts.map((text) => made("li", {}, text)),
      (error) => [made("li", {class: "warning"}, error.message)],
    ));
    for (const one of items) {
      facts.append(...await one);
      if (signal.aborted) return;
    }
    facts.setAttribute("aria-busy", "false");
  }

  async list() {
    const {signal} = this.leave;
    try {
      await htmx.ajax("POST", "map/rows", {
        target: "#map-rows", source: "#map-rows", values: {ids: this.ids().join(",")},
      });
    } finally {
      if (signal.aborted) el("map-rows").replaceChildren(); // of a former selection
    }
    el("map-rows-head")?.focus();
  }

  review() {
    try {
      sessionStorage.setItem(SELECTION, JSON.stringify(this.ids()));
    } catch {
      tell("The browser has no room for so many ids. Select fewer rows.");
      return;
    }
    location.assign("review?kind=selection");
  }

  save() {
    save("selection.csv", "map/export", posted({ids: this.ids().join(",")}, this.leave.signal));
  }
}

const known = (name, values, chosen, written) => {
  const means = bothMeans(values, chosen);
  return [Number.isNaN(means[0]) ? `${name}: not known of these rows` : `${name}: ${beside(means, written)}`];
};

const buttons = (actions) => made("div", {class: "pick"}, ...actions.map(([action, text]) =>
  made("button", {type: "button", "data-action": action}, text)));

// --- outline ------------------------------------------------------------------------------------

const MOST_CORNERS = 60; // so that a link holds them

// Leave out corners near the line between their neighbors (Douglas and Peucker 1973).
function simplified(corners, tolerance) {
  if (corners.length < 3) return corners;
  const [[x0, y0], [x1, y1]] = [corners[0], corners.at(-1)];
  const length = Math.hypot(x1 - x0, y1 - y0);
  const gaps = corners.map(([x, y]) => length
    ? Math.abs((x1 - x0) * (y0 - y) - (x0 - x) * (y1 - y0)) / length : Math.hypot(x - x0, y - y0));
  const farthest = gaps.indexOf(Math.max(...gaps));
  if (gaps[farthest] <= tolerance) return [corners[0], corners.at(-1)];
  const before = simplified(corners.slice(0, farthest + 1), tolerance);
  return [...before.slice(0, -1), ...simplified(corners.slice(farthest), tolerance)];
}

function outlined(corners, extent) {
  for (let tolerance = extent / 2000; ; tolerance *= 1.5) {
    const found = simplified(corners, tolerance);
    if (found.length <= MOST_CORNERS) return found;
  }
}
