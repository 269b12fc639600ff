// Drawing of the map: points as pixels, and marks upon them.
"use strict";

const SHAPES = [
  (x, y, r) => Math.hypot(x, y) <= r,
  (x, y, r) => y <= 0.75 * r && y >= -1.1 * r && Math.abs(x) <= 0.6 * (y + 1.1 * r), // triangle
  (x, y, r) => Math.abs(Math.abs(x) - Math.abs(y)) <= 0.5 * r && Math.max(Math.abs(x), Math.abs(y)) <= r,
  (x, y, r) => Math.max(Math.abs(x), Math.abs(y)) <= 0.85 * r, // square
  (x, y, r) => Math.hypot(x, y) <= r && Math.hypot(x, y) >= 0.55 * r, // ring: no value
];
const RING = SHAPES.length - 1;
const REACH = 16; // most pixels of a point on each side of its middle
const EDGE = 2 * REACH; // pixels around the canvas, so that points are cut off at its edge
const FAINT = 0.16; // opacity of points beside those of the chosen classes
const SAMPLES = 4; // per pixel and axis

// Pixels that a shape covers: their offsets in rows of a stride, and how much, of 256.
function stamp(shape, radius, opacity, stride) {
  const [offsets, cover] = [[], []];
  const reach = Math.min(Math.ceil(1.2 * radius) + 1, REACH);
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      let n = 0;
      for (let i = 0; i < SAMPLES ** 2; i++) {
        const dx = ((i % SAMPLES) + 0.5) / SAMPLES - 0.5;
        const dy = (Math.floor(i / SAMPLES) + 0.5) / SAMPLES - 0.5;
        n += SHAPES[shape](x + dx, y + dy, radius);
      }
      if (!n) continue;
      offsets.push(y * stride + x);
      cover.push(Math.round((n / SAMPLES ** 2) * opacity * 256));
    }
  }
  return {offsets: Int32Array.from(offsets), cover: Int32Array.from(cover)};
}

// Draws points into the pixels of a canvas; much faster than a path per point.
class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d", {alpha: false, willReadFrequently: true});
  }

  resize(width, height, ratio) {
    this.ratio = ratio;
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    const [wide, high] = [this.canvas.width + 2 * EDGE, this.canvas.height + 2 * EDGE];
    this.image = new ImageData(wide, high);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // Radius of a point in device pixels: smaller the more there are, larger the nearer one looks.
  radius(n, zoom) {
    const base = n > 50000 ? 1.2 : n > 10000 ? 1.5 : n > 2000 ? 2.2 : 3.4;
    return Math.min(base * zoom ** 0.35, 7) * this.ratio;
  }

  paint(points, view, {color, shape, isFaint, faint, paper}) {
    this.pixels.fill(paper);
    const radius = Math.min(this.radius(points.n, view.zoom), REACH / 1.3);
    const stride = this.image.width;
    const full = SHAPES.map((_, i) => stamp(i, radius, 1, stride));
    if (isFaint) {
      const pale = SHAPES.map((_, i) => stamp(i, radius, FAINT, stride));
      this.pass(points, view, pale, {shape, isFaint, wanted: 1, faint});
    }
    this.pass(points, view, full, {shape, isFaint, wanted: 0, color});
    this.pen.setTransform(1, 0, 0, 1, 0, 0);
    this.pen.putImageData(this.image, -EDGE, -EDGE);
    this.pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0); // what is drawn next is in CSS pixels
  }

  pass(points, view, stamps, {shape, isFaint, wanted, color, faint}) {
    const {pixels, ratio} = this;
    const {x, y, n} = points;
    const [wide, high] = [this.image.width, this.image.height];
    const scale = view.scale * ratio;
    const right = (view.width / 2) * ratio + EDGE - view.x * scale;
    const down = (view.height / 2) * ratio + EDGE + view.y * scale;
    for (let i = 0; i < n; i++) {
      if (isFaint && isFaint[i] !== wanted) continue;
      const px = Math.round(x[i] * scale + right);
      const py = Math.round(down - y[i] * scale);
      if (px < REACH || py < REACH || px >= wide - REACH || py >= high - REACH) continue;
      const {offsets, cover} = stamps[shape[i]];
      blend(pixels, py * wide + px, offsets, cover, color ? color[i] : faint);
    }
  }
}

function blend(pixels, at, offsets, cover, color) {
  const [even, odd] = [color & 0xff00ff, (color >>> 8) & 0xff];
  for (let k = 0; k < offsets.length; k++) {
    const share = cover[k];
    const place = at + offsets[k];
    const old = pixels[place];
    const mixedEven = (((old & 0xff00ff) * (256 - share) + even * share) >>> 8) & 0xff00ff;
    const mixedOdd = ((((old >>> 8) & 0xff) * (256 - share) + odd * share) >>> 8) & 0xff;
    pixels[place] = (0xff000000 | mixedEven | (mixedOdd << 8)) >>> 0;
  }
}

// --- marks --------------------------------------------------------------------------------------

// Strokes that stand out from the points below: each with a rim in the color of the paper.
class Marks {
  constructor(pen, paper) {
    Object.assign(this, {pen, paper});
  }

  stroke(color, width, trace) {
    const {pen, paper} = this;
    for (const [style, wide] of [[paper, width + 3], [color, width]]) {
      [pen.strokeStyle, pen.lineWidth] = [style, wide];
      pen.beginPath();
      trace(pen);
      pen.stroke();
    }
  }

  outline(corners, isClosed, color) {
    this.stroke(color, 2, (pen) => {
      corners.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      if (isClosed) pen.closePath();
    });
  }

  plus([x, y], size, color, width = 2) {
    this.stroke(color, width, (pen) => {
      pen.moveTo(x - size, y);
      pen.lineTo(x + size, y);
      pen.moveTo(x, y - size);
      pen.lineTo(x, y + size);
    });
  }

  ring([x, y], size, color) {
    this.stroke(color, 2, (pen) => pen.arc(x, y, size, 0, 2 * Math.PI));
  }

  // Text beside a place: on its right, or on its left where there is no room.
  text(text, [x, y], color, width) {
    const {pen, paper} = this;
    pen.font = "600 14px system-ui, sans-serif";
    const isLeft = x + 18 + pen.measureText(text).width > width;
    pen.textAlign = isLeft ? "right" : "left";
    [pen.strokeStyle, pen.fillStyle, pen.lineWidth] = [paper, color, 4];
    const at = [x + (isLeft ? -14 : 14), y - 8];
    pen.strokeText(text, ...at);
    pen.fillText(text, ...at);
  }
}
