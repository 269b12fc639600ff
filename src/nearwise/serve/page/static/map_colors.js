// Colors of the map: hues and shapes of classes, a ramp of numbers, and the legend of both.
"use strict";

const N_STEPS = 64; // of the ramp
const SEARCHED = 12; // a legend of more entries has a search field
const QUANTILES = [0, 0.25, 0.5, 0.75, 1];
const darkTheme = matchMedia("(prefers-color-scheme: dark)");

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const packed = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
const css = (pixel) => `rgb(${pixel & 0xff} ${(pixel >>> 8) & 0xff} ${(pixel >>> 16) & 0xff})`;

function themeColors() {
  const palette = JSON.parse(el("map").dataset.palette)[darkTheme.matches ? "dark" : "light"];
  const stops = palette.ramp.map(rgb);
  const ramp = Uint32Array.from({length: N_STEPS}, (_, step) => {
    const at = (step / (N_STEPS - 1)) * (stops.length - 1);
    const [from, to] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
    return packed(from.map((part, i) => Math.round(part + (to[i] - part) * (at % 1))));
  });
  const hues = palette.hues.map((hue) => packed(rgb(hue)));
  return {ramp, hues, none: packed(rgb(palette.none)), paper: packed(rgb(palette.paper))};
}

// Classes beyond the hues repeat them in another shape; beyond all shapes both are repeated.
const look = (category, hues) => ({
  color: hues[category % hues.length], shape: Math.floor(category / hues.length) % RING,
});

function short(value, kind) {
  if (kind === "date") return new Date(value * 86400000).toISOString().slice(0, 10);
  const rounded = Number(value.toPrecision(4));
  return Math.abs(rounded) >= 1e9 ? rounded.toExponential() : String(rounded);
}

const counted = (n) => n.toLocaleString("en-US");

// A coloring: a value per point, in the order of `Points`; NaN where missing.
class Coloring {
  constructor(points, {kind, values, categories, missing, ends}, title) {
    Object.assign(this, {kind, categories, missing, title});
    this.values = Float64Array.from(points.reordered(values), (value) => value ?? NaN);
    this.known = this.values.filter((value) => !Number.isNaN(value));
    if (kind === "category") {
      this.counts = new Uint32Array(categories.length);
      for (const value of this.known) this.counts[value]++;
    } else {
      this.known.sort();
      this.ends = ends;
    }
  }

  get isCategory() {
    return this.kind === "category";
  }

  // Where a number lies on the ramp, in [0, 1]: between fixed ends, or by its rank.
  place(value) {
    if (this.ends) return (value - this.ends[0]) / (this.ends[1] - this.ends[0]);
    const most = this.known.length - 1;
    const [first, after] = [firstAbove(this.known, value, false), firstAbove(this.known, value, true)];
    return most > 0 ? (first + after - 1) / 2 / most : 0.5;
  }

  // Values at the ticks of the ramp.
  ticks() {
    if (this.ends) return QUANTILES.map((q) => this.ends[0] + q * (this.ends[1] - this.ends[0]));
    return QUANTILES.map((q) => this.known[Math.round(q * (this.known.length - 1))]);
  }

  tint({ramp, hues, none}) {
    const color = new Uint32Array(this.values.length);
    const shape = new Uint8Array(this.values.length);
    const places = new Map(); // of numbers seen before
    this.values.forEach((value, i) => {
      if (Number.isNaN(value)) [color[i], shape[i]] = [none, RING];
      else if (this.isCategory) ({color: color[i], shape: shape[i]} = look(value, hues));
      else {
        let place = places.get(value);
        if (place === undefined) places.set(value, place = Math.min(Math.max(this.place(value), 0), 1));
        color[i] = ramp[Math.round(place * (N_STEPS - 1))];
      }
    });
    return {color, shape};
  }
}

