// One chart on a canvas: lines over the steps, with an axis, the marks of deaths, and the values at the pointer.

import { element, fit, setText } from "./dom.js";
import { count } from "./format.js";
import { palette } from "./theme.js";

const LEFT = 52;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 20;
const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", Home: "all", Escape: "all" };

export class Chart {
  constructor(kind, zoom, hover) {
    this.kind = kind;
    this.zoom = zoom;
    this.hover = hover; // {step | null, drag: [from, to] | null}, of all charts
    this.lines = [];
    this.marks = [];
    this.figure = element("figure", "", kind.wide ? "wide" : "");
    this.values = element("span", "", "value");
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    const caption = element("figcaption");
    const title = element("b", kind.title);
    title.append(" ", element("small", kind.unit));
    caption.append(title, this.values);
    this.figure.append(caption, this.canvas);
    this.listen();
  }

  listen() {
    const { canvas, hover, zoom } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      hover.drag = [this.at(event.offsetX), this.at(event.offsetX)];
    });
    canvas.addEventListener("pointermove", (event) => {
      hover.step = this.at(event.offsetX);
      if (hover.drag) hover.drag[1] = hover.step;
      zoom.onChange();
    });
    canvas.addEventListener("pointerup", () => {
      const [first, last] = hover.drag ? [...hover.drag].sort((a, b) => a - b) : [0, 0];
      const [from, to] = zoom.bounds();
      hover.drag = null;
      if (last - first > (to - from) / 60) zoom.set(first, last);
      else zoom.onChange();
    });
    canvas.addEventListener("pointercancel", () => { hover.drag = null; });
    canvas.addEventListener("pointerleave", () => { hover.step = null; zoom.onChange(); });
    canvas.addEventListener("dblclick", () => zoom.change("all"));
    canvas.addEventListener("wheel", (event) => {
      // Without focus the wheel scrolls the page, as everywhere else.
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      zoom.change(event.deltaY < 0 ? "in" : "out", this.at(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const what = KEYS[event.key];
      if (!what || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      zoom.change(what);
    });
  }

  at(x) {
    const [first, last] = this.zoom.bounds();
    const share = (x - LEFT) / Math.max(1, this.canvas.clientWidth - LEFT - RIGHT);
    return first + Math.max(0, Math.min(1, share)) * (last - first);
  }

  draw() {
    const context = fit(this.canvas);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const [first, last] = this.zoom.bounds();
    const shown = this.lines.map((line) => ({ ...line, points: within(line.points, first, last) }));
    const [low, high] = this.range(shown);
    const x = (step) => LEFT + ((step - first) / (last - first)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - low) / (high - low)) * (height - TOP - BOTTOM);
    this.drawAxes(context, { first, last, low, high, x, y, width, height });
    context.save();
    context.beginPath();
    context.rect(LEFT - 1, 0, width - LEFT + 1, height - BOTTOM + 2);
    context.clip();
    this.drawMarks(context, { first, last, x, height });
    for (const line of shown) drawLine(context, line, x, y, width);
    this.drawPointer(context, { x, y, height });
    context.restore();
    if (!shown.some((line) => line.points.length)) {
      context.fillStyle = palette.soft;
      context.textAlign = "center";
      context.fillText("nothing measured yet", (LEFT + width) / 2, height / 2);
    }
    this.describe(shown, first, last);
  }

  range(shown) {
    let low = Infinity;
    let high = -Infinity;
    for (const { points } of shown) {
      for (const [, value] of points) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (low > high) return [0, 1];
    if (this.kind.zero) low = Math.min(0, low);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.kind.zero && low === 0 ? 0 : low - room, this.kind.most ?? high + room];
  }

  drawAxes(context, { first, last, low, high, x, y, width, height }) {
    context.font = `11px ${palette.sans}`;
    context.lineWidth = 1;
    context.strokeStyle = palette.line;
    context.fillStyle = palette.soft;
    context.textAlign = "right";
    context.beginPath();
    for (const value of this.lines.some(({ points }) => points.length) ? ticks(low, high, 4) : []) {
      const at = Math.round(y(value)) + 0.5;
      context.moveTo(LEFT, at);
      context.lineTo(width - RIGHT, at);
      context.fillText((this.kind.tick ?? this.kind.show)(value), LEFT - 7, at + 4);
    }
    context.stroke();
    context.textAlign = "center";
    for (const step of ticks(first, last, width > 500 ? 8 : 4)) {
      if (Number.isInteger(step)) context.fillText(count(step), Math.max(LEFT + 4, Math.min(width - 16, x(step))), height - 5);
    }
  }

  // A cross stands for a death, a bar for a roll-back.
  drawMarks(context, { first, last, x, height }) {
    context.strokeStyle = palette.dead;
    for (const { step, kind } of this.marks) {
      if (step < first || step > last) continue;
      const at = x(step);
      context.globalAlpha = 0.35;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(at, TOP + 6);
      context.lineTo(at, height - BOTTOM);
      context.stroke();
      context.globalAlpha = 1;
      context.lineWidth = 2;
      context.beginPath();
      if (kind === "died") {
        context.moveTo(at - 3.5, TOP - 5); context.lineTo(at + 3.5, TOP + 2);
        context.moveTo(at + 3.5, TOP - 5); context.lineTo(at - 3.5, TOP + 2);
      } else {
        context.moveTo(at, TOP - 6); context.lineTo(at, TOP + 3);
      }
      context.stroke();
    }
  }

  drawPointer(context, { x, y, height }) {
    const { step, drag } = this.hover;
    if (drag) {
      context.fillStyle = palette.accent;
      context.globalAlpha = 0.16;
      context.fillRect(x(Math.min(...drag)), 0, x(Math.max(...drag)) - x(Math.min(...drag)), height - BOTTOM);
      context.globalAlpha = 1;
    }
    if (step === null) return;
    context.strokeStyle = palette.soft;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(step), TOP);
    context.lineTo(x(step), height - BOTTOM);
    context.stroke();
    for (const line of this.lines) {
      const found = line.faint ? null : nearest(line.points, step);
      if (!found) continue;
      context.fillStyle = palette[line.colour];
      context.beginPath();
      context.arc(x(found[0]), y(found[1]), 4, 0, 2 * Math.PI);
      context.fill();
    }
  }

  // The values at the pointer, else the newest in sight; for those who see no picture, where each line begins and ends.
  describe(shown, first, last) {
    const said = [];
    const texts = [];
    for (const line of shown) {
      const read = within(line.read ?? line.points, first, last);
      if (line.faint || !read.length) continue;
      const [step, value] = this.hover.step === null ? read.at(-1) : nearest(read, this.hover.step);
      const name = line.name ? `${line.name} ` : "";
      texts.push(`${name}${this.kind.show(value)}${this.hover.step === null ? "" : ` at ${Math.floor(step)}`}`);
      said.push(`${name}from ${this.kind.show(read[0][1])} to ${this.kind.show(read.at(-1)[1])}`);
    }
    setText(this.values, texts.join(" · "));
    const label = `${this.kind.title}, steps ${Math.ceil(first)} to ${Math.floor(last)}: ${said.join(", ") || "nothing measured yet"}`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
  }
}

