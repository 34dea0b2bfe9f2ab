// What the page has of the run: the view, the events and the steps, and what follows from them.

import { Rates } from "./rates.js";

export const EVENTS_MAX = 5000;
const STEPS_MAX = 30000; // of a longer run, every second one of the older half is left out

export class Run {
  constructor() {
    this.live = true;
    this.forget();
  }

  forget() {
    this.view = null;
    this.events = [];
    this.steps = [];
    this.rates = new Rates();
    this.stepSince = { step: -1, time: 0 };
  }

  takeView(view) {
    this.view = { stages: [], trainers: [], hops: [], links: [], ...view };
    this.rates.take(this.view);
    if (view.step !== this.stepSince.step) this.stepSince = { step: view.step, time: view.time };
  }

  takeEvents(events) {
    this.events.push(...events);
    if (this.events.length > EVENTS_MAX) this.events.splice(0, this.events.length - EVENTS_MAX);
  }

  // A step that is there already was done again after a roll-back: it replaces the former one and all later ones.
  takeSteps(lines) {
    for (const line of lines) {
      while (this.steps.length && this.steps.at(-1).step >= line.step) this.steps.pop();
      this.steps.push(line);
    }
    if (this.steps.length > STEPS_MAX) this.steps = this.steps.filter((_, number) => number % 2 === 0 || number > STEPS_MAX / 2);
  }

  get peers() {
    return this.view ? this.view.stages.flatMap(({ stage, peers }) => peers.map((peer) => ({ ...peer, stage }))) : [];
  }
}
