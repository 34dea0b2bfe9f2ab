// Curves over the steps of the run, all with one range that zooms by drag, wheel, buttons and keys.

import { bytes, colours, count, element, fitted, percent, seconds } from "./format.js";

const LEFT = 58;
const BOTTOM = 16;
const TOP = 6;

const KINDS = [
  { name: "Loss", of: (step) => step.loss, second: (step) => step.validation_loss, secondName: "validation", show: (v) => v.toFixed(3) },
  { name: "Tokens/s", of: (step) => step.tokens / Math.max(step.seconds, 1e-9), show: count, zero: true },
  { name: "Seconds a step", of: (step) => step.seconds, show: seconds, zero: true },
  { name: "Peers", of: (step) => (step.peers || []).reduce((sum, n) => sum + n, 0), show: count, zero: true },
  { name: "Utilisation", of: (step) => step.utilisation, show: percent, zero: true },
  { name: "Bytes/s of all peers", of: (step) => step.bytes_per_s ?? step.sent_bytes / Math.max(step.seconds, 1e-9), show: bytes, zero: true },
];

export class Curves {
  constructor(parent, buttons) {
    this.steps = [];
    this.range = null; // null: all; else [first, last]
    this.dirty = true;
    this.charts = KINDS.map((kind) => this.chart(parent, kind));
    for (const button of buttons) button.addEventListener("click", () => this.zoom(button.dataset.zoom));
    new ResizeObserver(() => { this.dirty = true; }).observe(parent);
  }

  chart(parent, kind) {
    const figure = element("figure");
    const caption = element("figcaption");
    const value = element("b");
    caption.append(element("span", kind.second ? `${kind.name} (dashed: ${kind.secondName})` : kind.name), value);
    const canvas = element("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    figure.append(caption, canvas);
    parent.append(figure);
    let start = null;
    canvas.addEventListener("pointerdown", (event) => { start = this.at(canvas, event.offsetX); });
    canvas.addEventListener("pointerup", (event) => {
      const end = this.at(canvas, event.offsetX);
      if (start !== null && Math.abs(end - start) >= 2) this.set(Math.min(start, end), Math.max(start, end));
      start = null;
    });
    canvas.addEventListener("dblclick", () => this.zoom("all"));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? "in" : "out", this.at(canvas, event.offsetX));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
      if (act) { event.preventDefault(); this.zoom(act); }
    });
    canvas.addEventListener("pointermove", (event) => { this.hover = this.at(canvas, event.offsetX); this.dirty = true; });
    canvas.addEventListener("pointerleave", () => { this.hover = null; this.dirty = true; });
    return { kind, canvas, value };
  }

  show(steps) {
    this.steps = steps;
    this.dirty = true;
  }

  bounds() {
    const all = this.steps.length ? [this.steps[0].step, this.steps.at(-1).step] : [0, 1];
    return this.range ?? all;
  }

  at(canvas, x) {
    const [first, last] = this.bounds();
    return Math.round(first + ((x - LEFT) / Math.max(1, canvas.clientWidth - LEFT - 4)) * (last - first));
  }

  set(first, last) {
    const all = this.steps.length ? [this.steps[0].step, this.steps.at(-1).step] : [0, 1];
    const from = Math.max(all[0], Math.round(first));
    const to = Math.min(all[1], Math.round(last));
    if (to - from >= 1) this.range = from <= all[0] && to >= all[1] ? null : [from, to];
    this.dirty = true;
  }

  zoom(what, around = null) {
    const [first, last] = this.bounds();
    const middle = around ?? (first + last) / 2;
    const span = last - first;
    if (what === "all") this.range = null;
    else if (what === "in") this.set(middle - (middle - first) / 2, middle + (last - middle) / 2);
    else if (what === "out") this.set(middle - (middle - first) * 2, middle + (last - middle) * 2);
    else this.set(first + span * (what === "left" ? -0.25 : 0.25), last + span * (what === "left" ? -0.25 : 0.25));
    this.dirty = true;
  }

  draw() {
    if (!this.dirty) return;
    this.dirty = false;
    const colour = colours();
    const [first, last] = this.bounds();
    const shown = this.steps.filter((step) => step.step >= first && step.step <= last);
    for (const chart of this.charts) this.drawChart(chart, shown, first, last, colour);
  }

  drawChart({ kind, canvas, value }, shown, first, last, colour) {
    const { context, width, height } = fitted(canvas);
    const values = shown.map(kind.of);
    const seconds_ = kind.second ? shown.map(kind.second) : [];
    const known = [...values, ...seconds_].filter((v) => Number.isFinite(v));
    const at = this.hover === null || this.hover === undefined ? shown.length - 1 : shown.findLastIndex((s) => s.step <= this.hover);
    const now = values[at];
    value.textContent = Number.isFinite(now) ? `${kind.show(now)} · step ${shown[at].step}` : "–";
    canvas.setAttribute("aria-label", `${kind.name}, steps ${first} to ${last}: ${known.length ? `${kind.show(known[0])} to ${kind.show(known.at(-1))}` : "nothing yet"}`);
    context.font = "11px system-ui, sans-serif";
    if (!known.length) {
      context.fillStyle = colour.soft;
      context.textAlign = "center";
      context.fillText("nothing yet", width / 2, height / 2);
      return;
    }
    let low = known.reduce((a, b) => Math.min(a, b));
    let high = known.reduce((a, b) => Math.max(a, b));
    if (kind.zero) low = Math.min(0, low);
    if (high === low) high = low + (Math.abs(low) || 1);
    const x = (step) => LEFT + ((step - first) / Math.max(1, last - first)) * (width - LEFT - 4);
    const y = (v) => TOP + (1 - (v - low) / (high - low)) * (height - TOP - BOTTOM);
    context.strokeStyle = colour.line;
    context.fillStyle = colour.soft;
    for (const part of [0, 0.5, 1]) {
      const level = low + part * (high - low);
      context.beginPath(); context.moveTo(LEFT, y(level)); context.lineTo(width - 4, y(level)); context.stroke();
      context.textAlign = "right";
      context.fillText(kind.show(level), LEFT - 5, y(level) + 4);
    }
    context.textAlign = "left"; context.fillText(String(first), LEFT, height - 3);
    context.textAlign = "right"; context.fillText(String(last), width - 4, height - 3);
    const line = (steps, of, dash, style) => {
      // No more points than pixels: a longer run costs no frames.
      const stride = Math.max(1, Math.floor(steps.length / Math.max(1, width)));
      context.strokeStyle = style; context.lineWidth = 1.8; context.setLineDash(dash); context.beginPath();
      let pen = false;
      for (let i = 0; i < steps.length; i += stride) {
        const v = of(steps[i]);
        if (!Number.isFinite(v)) { pen = false; continue; }
        if (pen) context.lineTo(x(steps[i].step), y(v)); else context.moveTo(x(steps[i].step), y(v));
        pen = true;
      }
      context.stroke(); context.setLineDash([]); context.lineWidth = 1;
    };
    line(shown, kind.of, [], colour.accent);
    // Few steps have it, and a stride over all of them may meet none.
    if (kind.second) line(shown.filter((step) => Number.isFinite(kind.second(step))), kind.second, [5, 4], colour.forward);
    if (this.hover !== null && this.hover !== undefined && at >= 0 && Number.isFinite(now)) {
      context.fillStyle = colour.accent;
      context.beginPath(); context.arc(x(shown[at].step), y(now), 3.5, 0, 2 * Math.PI); context.fill();
    }
  }
}
