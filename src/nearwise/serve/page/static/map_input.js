// Pointer, wheel, keys and buttons of the map.
"use strict";

const NEAR = 12; // pixels between a pointer and the point that it is at
const CLICK = 4; // pixels that a click may move
let tipTimer = 0;

function followPointer(map, canvas) {
  const at = new Map(); // pointers that are down, and where
  let moved = 0;
  let isLasso = false;
  const where = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (!map.data || event.button) return;
    try {
      canvas.setPointerCapture(event.pointerId);
    } catch { // the pointer has gone already
      return;
    }
    at.set(event.pointerId, where(event));
    moved = 0;
    isLasso = at.size === 1 && (event.shiftKey || map.tool === "lasso");
    map.drawn = isLasso ? [map.view.toData(...where(event))] : null;
    showTip(map, -1);
  });

  canvas.addEventListener("pointermove", (event) => {
    if (!map.data) return;
    const now = where(event);
    const before = at.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") pointAt(map, now);
      return;
    }
    moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (at.size === 2) pinch(map, [...at], event.pointerId, before, now);
    else if (isLasso) map.drawn?.push(map.view.toData(...now));
    else map.view.move(now[0] - before[0], now[1] - before[1]);
    at.set(event.pointerId, now);
    map.redraw();
  });

  const lifted = (event) => {
    if (!at.delete(event.pointerId) || at.size) return;
    const {drawn} = map;
    map.drawn = null;
    if (isLasso && event.type === "pointerup" && moved > CLICK && drawn?.length > 2) map.setLasso(drawn);
    else if (moved <= CLICK) pointAt(map, where(event));
    else if (!isLasso) note(map, "replace");
    isLasso = false;
    map.redraw();
  };
  canvas.addEventListener("pointerup", lifted);
  canvas.addEventListener("pointercancel", lifted);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") showTip(map, -1); // a finger leaves after each tap
  });

  let noting = 0;
  canvas.addEventListener("wheel", (event) => {
    if (!map.data) return;
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const factor = Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.002));
    if (!map.view.enlarge(factor, ...where(event)) && !event.ctrlKey) return; // the page scrolls
    event.preventDefault();
    showTip(map, -1);
    clearTimeout(noting);
    noting = setTimeout(() => note(map, "replace"), 300);
    map.redraw();
  }, {passive: false});
}

// Two fingers: the map follows their middle, and their distance is the zoom.
function pinch(map, pointers, id, before, now) {
  map.drawn = null;
  const [, still] = pointers.find(([other]) => other !== id);
  const gap = ([x, y]) => Math.max(1, Math.hypot(x - still[0], y - still[1]));
  map.view.move((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  map.view.enlarge(gap(now) / gap(before), (now[0] + still[0]) / 2, (now[1] + still[1]) / 2);
}

function pointAt(map, [x, y]) {
  const i = map.points.nearest(...map.view.toData(x, y), NEAR / map.view.scale, map.counts);
  if (i !== map.tipFor) showTip(map, i, x, y);
}

function showTip(map, i, x = 0, y = 0) {
  const tip = el("map-tip");
  clearTimeout(tipTimer);
  if (i !== map.tipFor) map.redraw();
  map.tipFor = i;
  tip.hidden = i < 0;
  if (i < 0) return;
  const id = map.points.id[i];
  const {labels} = map;
  const label = labels.isCategory ? labels.categories[labels.values[i]] : short(labels.values[i]);
  tip.replaceChildren(made("strong", {}, label), made("span", {}, `row ${id}`));
  const place = () => {
    const right = x + 14 + tip.offsetWidth > map.view.width;
    const low = y + 14 + tip.offsetHeight > map.view.height;
    tip.style.left = `${Math.max(0, right ? x - 14 - tip.offsetWidth : x + 14)}px`;
    tip.style.top = `${Math.max(0, low ? y - 14 - tip.offsetHeight : y + 14)}px`;
  };
  place();
  tipTimer = setTimeout(async () => {
    const response = await fetch(`map/tip/${id}`, {headers: keyHeaders()}).catch(() => null);
    if (map.tipFor !== i) return;
    if (!response?.ok) tip.append(made("span", {}, response?.status === 404 ? "removed since" : "no values"));
    else {
      const {columns, picture} = await response.json();
      if (map.tipFor !== i) return;
      tip.append(...columns.map(([name, value]) => made("span", {}, `${name}: ${value}`)));
      if (picture) tip.append(made("img", {src: picture, alt: "", class: "small"}));
    }
    place();
    if (map.cross) el("map-said").textContent = [...tip.children].map((one) => one.textContent).join(", ");
  }, 150);
}

// --- keys ---------------------------------------------------------------------------------------

function followKeys(map, canvas) {
  const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  const others = {
    "+": () => zoomBy(map, 1.5), "=": () => zoomBy(map, 1.5), "-": () => zoomBy(map, 1 / 1.5),
    0: () => zoomBy(map, 0), " ": () => setCorner(map), Enter: () => closeLasso(map),
    Escape: () => (map.lasso.length || map.drawn) && map.setLasso([]),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!map.data || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) moveCross(map, moves[event.key], event.shiftKey ? 40 : 10);
    else if (event.key in others) others[event.key]();
    else return;
    event.preventDefault();
    map.redraw();
  });
}

