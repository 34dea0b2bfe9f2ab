// The curves of the run: charts with one range and one pointer, and the same as a table.

import { Chart } from "./chart.js";
import { byId, fillTable } from "./dom.js";
import { bytes, count, decimals, percent, seconds } from "./format.js";
import { CURVES, marksOf } from "./series.js";
import { onPalette } from "./theme.js";
import { Zoom } from "./zoom.js";

const TABLE_ROWS = 200;
const COLUMNS = [
  ["Step", (step) => String(step.step)],
  ["Loss", (step) => decimals(step.loss)],
  ["Validation", (step) => decimals(step.validation_loss)],
  ["Tokens/s", (step) => count(Math.round(step.tokens / Math.max(step.seconds, 1e-9)))],
  ["Time", (step) => seconds(step.seconds)],
  ["Peers", (step) => (step.peers ?? []).join(" + ")],
  ["Repaired hops", (step) => count(step.retries)],
  ["Gradient norm", (step) => count(step.grad_norm)],
  ["Learning rate", (step) => count(step.lr)],
];

export class Curves {
  constructor() {
    this.dirty = true;
    this.run = null;
    this.zoom = new Zoom(() => { this.dirty = true; });
    const hover = { step: null, drag: null };
    this.charts = CURVES.map((kind) => new Chart(kind, this.zoom, hover));
    byId("curves").append(...this.charts.map((chart) => chart.figure));
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.zoom.change(button.dataset.zoom));
    }
    this.details = byId("steps-details");
    this.details.addEventListener("toggle", () => this.tabulate());
    onPalette(() => { this.dirty = true; });
    new ResizeObserver(() => { this.dirty = true; }).observe(byId("curves"));
  }

  show(run) {
    this.run = run;
    const { steps } = run;
    if (steps.length) this.zoom.extend(steps[0].step, steps.at(-1).step);
    const marks = marksOf(run.events);
    for (const chart of this.charts) {
      chart.lines = chart.kind.lines(run);
      chart.marks = marks;
    }
    this.tabulate();
    this.dirty = true;
  }

  // What a whole recording has nothing of is left out.
  hideEmpty(recorded) {
    for (const { figure, kind } of this.charts) figure.hidden = !kind.lines(recorded).some(({ points }) => points.length);
    this.dirty = true;
  }

  frame() {
    if (!this.dirty) return;
    this.dirty = false;
    for (const chart of this.charts) if (!chart.figure.hidden) chart.draw();
  }

  tabulate() {
    if (!this.details.open || !this.run) return;
    const { steps, rates } = this.run;
    const rows = steps.slice(-TABLE_ROWS).reverse().map((step) => {
      const sample = rates.samples.findLast((each) => each.step === step.step);
      const busy = step.utilisation ?? sample?.utilisation;
      const sent = step.sent_bytes === undefined ? sample?.bytesPerS : step.sent_bytes / Math.max(step.seconds, 1e-9);
      return [...COLUMNS.map(([, text]) => text(step)), percent(busy), bytes(sent)];
    });
    fillTable(byId("steps"), [...COLUMNS.map(([name]) => name), "Utilisation", "Bytes/s"], rows);
  }
}
