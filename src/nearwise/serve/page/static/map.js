// The map: loads a layout, and follows pointer, keys and the address.
"use strict";

const el = (id) => document.getElementById(id);
const ink = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const TITLES = {
  change: "Time of change", right: "Prediction", confidence: "Confidence", doubt: "Doubt",
  error: "Distance from the prediction", width: "Width of the 90 % interval",
};
const MOST_TRIES = 3; // where the memory changes between two answers
const N_NEAREST = 20;
let map = null;

class MemoryMap {
  constructor() {
    Object.assign(this, {
      data: null, points: null, query: null, cross: null, lasso: [], drawn: null, tool: "move",
      method: "pca", color: "label", shown: {}, values: new Map(), isDue: false, tipFor: -1,
      leave: new AbortController(), about: "", painted: null,
    });
    this.view = new View();
    this.painter = new Painter(el("map"));
    this.legend = new Legend(el("map-legend"), () => {
      this.faint = this.legend.faint();
      this.choose();
      note(this, "replace");
      this.redraw();
    });
    this.selection = new Selection(el("map-selection"), {
      valuesOf: async (by, signal) => {
        const coloring = await this.valuesOf(by, signal, this.data, this.points);
        if (coloring) return coloring;
        throw new Error("The memory has changed since the map was drawn. Reload the page.");
      },
      cleared: () => {
        this.setLasso([]);
        el("map").focus({preventScroll: true});
      },
    });
    this.counts = (i) => !this.faint || !this.faint[i];
  }

  // --- loading ----------------------------------------------------------------------------------

  async load() {
    this.leave.abort(); // a layout that nobody waits for is given up
    this.leave = new AbortController();
    const {signal} = this.leave;
    const {method, color} = this;
    this.busy(true);
    tell("");
    this.sayProgress(signal);
    try {
      const isLaidOut = this.data && this.shown.method === method;
      const [data, coloring] = await this.asked(method, color, isLaidOut, signal);
      const query = isLaidOut && data === this.data ? this.query : await placedQuestion(method, signal);
      if (signal.aborted) return;
      this.take(data, coloring, query, {method, color});
    } catch (error) {
      if (!signal.aborted) this.back(error.message);
    }
  }

  // Layout and values of one version of the memory.
  async asked(method, color, isLaidOut, signal) {
    for (let n = 0; n < MOST_TRIES; n++) {
      const isKept = isLaidOut && n === 0;
      const data = isKept ? this.data : await (await fetched(`../map?method=${method}`, {signal})).json();
      if (!isKept) this.values.clear();
      const points = isKept ? this.points : new Points(data);
      const coloring = color === "label"
        ? this.labelsOf(data, points) : await this.valuesOf(color, signal, data, points);
      if (coloring) return [data, coloring];
    }
    throw new Error("The memory is changing. Choose the coloring again.");
  }

  labelsOf(data, points) {
    const title = el("map").dataset.label;
    const found = data.target
      ? {kind: "number", values: data.target}
      : {kind: "category", values: data.label, categories: data.classes.map(String)};
    const made = new Coloring(points, {missing: "no label", ends: null, ...found}, title);
    made.points = points;
    return made;
  }

  // Values of the rows of a layout; null if the memory has changed since.
  async valuesOf(color, signal, layout, points) {
    const known = this.values.get(color);
    if (known?.points === points) return known;
    const query = color.startsWith("column:")
      ? `by=column&column=${encodeURIComponent(color.slice(7))}` : `by=${color}`;
    const data = await (await fetched(`../map/values?${query}`, {signal})).json();
    if (data.memory_version !== layout.memory_version) return null;
    const coloring = new Coloring(points, data, TITLES[color] ?? color.slice(7));
    coloring.points = points;
    this.values.set(color, coloring);
    return coloring;
  }

  take(data, coloring, query, shown) {
    const isNew = data !== this.data;
    const isOther = shown.color !== this.shown.color;
    Object.assign(this, {data, coloring, query, shown, points: coloring.points});
    if (isNew) {
      this.labels = this.labelsOf(data, this.points);
      this.near = new Set(query?.neighbors ?? []);
      this.nearPoints = this.points.id.flatMap((id, i) => (this.near.has(id) ? [i] : []));
      this.drawn = this.cross = null;
      this.measure();
    }
    const variance = data.explained_variance;
    const share = variance ? `; the axes hold ${(100 * (variance[0] + variance[1])).toFixed(0)} % of the keys' variance` : "";
    const part = data.id.length < data.n_remembered ? ` of ${counted(data.n_remembered)}, drawn at random` : "";
    this.about = `${counted(data.id.length)} rows${part}, version ${data.memory_version} of the memory${share}.`
      + (query ? " The cross is the row that was asked about; rings mark its neighbors." : "");
    this.busy(false);
    el("map-about").textContent = this.about;
    if (this.isRestoring) restore(this);
    else {
      if (isOther) this.legend.only.clear();
      if (isNew) {
        this.view.whole();
        this.lasso = [];
      }
      note(this, "replace");
    }
    this.recolor();
    this.choose();
  }