function crossOf(map) {
  return (map.cross ??= [map.view.x, map.view.y]);
}

// The cross moves; where it would leave the map, the map moves.
function moveCross(map, [right, down], step) {
  const {view} = map;
  let [x, y] = view.toScreen(...crossOf(map));
  x += right * step;
  y += down * step;
  const over = [x, y].map((value, i) => {
    const most = (i ? view.height : view.width) - MARGIN / 2;
    return value - Math.min(Math.max(value, MARGIN / 2), most);
  });
  if (over[0] || over[1]) {
    view.move(-over[0], -over[1]);
    note(map, "replace");
  }
  [x, y] = [x - over[0], y - over[1]];
  map.cross = view.toData(x, y);
  showTip(map, map.points.nearest(...map.cross, Infinity, map.counts), x, y);
}

function zoomBy(map, factor) {
  const {view} = map;
  if (factor) view.enlarge(factor, ...(map.cross ? view.toScreen(...map.cross) : []));
  else view.whole();
  el("map-said").textContent = factor && view.zoom > 1 ? `Enlarged ${short(view.zoom)} times.` : "The whole map is shown.";
  showTip(map, -1);
  note(map, "replace");
  map.redraw();
}

function setCorner(map) {
  map.drawn = [...(map.drawn ?? []), [...crossOf(map)]];
  el("map-said").textContent = `Corner ${map.drawn.length} is set.`;
}

function closeLasso(map) {
  if (map.drawn && map.drawn.length < 3) {
    el("map-said").textContent = "A lasso has at least three corners.";
    return;
  }
  showTip(map, -1);
  map.setLasso(map.drawn ?? [[...crossOf(map)]]);
}

// --- page ---------------------------------------------------------------------------------------

function followPage(map) {
  el("map-form").addEventListener("change", (event) => {
    map[event.target.name] = event.target.value;
    map.isRestoring = false;
    map.load();
  });
  el("map-form").addEventListener("submit", (event) => event.preventDefault());
  el("map-cancel").addEventListener("click", () => map.cancel());
  el("map-tools").addEventListener("click", (event) => {
    const {tool, zoom} = event.target.dataset;
    if (tool) {
      map.tool = tool;
      el("map").classList.toggle("lasso", tool === "lasso");
      for (const one of el("map-tools").querySelectorAll("[data-tool]")) {
        one.setAttribute("aria-pressed", one === event.target);
      }
    } else if (zoom && map.data) zoomBy(map, Number(zoom));
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !map.lasso.length) return;
    if (!event.target.matches("input, select, textarea")) map.setLasso([]);
  });
  addEventListener("popstate", () => openAddress(map));
  darkTheme.addEventListener("change", () => {
    map.recolor();
    map.choose();
  });
  new ResizeObserver(() => map.measure()).observe(el("map-frame"));
}
