// Points of the map in typed arrays: where they are, which is nearest, which are inside a lasso.
"use strict";

// The order in which points are drawn is random and fixed, so that no class lies over another.
function shuffled(n) {
  const order = Uint32Array.from({length: n}, (_, i) => i);
  let state = 1;
  for (let i = n - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

function endsOf(values, more = []) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of [values, more]) {
    for (const value of list) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 0];
}

class Points {
  constructor({id, x, y}) {
    this.n = id.length;
    this.order = shuffled(this.n); // place here -> place in what the service sends
    this.id = this.reordered(id);
    this.x = Float64Array.from(this.reordered(x));
    this.y = Float64Array.from(this.reordered(y));
    [this.left, this.right] = endsOf(this.x);
    [this.low, this.high] = endsOf(this.y);
    this.extent = Math.max(this.right - this.left, this.high - this.low) || 1;
    this.sort();
  }

  reordered(values) {
    return Array.from(this.order, (place) => values[place]);
  }

  // Places by cells of a grid: those of cell c are placed[start[c]] to placed[start[c + 1] - 1].
  sort() {
    this.side = Math.min(256, Math.max(1, Math.ceil(Math.sqrt(this.n / 4))));
    const cells = new Uint32Array(this.n);
    this.start = new Uint32Array(this.side ** 2 + 1);
    for (let i = 0; i < this.n; i++) {
      cells[i] = this.row(this.y[i], this.low) * this.side + this.row(this.x[i], this.left);
      this.start[cells[i] + 1]++;
    }
    for (let c = 0; c < this.side ** 2; c++) this.start[c + 1] += this.start[c];
    const next = this.start.slice();
    this.placed = new Uint32Array(this.n);
    for (let i = 0; i < this.n; i++) this.placed[next[cells[i]]++] = i;
  }

  row(value, from) {
    const at = Math.floor(((value - from) / this.extent) * this.side);
    return Math.min(Math.max(at, 0), this.side - 1);
  }

  // Nearest point within a distance, among those that count; -1 if there is none.
  nearest(x, y, limit, counts) {
    const [column, row] = [this.row(x, this.left), this.row(y, this.low)];
    let best = -1;
    let least = limit ** 2;
    for (let ring = 0; ring < this.side; ring++) {
      const reach = ((ring - 1) * this.extent) / this.side; // nothing in this ring is nearer
      if (reach > 0 && reach ** 2 > least) break;
      for (let r = Math.max(0, row - ring); r <= Math.min(this.side - 1, row + ring); r++) {
        const step = Math.abs(r - row) === ring ? 1 : 2 * ring || 1;
        for (let c = column - ring; c <= column + ring; c += step) {
          if (c < 0 || c >= this.side) continue;
          const cell = r * this.side + c;
          for (let at = this.start[cell]; at < this.start[cell + 1]; at++) {
            const i = this.placed[at];
            const gap = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
            if (gap <= least && counts(i)) [best, least] = [i, gap];
          }
        }
      }
    }
    return best;
  }

  nearestFew(x, y, n, counts) {
    const gaps = new Float64Array(this.n);
    const found = [];
    for (let i = 0; i < this.n; i++) {
      gaps[i] = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      if (counts(i)) found.push(i);
    }
    return found.sort((a, b) => gaps[a] - gaps[b]).slice(0, n);
  }

  inside(corners, counts) {
    const [left, right] = endsOf(corners.map(([x]) => x));
    const [low, high] = endsOf(corners.map(([, y]) => y));
    const found = [];
    for (let i = 0; i < this.n; i++) {
      const [x, y] = [this.x[i], this.y[i]];
      if (x < left || x > right || y < low || y > high || !counts(i)) continue;
      if (isInside(x, y, corners)) found.push(i);
    }
    return found;
  }
}

function isInside(x, y, corners) {
  let odd = false;
  for (let i = 0, j = corners.length - 1; i < corners.length; j = i++) {
    const [xi, yi] = corners[i];
    const [xj, yj] = corners[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

// --- view ---------------------------------------------------------------------------------------

const MOST_ZOOM = 2000;
const MARGIN = 16; // CSS pixels

// Part of the map in sight: its middle in the units of the points, and how often it is enlarged.
class View {
  constructor() {
    Object.assign(this, {x: 0, y: 0, zoom: 1, width: 1, height: 1, base: 1});
    this.box = [0, 0, 0, 0];
  }

  fit(points, more) {
    const [left, right] = endsOf([points.left, points.right], more.map(([x]) => x));
    const [low, high] = endsOf([points.low, points.high], more.map(([, y]) => y));
    this.box = [left, right, low, high];
    this.resize(this.width, this.height);
  }

  resize(width, height) {
    Object.assign(this, {width: Math.max(width, 1), height: Math.max(height, 1)});
    const [left, right, low, high] = this.box;
    const scales = [
      (this.width - 2 * MARGIN) / (right - left), (this.height - 2 * MARGIN) / (high - low),
    ];
    const finite = scales.filter((scale) => Number.isFinite(scale));
    this.base = finite.length ? Math.max(Math.min(...finite), 1e-12) : 1; // pixels per unit
    this.keepInside();
  }

  whole() {
    const [left, right, low, high] = this.box;
    Object.assign(this, {x: (left + right) / 2, y: (low + high) / 2, zoom: 1});
  }

  keepInside() {
    if (this.zoom <= 1.0001) return this.whole();
    const [left, right, low, high] = this.box;
    this.x = Math.min(Math.max(this.x, left), right);
    this.y = Math.min(Math.max(this.y, low), high);
  }

  get scale() {
    return this.base * this.zoom;
  }

  toScreen(x, y) {
    return [(x - this.x) * this.scale + this.width / 2, this.height / 2 - (y - this.y) * this.scale];
  }

  toData(x, y) {
    return [(x - this.width / 2) / this.scale + this.x, (this.height / 2 - y) / this.scale + this.y];
  }

  move(x, y) {
    this.x -= x / this.scale;
    this.y += y / this.scale;
    this.keepInside();
  }

  // What is at a place of the screen stays there; returns whether anything changed.
  enlarge(factor, x = this.width / 2, y = this.height / 2) {
    const before = this.zoom;
    const [atX, atY] = this.toData(x, y);
    this.zoom = Math.min(Math.max(this.zoom * factor, 1), MOST_ZOOM);
    const [nowX, nowY] = this.toData(x, y);
    this.x += atX - nowX;
    this.y += atY - nowY;
    this.keepInside();
    return this.zoom !== before;
  }
}
