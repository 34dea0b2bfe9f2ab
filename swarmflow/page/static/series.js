// Which curves there are, and their points: [step, value], in the order of steps.

import { bytes, count, decimals, percent } from "./format.js";

const SMOOTHED_MIN = 40; // points, from which a noisy curve gets a smooth one before it

const points = (steps, value) => {
  const found = [];
  for (const step of steps) {
    const y = value(step);
    if (typeof y === "number" && Number.isFinite(y)) found.push([step.step, y]);
  }
  return found;
};

function smoothed(series) {
  const most = Math.ceil(series.length / 40);
  const sums = [0];
  for (const [, y] of series) sums.push(sums.at(-1) + y);
  return series.map(([x], at) => {
    // As many points before as after, or the mean of a falling curve lies above it.
    const half = Math.min(most, at, series.length - 1 - at);
    return [x, (sums[at + half + 1] - sums[at - half]) / (2 * half + 1)];
  });
}

function lossLines({ steps }) {
  const loss = points(steps, (step) => step.loss);
  const validation = points(steps, (step) => step.validation_loss);
  const lines = loss.length >= SMOOTHED_MIN
    ? [{ points: loss, colour: "accent", faint: true }, { name: "loss", points: smoothed(loss), read: loss, colour: "accent" }]
    : [{ name: "loss", points: loss, colour: "accent" }];
  return validation.length ? [...lines, { name: "validation", points: validation, colour: "forward", marks: true }] : lines;
}

// A log may have utilisation and bytes of each step; else they follow from what the peers report of themselves.
function utilisationLines({ steps, rates }) {
  const logged = points(steps, (step) => step.utilisation);
  const derived = rates.samples.map(({ step, utilisation }) => [step, utilisation]);
  return [{ name: "", points: logged.length ? logged : derived, colour: "accent" }];
}

function bytesLines({ steps, rates }) {
  const logged = points(steps, (step) => (step.sent_bytes === undefined ? null : step.sent_bytes / Math.max(step.seconds, 1e-9)));
  const derived = rates.samples.map(({ step, bytesPerS }) => [step, bytesPerS]);
  return [{ name: "", points: logged.length ? logged : derived, colour: "accent" }];
}

export const CURVES = [
  { title: "Loss", unit: "nats a token", wide: true, lines: lossLines, show: decimals, tick: count },
  {
    title: "Throughput", unit: "tokens/s", zero: true, show: count,
    lines: ({ steps }) => [{ name: "", points: points(steps, (step) => step.tokens / Math.max(step.seconds, 1e-9)), colour: "accent" }],
  },
  {
    title: "Peers", unit: "that made the update", zero: true, show: count,
    lines: ({ steps }) => [{ name: "", points: points(steps, (step) => step.peers?.reduce((sum, each) => sum + each, 0)), colour: "accent", stairs: true }],
  },
  { title: "Utilisation", unit: "of peers' time", zero: true, most: 1, lines: utilisationLines, show: percent },
  { title: "Traffic", unit: "all peers send", zero: true, lines: bytesLines, show: (value) => `${bytes(value)}/s`, tick: bytes },
];

const MARKED = new Set(["died", "rolled_back"]);

export function marksOf(events) {
  return events.filter((event) => MARKED.has(event.kind)).map((event) => ({ step: event.step, kind: event.kind }));
}