  back(message) {
    this.busy(false);
    tell(message);
    el("map-about").textContent = this.about || "There is no layout yet. Choose one.";
    this.isRestoring = false;
    if (!this.data) return;
    Object.assign(this, this.shown); // what is shown stays, and so do its buttons
    this.check();
  }

  check() {
    document.querySelector(`#map-form input[value=${this.method}]`).checked = true;
    el("map-form").elements.color.value = this.color;
  }

  cancel() {
    this.leave.abort();
    this.back("");
  }

  // The former layout stays, faint, until the one that was chosen is there.
  busy(on) {
    el("map-frame").classList.toggle("stale", on);
    el("map-busy").hidden = !on;
    el("map-progress").removeAttribute("value");
  }

  async sayProgress(signal) {
    const isLayout = this.shown.method !== this.method;
    while (!signal.aborted && !el("map-busy").hidden) {
      const response = isLayout ? await fetch("map/progress", {headers: keyHeaders()}).catch(() => null) : null;
      const {progress} = response?.ok ? await response.json() : {progress: null};
      if (signal.aborted || el("map-busy").hidden) return;
      if (progress !== null) el("map-progress").value = progress;
      const share = progress === null ? "" : ` ${Math.round(100 * progress)} % done.`;
      el("map-about").textContent = `${isLayout ? "Laying out the memory" : "Computing the colors"} ...${share}`;
      await new Promise((done) => setTimeout(done, 700));
    }
  }

  // --- drawing ----------------------------------------------------------------------------------

  measure() {
    const {clientWidth, clientHeight} = el("map-frame");
    this.painter.resize(clientWidth, clientHeight, Math.min(devicePixelRatio || 1, 2));
    this.view.resize(clientWidth, clientHeight);
    if (this.points) this.view.fit(this.points, this.query ? [[this.query.x, this.query.y]] : []);
    this.redraw();
  }

  recolor() {
    if (!this.coloring) return;
    this.colors = themeColors();
    this.tints = this.coloring.tint(this.colors);
    this.legend.show(this.coloring, this.colors);
    this.faint = this.legend.faint();
    this.redraw();
  }

  redraw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (this.tints) this.draw();
    });
  }

  draw() {
    const {view, painter, points} = this;
    const {none, paper} = this.colors;
    painter.paint(points, view, {...this.tints, isFaint: this.faint, faint: none, paper});
    el("map").classList.toggle("enlarged", view.zoom > 1);
    const marks = new Marks(painter.pen, css(paper));
    const color = ink("--ink");
    const at = (i) => view.toScreen(points.x[i], points.y[i]);
    const around = Math.max(7, painter.radius(points.n, view.zoom) / painter.ratio + 3);
    const corners = (this.drawn ?? this.lasso).map((one) => view.toScreen(...one));
    if (corners.length > 1) marks.outline(corners, !this.drawn, color);
    else if (this.drawn?.length) marks.plus(corners[0], 5, color);
    else if (corners.length) for (const i of this.selection.chosen) marks.ring(at(i), around, color);
    if (this.cross) marks.plus(view.toScreen(...this.cross), 9, color);
    if (this.tipFor >= 0) marks.ring(at(this.tipFor), around, color);
    if (!this.query) return;
    for (const i of this.nearPoints) marks.ring(at(i), around + 1, ink("--mark"));
    const place = view.toScreen(this.query.x, this.query.y);
    marks.plus(place, 12, ink("--mark"), 3);
    const said = this.data.target ? short(this.query.label) : String(this.query.label);
    marks.text(`asked: ${said.length > 40 ? `${said.slice(0, 40)}...` : said}`, place, color, view.width);
  }

  // --- selection --------------------------------------------------------------------------------

  // A lasso of one corner stands for the rows nearest to it.
  choose() {
    if (!this.lasso.length) {
      this.selection.clear();
      return;
    }
    const chosen = this.lasso.length === 1
      ? this.points.nearestFew(...this.lasso[0], N_NEAREST, this.counts)
      : this.points.inside(this.lasso, this.counts);
    this.selection.show(chosen, this.points, this.labels, this.colors);
    el("map-said").textContent = `${chosen.length} rows are selected.`;
  }

  setLasso(corners) {
    this.lasso = outlined(corners, this.points.extent / this.view.zoom);
    this.drawn = null;
    this.choose();
    if (!corners.length) el("map-said").textContent = "Nothing is selected.";
    else el("map-selection").scrollIntoView({block: "nearest"});
    note(this, "push");
    this.redraw();
  }
}

async function placedQuestion(method, signal) {
  const question = sessionStorage.getItem(QUESTION);
  if (!question) return null;
  const placed = await fetch(`map/query?method=${method}`, {
    signal,
    method: "POST",
    body: question,
    headers: {"Content-Type": "application/json", ...keyHeaders()},
  });
  if (placed.ok) return placed.json();
  if ([404, 422].includes(placed.status)) sessionStorage.removeItem(QUESTION); // of a former model
  return null;
}

document.addEventListener("htmx:afterSettle", () => {
  const canvas = el("map");
  if (!canvas || canvas.dataset.ready) return;
  canvas.dataset.ready = "yes";
  map = new MemoryMap();
  followPointer(map, canvas);
  followKeys(map, canvas);
  followPage(map);
  map.measure();
  openAddress(map);
});