// Place of the first value that is above (or, unless `above`, at least) a number in sorted values.
function firstAbove(sorted, value, above) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (above ? sorted[middle] <= value : sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// --- legend -------------------------------------------------------------------------------------

function made(name, attributes = {}, ...children) {
  const one = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  one.append(...children);
  return one;
}

// A name of up to two lines; a longer one is whole where the pointer rests on it.
const named = (text) => made("span", {class: "name", title: text}, text);

// The shape of a point as the map draws it.
function swatch(color, shape) {
  const canvas = made("canvas", {width: 24, height: 24, "aria-hidden": "true"});
  const pen = canvas.getContext("2d");
  pen.fillStyle = css(color);
  for (let y = 0; y < 24; y++) {
    for (let x = 0; x < 24; x++) if (SHAPES[shape](x - 11.5, y - 11.5, 10)) pen.fillRect(x, y, 1, 1);
  }
  return canvas;
}

class Legend {
  constructor(place, changed) {
    Object.assign(this, {place, changed, only: new Set(), order: "count", sought: ""});
  }

  show(coloring, colors) {
    Object.assign(this, {coloring, colors});
    this.place.replaceChildren(made("h2", {}, coloring.title));
    if (coloring.isCategory) this.showCategories();
    else this.showRamp();
    const n = coloring.values.length - coloring.known.length;
    if (!n) return;
    const {none} = colors;
    const said = made("p", {class: "entry"}, swatch(none, RING), `${coloring.missing}: ${counted(n)}`);
    this.place.append(said);
  }

  showRamp() {
    const {coloring, colors} = this;
    if (!coloring.known.length) return;
    const scale = made("div", {class: "scale"});
    const bar = made("canvas", {width: 1, height: N_STEPS, "aria-hidden": "true"});
    const pen = bar.getContext("2d");
    colors.ramp.forEach((color, step) => {
      pen.fillStyle = css(color);
      pen.fillRect(0, N_STEPS - 1 - step, 1, 1);
    });
    const named = coloring.ends ? QUANTILES.map(() => "") : ["least", "a quarter below", "median", "a quarter above", "most"];
    const ticks = coloring.ticks().map((value, i) => made("li", {}, `${short(value, coloring.kind)} `, made("small", {}, named[i])));
    scale.append(bar, made("ol", {}, ...ticks.reverse()));
    this.place.append(scale);
  }

  showCategories() {
    const {categories} = this.coloring;
    const tools = made("div", {class: "pick"});
    if (categories.length > 2) {
      const order = made("select", {"aria-label": "Order of the legend"}, new Option("by count", "count"), new Option("by name", "name"));
      order.value = this.order;
      order.addEventListener("change", () => {
        this.order = order.value;
        this.list();
      });
      tools.append(order);
    }
    if (categories.length > SEARCHED) {
      const search = made("input", {type: "search", placeholder: "Search", "aria-label": "Search the legend"});
      search.value = this.sought;
      search.addEventListener("input", () => {
        this.sought = search.value;
        this.list();
      });
      tools.append(search);
    } else this.sought = "";
    this.all = made("button", {type: "button"}, "Show all");
    this.all.addEventListener("click", () => {
      this.only.clear();
      this.list();
      this.place.querySelector(".entries button")?.focus();
      this.changed();
    });
    tools.append(this.all);
    this.entries = made("ul", {class: "entries"});
    this.place.append(tools, this.entries);
    this.list();
  }

  list() {
    const {categories, counts} = this.coloring;
    const sought = this.sought.trim().toLowerCase();
    const shown = categories.map((_, i) => i).filter((i) => categories[i].toLowerCase().includes(sought));
    const byName = new Intl.Collator(undefined, {numeric: true}).compare;
    shown.sort((a, b) => (this.order === "count" && counts[b] - counts[a]) || byName(categories[a], categories[b]));
    this.all.hidden = !this.only.size;
    this.entries.replaceChildren(...shown.map((i) => this.entry(i)));
    if (!shown.length) this.entries.append(made("li", {}, "No entry has this text."));
  }

  entry(i) {
    const {color, shape} = look(i, this.colors.hues);
    const name = named(this.coloring.categories[i]);
    const count = made("span", {class: "number"}, counted(this.coloring.counts[i]));
    const button = made("button", {type: "button", class: "entry", "aria-pressed": this.only.has(i)}, swatch(color, shape), name, " ", count);
    button.addEventListener("click", () => {
      if (!this.only.delete(i)) this.only.add(i);
      button.setAttribute("aria-pressed", this.only.has(i));
      this.all.hidden = !this.only.size;
      this.changed();
    });
    return made("li", {}, button);
  }

  // Points of classes that are not shown alone are faint; null if all are shown.
  faint() {
    if (!this.only.size || !this.coloring.isCategory) return null;
    return Uint8Array.from(this.coloring.values, (value) => (this.only.has(value) ? 0 : 1));
  }
}
