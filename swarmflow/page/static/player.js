// Plays a recording: time runs, stands, or is set by hand, and the page shows the run as it was at that time.

import { byId, fit, setText } from "./dom.js";
import { seconds } from "./format.js";
import { Rates } from "./rates.js";
import { onPalette, palette } from "./theme.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const WHOLE_S = 90; // in which a recording is over, unless its viewer wants it otherwise
const PARTS = 1000;
const SHOW_MS = 120; // between two views that are shown: of a fast recording, several pass at once
const RECENT = 40; // frames before a moment, from which the rates of the peers follow
const MARKED = { died: "dead", rolled_back: "dead", repaired: "repair", waiting: "forward" };

export class Player {
  // to: {jump(moment, views, events, steps, samples), advance(views, events, steps)}
  constructor(recorded, to) {
    this.recorded = recorded;
    this.to = to;
    this.samples = samplesOf(recorded.frames);
    this.moment = 0;
    this.playing = false;
    this.showed = 0;
    this.shown = { frames: 0, events: 0, steps: 0 }; // how many of each are shown
    this.speed = SPEEDS.find((speed) => recorded.duration_s / speed <= WHOLE_S) ?? SPEEDS.at(-1);
    this.listen();
    byId("player").hidden = false;
    this.marksDirty = true;
    onPalette(() => { this.marksDirty = true; });
    this.jump(0);
  }

  listen() {
    const speed = byId("speed");
    for (const value of SPEEDS) speed.add(new Option(`${value}×`, String(value), false, value === this.speed));
    speed.addEventListener("change", () => { this.speed = Number(speed.value); });
    byId("player").addEventListener("submit", (event) => event.preventDefault());
    byId("play").addEventListener("click", () => this.toggle());
    byId("scrub").addEventListener("input", (event) => this.jump((event.target.value / PARTS) * this.recorded.duration_s));
    new ResizeObserver(() => { this.marksDirty = true; }).observe(byId("track-marks"));
    document.addEventListener("keydown", (event) => {
      const idle = event.target === document.body || event.target.id === "content" || event.target.id === "picture";
      if (event.key !== " " || !idle) return;
      event.preventDefault();
      this.toggle();
    });
  }

  toggle(playing = !this.playing) {
    if (playing && this.moment >= this.recorded.duration_s) this.jump(0);
    this.playing = playing;
    this.before = null;
    setText(byId("play"), playing ? "Pause" : "Play");
  }

  jump(moment) {
    this.moment = Math.max(0, Math.min(this.recorded.duration_s, moment));
    const found = this.countsAt(this.moment);
    const { frames, events, steps } = this.recorded;
    const last = Math.max(1, found.frames);
    const views = frames.slice(Math.max(0, last - RECENT), last).map(({ view }) => view);
    const samples = this.samples.filter(({ step }) => step < views.at(-1).step);
    this.to.jump(this.moment, views, events.slice(0, found.events), steps.slice(0, found.steps), samples);
    this.shown = found;
    this.tell();
  }

  frame(now) {
    if (this.marksDirty) this.drawMarks();
    if (!this.playing) return;
    const passed = this.before === null ? 0 : (now - this.before) / 1000;
    this.before = now;
    this.moment = Math.min(this.recorded.duration_s, this.moment + passed * this.speed);
    this.tell();
    const over = this.moment >= this.recorded.duration_s;
    if (!over && now - this.showed < SHOW_MS) return;
    this.showed = now;
    const found = this.countsAt(this.moment);
    const { frames, events, steps } = this.recorded;
    const since = this.shown;
    if (found.frames !== since.frames || found.events !== since.events || found.steps !== since.steps) {
      this.to.advance(
        frames.slice(since.frames, found.frames).map(({ view }) => view),
        events.slice(since.events, found.events), steps.slice(since.steps, found.steps),
      );
    }
    this.shown = found;
    if (over) this.toggle(false);
  }

  countsAt(moment) {
    const { frames, events, steps } = this.recorded;
    return {
      frames: countUntil(frames, "t", moment), events: countUntil(events, "time", moment), steps: countUntil(steps, "time", moment),
    };
  }

  tell() {
    const { duration_s: whole } = this.recorded;
    const scrub = byId("scrub");
    scrub.value = String(whole ? Math.round((this.moment / whole) * PARTS) : 0);
    scrub.setAttribute("aria-valuetext", `${seconds(this.moment)} of ${seconds(whole)}`);
    setText(byId("moment"), `${this.moment.toFixed(whole < 100 ? 1 : 0)} / ${whole.toFixed(whole < 100 ? 1 : 0)} s`);
  }

  // Above the slider: when something has happened.
  drawMarks() {
    this.marksDirty = false;
    const canvas = byId("track-marks");
    const context = fit(canvas);
    const width = canvas.clientWidth - 16;
    for (const { kind, time } of this.recorded.events) {
      if (!(kind in MARKED)) continue;
      const x = 8 + (time / Math.max(1e-9, this.recorded.duration_s)) * width;
      context.fillStyle = context.strokeStyle = palette[MARKED[kind]];
      context.lineWidth = 2;
      context.beginPath();
      if (MARKED[kind] === "dead") {
        context.moveTo(x - 3, 3); context.lineTo(x + 3, 9); context.moveTo(x + 3, 3); context.lineTo(x - 3, 9);
        context.stroke();
      } else {
        context.arc(x, 6, 2.5, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }
}

// The curves that follow from the views, once for all moments.
function samplesOf(frames) {
  const rates = new Rates();
  for (const { view } of frames) rates.take(view);
  return rates.samples;
}

// How many items have a time that is not after the moment. Times rise.
function countUntil(items, key, moment) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle][key] <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}
