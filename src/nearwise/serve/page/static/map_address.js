// The address of the map: layout, coloring, shown classes, part in sight and lasso.
"use strict";

function note(map, how) {
  if (!map.data) return;
  const digits = Math.min(12, Math.max(0, 4 - Math.floor(Math.log10(map.points.extent))));
  const written = (values) => values.map((value) => Number(value.toFixed(digits))).join("_");
  const state = new URLSearchParams();
  if (map.method !== "pca") state.set("method", map.method);
  if (map.color !== "label") state.set("color", map.color);
  for (const i of map.legend.only) state.append("only", map.coloring.categories[i]);
  const {x, y, zoom} = map.view;
  if (zoom > 1) state.set("view", `${written([x, y])}_${Number(zoom.toPrecision(4))}`);
  if (map.lasso.length) state.set("lasso", map.lasso.map(written).join("*"));
  const query = state.toString();
  history[`${how}State`](null, "", location.pathname + (query ? `?${query}` : ""));
}

// Open what the address says.
function openAddress(map) {
  const state = new URLSearchParams(location.search);
  map.method = state.get("method") === "tsne" ? "tsne" : "pca";
  map.color = state.get("color") ?? "label";
  map.isRestoring = true;
  map.check();
  if (el("map-form").elements.color.selectedIndex < 0) map.color = "label"; // of another model
  map.check();
  map.load();
}

function restore(map) {
  map.isRestoring = false;
  const state = new URLSearchParams(location.search);
  const numbers = (text) => text.split("_").map(Number);
  const sound = (values, n) => values.length === n && values.every(Number.isFinite);
  const named = state.getAll("only").map((name) => (map.coloring.categories ?? []).indexOf(name));
  map.legend.only = new Set(named.filter((i) => i >= 0));
  const [x, y, zoom] = numbers(state.get("view") ?? "");
  map.view.whole();
  if (sound([x, y, zoom], 3) && zoom >= 1) {
    Object.assign(map.view, {x, y, zoom: Math.min(zoom, MOST_ZOOM)});
    map.view.keepInside();
  }
  const corners = (state.get("lasso") ?? "").split("*").map(numbers);
  map.lasso = corners.every((one) => sound(one, 2)) ? corners : [];
}
