// The map: points on a canvas, a tip for the one below the pointer, a lasso, a cross for the keyboard.
"use strict";

const HUES = [
  "#2463b5", "#c2410c", "#15803d", "#a21caf", "#b91c1c", "#0e7490", "#7c5c00", "#6d28d9", "#be185d",
  "#4b5563",
];
const OTHERS = "#a8adb5";
const map = {data: null, method: "pca", color: "label", lasso: [], cross: null, query: null, at: []};
let loads = 0;
let leave = new AbortController();
let about = "";
let tipFor = -1;
let tipTimer = 0;

const el = (id) => document.getElementById(id);
const ink = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

function shade(share) {
  const from = [36, 99, 181];
  const to = [214, 40, 40];
  const mixed = from.map((part, i) => Math.round(part + (to[i] - part) * share));
  return `rgb(${mixed.join(" ")})`;
}

const ends = (values) =>
  values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);

function colors() {
  const {data, color} = map;
  if (color === "label" && data.target) {
    const [low, high] = ends(data.target);
    legend([[shade(0), String(low)], [shade(1), String(high)]]);
    return data.target.map((target) => shade((target - low) / (high - low || 1)));
  }
  if (color === "label") {
    const labels = [...new Set(data.label)];
    const counts = new Map();
    for (const label of data.label) counts.set(label, (counts.get(label) ?? 0) + 1);
    if (labels.length > HUES.length) labels.sort((a, b) => counts.get(b) - counts.get(a));
    const shown = labels.slice(0, HUES.length);
    const hue = new Map(shown.map((label, i) => [label, HUES[i]]));
    const entries = shown.map((label, i) => [HUES[i], String(label)]);
    if (shown.length < labels.length) entries.push([OTHERS, `${labels.length - shown.length} others`]);
    legend(entries);
    return data.label.map((label) => hue.get(label) ?? OTHERS);
  }
  const values = color === "doubt" ? data.doubt : data.version;
  const most = color === "doubt" ? 1 : values.reduce((a, b) => Math.max(a, b), 0);
  if (color === "doubt") {
    legend([[shade(0), "wrong with probability 0"], [shade(0.5), "½"], [shade(1), "1"]]);
  } else {
    legend([[shade(0), "came with the fit"], ...(most ? [[shade(1), `came with change ${most}`]] : [])]);
  }
  return values.map((value) => shade(most ? value / most : 0));
}

function legend(entries) {
  const items = entries.map(([color, text]) => {
    const item = document.createElement("li");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    for (const [name, value] of [["cx", 6], ["cy", 6], ["r", 6], ["fill", color]]) dot.setAttribute(name, value);
    svg.append(dot);
    item.append(svg, text);
    return item;
  });
  el("map-legend").replaceChildren(...items);
}

function place() {
  const canvas = el("map");
  const ratio = devicePixelRatio || 1;
  const {width, height} = canvas.getBoundingClientRect();
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const {x, y} = map.data;
  const points = map.query ? [[map.query.x, map.query.y]] : [];
  const [left, right] = ends(x.concat(points.map((p) => p[0])));
  const [low, high] = ends(y.concat(points.map((p) => p[1])));
  const margin = 14;
  map.toX = (v) => margin + ((v - left) / (right - left || 1)) * (width - 2 * margin);
  map.toY = (v) => height - margin - ((v - low) / (high - low || 1)) * (height - 2 * margin);
  map.at = x.map((v, i) => [map.toX(v), map.toY(y[i])]);
}