function drawLine(context, { points, colour, faint, marks, stairs }, x, y, width) {
  context.strokeStyle = context.fillStyle = palette[colour];
  context.lineWidth = faint ? 1 : 2;
  context.globalAlpha = faint ? 0.35 : 1;
  context.lineJoin = "round";
  context.beginPath();
  if (points.length > 2 * width) bundle(context, points, x, y);
  else {
    points.forEach(([step, value], number) => {
      if (number && stairs) context.lineTo(x(step), y(points[number - 1][1]));
      if (number) context.lineTo(x(step), y(value));
      else context.moveTo(x(step), y(value));
    });
  }
  context.stroke();
  context.globalAlpha = 1;
  if (!faint && points.length === 1) marks = true;
  if (!marks) return;
  context.beginPath();
  for (const [step, value] of points.slice(-200)) {
    const [at, level] = [x(step), y(value)];
    context.moveTo(at, level - 4); context.lineTo(at + 4, level); context.lineTo(at, level + 4); context.lineTo(at - 4, level); context.closePath();
  }
  context.fill();
}

// More points than pixels: the lowest and the highest of each pixel, so that no peak is lost and no frame either.
function bundle(context, points, x, y) {
  let pixel = null;
  let low = 0;
  let high = 0;
  for (const [step, value] of points) {
    const at = Math.round(x(step));
    const level = y(value);
    if (at !== pixel) {
      if (pixel !== null) { context.lineTo(pixel, low); context.lineTo(pixel, high); }
      pixel = at;
      low = high = level;
    } else {
      low = Math.min(low, level);
      high = Math.max(high, level);
    }
  }
  context.lineTo(pixel, high);
}

function place(points, step) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The points in the range, and one more at each side, so that lines run on to the edges.
function within(points, first, last) {
  return points.slice(Math.max(0, place(points, first) - 1), place(points, last) + 1);
}

function nearest(points, step) {
  const at = place(points, step);
  const [before, after] = [points[at - 1], points[at]];
  if (!before || !after) return before ?? after ?? null;
  return step - before[0] <= after[0] - step ? before : after;
}

function ticks(low, high, about) {
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= 0.8 * rough);
  const found = [];
  for (let number = Math.ceil(low / size); number * size <= high; number += 1) found.push(Number((number * size).toPrecision(12)));
  return found;
}