function draw() {
  if (!map.data) return;
  const canvas = el("map");
  const pen = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const size = map.at.length > 5000 ? 1.6 : 3;
  pen.globalAlpha = map.at.length > 5000 ? 0.6 : 0.85;
  map.at.forEach(([x, y], i) => {
    pen.fillStyle = map.colors[i];
    pen.fillRect(x - size, y - size, 2 * size, 2 * size);
  });
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  pen.strokeStyle = ink("--ink");
  if (map.lasso.length > 1) {
    pen.beginPath();
    map.lasso.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.stroke();
  }
  if (map.cross) mark(pen, map.cross, 9);
  if (map.query) {
    const at = [map.toX(map.query.x), map.toY(map.query.y)];
    pen.strokeStyle = ink("--mark");
    pen.lineWidth = 3;
    mark(pen, at, 12);
    pen.fillStyle = ink("--ink");
    pen.font = "14px system-ui, sans-serif";
    const said = map.data.target ? Number(map.query.label.toPrecision(6)) : map.query.label;
    pen.fillText(`asked: ${said}`, at[0] + 14, at[1] - 8);
  }
}

function mark(pen, [x, y], size) {
  pen.beginPath();
  pen.moveTo(x - size, y);
  pen.lineTo(x + size, y);
  pen.moveTo(x, y - size);
  pen.lineTo(x, y + size);
  pen.stroke();
}

function nearest(x, y) {
  let best = -1;
  let least = Infinity;
  map.at.forEach((at, i) => {
    const gap = (at[0] - x) ** 2 + (at[1] - y) ** 2;
    if (gap < least) [best, least] = [i, gap];
  });
  return [best, Math.sqrt(least)];
}

async function fetched(path, options = {}) {
  for (;;) {
    const headers = {...keyHeaders(), ...(options.headers ?? {})};
    const response = await fetch(path, {...options, headers});
    if (response.ok) return response;
    if (response.status !== 504) throw new Error(problemIn(response.status, await response.text()));
  } // it goes on meanwhile
}

async function sayProgress(isPresent) {
  const bar = el("map-progress");
  while (isPresent()) {
    const response = await fetch("/page/map/progress", {headers: keyHeaders()}).catch(() => null);
    if (!isPresent()) return;
    const {progress} = response?.ok ? await response.json() : {progress: null};
    if (progress === null) bar.removeAttribute("value");
    else bar.value = progress;
    const share = progress === null ? "" : ` ${Math.round(100 * progress)} % done.`;
    el("map-about").textContent = `Laying out the memory ...${share}`;
    await new Promise((done) => setTimeout(done, 700));
  }
}

async function load() {
  const mine = ++loads; // an answer that comes after a later question is of no use
  leave.abort(); // a layout that nobody waits for is given up
  leave = new AbortController();
  const {signal} = leave;
  const {method, color} = map;
  busyMap(true);
  tell("");
  let data;
  let query = null;
  let isLoading = true;
  sayProgress(() => isLoading && mine === loads);
  try {
    const response = await fetched(`/map?method=${method}&doubt=${color === "doubt"}`, {signal});
    data = await response.json();
    query = await placedQuestion(method, signal);
  } catch (error) {
    isLoading = false;
    if (mine !== loads) return;
    busyMap(false);
    tell(error.message);
    if (map.data) { // what is shown stays, and so do its buttons
      map.color = map.shown.color;
      map.method = map.shown.method;
      for (const name of ["color", "method"]) {
        document.querySelector(`#map-form input[name=${name}][value=${map[name]}]`).checked = true;
      }
    }
    el("map-about").textContent = map.data ? about : "";
    return;
  }
  isLoading = false;
  if (mine !== loads) return;
  busyMap(false);
  map.data = data;
  map.query = query;
  map.shown = {method, color};
  map.colors = colors();
  place();
  draw();
  const variance = data.explained_variance;
  const share = variance ? `; the axes hold ${(100 * (variance[0] + variance[1])).toFixed(0)} % of the keys' variance` : "";
  about =
    `${data.id.length} rows, version ${data.memory_version} of the memory${share}.` +
    (query ? " The cross is the row that was asked about." : "");
  el("map-about").textContent = about;
}

// The former layout stays, faint, until the one that was chosen is there.
function busyMap(on) {
  el("map-frame").classList.toggle("stale", on);
  el("map-progress").hidden = !on;
}

async function placedQuestion(method, signal) {
  const question = sessionStorage.getItem(QUESTION);
  if (!question) return null;
  const placed = await fetch(`/page/map/query?method=${method}`, {
    signal,
    method: "POST",
    body: question,
    headers: {"Content-Type": "application/json", ...keyHeaders()},
  });
  if (placed.ok) return placed.json();
  if ([404, 422].includes(placed.status)) sessionStorage.removeItem(QUESTION); // of a former model
  return null;
}

function list(ids) {
  htmx.ajax("POST", "/page/map/rows", {
    target: "#map-rows", source: "#map-rows", values: {ids: ids.join(",")},
  });
}

function inside([x, y], corners) {
  let odd = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [xi, yi] = corners[i];
    const [xj, yj] = corners[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

function showTip(i, x, y) {
  const tip = el("map-tip");
  clearTimeout(tipTimer);
  tipFor = i;
  if (i < 0) {
    tip.hidden = true;
    return;
  }
  const id = map.data.id[i];
  tip.textContent = `row ${id}: ${(map.data.label ?? map.data.target)[i]}`;
  tip.style.left = `${Math.min(x + 12, el("map").clientWidth - 180)}px`;
  tip.style.top = `${y + 12}px`;
  tip.hidden = false;
  tipTimer = setTimeout(async () => {
    const response = await fetch(`/rows/${id}`, {headers: keyHeaders()});
    if (!response.ok || tipFor !== i) return;
    const {target, label = target, row} = await response.json();
    const unused = JSON.parse(el("map").dataset.leftOut);
    const used = Object.entries(row).filter(([name]) => !unused.includes(name));
    const cells = used.slice(0, 6).map(([name, value]) => `${name} ${value ?? "-"}`);
    tip.textContent = [`row ${id}: ${label}`, ...cells].join(", ");
  }, 150);
}

function start() {
  const canvas = el("map");
  if (!canvas || canvas.dataset.ready) return;
  canvas.dataset.ready = "yes";
  const where = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    map.lasso = [where(event)];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!map.data) return;
    const at = where(event);
    if (event.buttons && map.lasso.length) {
      map.lasso.push(at);
      draw();
      return;
    }
    const [i, gap] = nearest(...at);
    const shown = gap < 10 ? i : -1;
    if (shown !== tipFor) showTip(shown, ...at);
  });
  canvas.addEventListener("pointerup", () => {
    if (!map.data) return;
    if (map.lasso.length > 3) list(map.data.id.filter((_, i) => inside(map.at[i], map.lasso)));
    map.lasso = map.lasso.length > 3 ? map.lasso : [];
    draw();
  });
  canvas.addEventListener("pointerleave", () => showTip(-1));
  canvas.addEventListener("keydown", (event) => {
    if (!map.data) return;
    const step = event.shiftKey ? 40 : 10;
    const moves = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]};
    const box = canvas.getBoundingClientRect();
    map.cross ??= [box.width / 2, box.height / 2];
    if (event.key in moves) {
      const [x, y] = moves[event.key];
      map.cross = [
        Math.min(Math.max(map.cross[0] + x, 0), box.width), Math.min(Math.max(map.cross[1] + y, 0), box.height),
      ];
      const [i] = nearest(...map.cross);
      showTip(i, ...map.cross);
    } else if (event.key === "Enter") {
      const gaps = map.at.map(([x, y], i) => [(x - map.cross[0]) ** 2 + (y - map.cross[1]) ** 2, i]);
      gaps.sort((a, b) => a[0] - b[0]);
      list(gaps.slice(0, 20).map(([, i]) => map.data.id[i]));
    } else return;
    event.preventDefault();
    draw();
  });
  el("map-form").addEventListener("change", (event) => {
    map[event.target.name] = event.target.value;
    if (!map.data || event.target.name === "method" || (map.color === "doubt" && !map.data.doubt)) load();
    else {
      map.shown.color = map.color;
      map.colors = colors();
      draw();
    }
  });
  el("map-rows").setAttribute("hx-ext", "json-form");
  addEventListener("resize", () => {
    if (!map.data) return;
    place();
    draw();
  });
  load();
}

document.addEventListener("htmx:afterSettle", start);
