// Plays a recording: the frame, the events and the steps of one moment, which advances, stands, or is dragged.

const SPEEDS = [0.25, 1, 4, 16, 64, 256];

export class Player {
  constructor(recorded, to) {
    this.recorded = recorded;
    this.to = to;
    this.moment = 0;
    this.playing = false;
    this.shown = {}; // nothing, unlike -1: that there is nothing by that moment
    const find = (id) => document.getElementById(id);
    this.button = find("play");
    this.scrub = find("scrub");
    this.output = find("moment");
    const speed = find("speed");
    for (const value of SPEEDS) {
      const option = document.createElement("option");
      option.value = String(value);
      option.textContent = `${value}×`;
      speed.append(option);
    }
    // The whole of it in about a minute, unless its viewer chooses otherwise.
    this.speed = SPEEDS.find((value) => recorded.duration_s / value <= 60) ?? SPEEDS.at(-1);
    speed.value = String(this.speed);
    speed.addEventListener("change", () => { this.speed = Number(speed.value); });
    this.button.addEventListener("click", () => this.toggle());
    this.scrub.addEventListener("input", () => this.jump((this.scrub.value / 1000) * recorded.duration_s));
    find("player").hidden = !recorded.frames.length;
    this.jump(recorded.frames.length ? recorded.frames[0].t : recorded.duration_s);
  }

  toggle() {
    if (!this.playing && this.moment >= this.recorded.duration_s) this.jump(0);
    this.playing = !this.playing;
    this.last = null;
    this.button.textContent = this.playing ? "Pause" : "Play";
  }

  jump(moment) {
    this.moment = moment;
    this.shown = {};
    this.to.jump();
    this.show();
  }

  advance(now) {
    if (!this.playing) return;
    if (this.last) this.moment += ((now - this.last) / 1000) * this.speed;
    this.last = now;
    if (this.moment >= this.recorded.duration_s) {
      this.moment = this.recorded.duration_s;
      this.playing = false;
      this.button.textContent = "Play";
    }
    this.show();
  }

  show() {
    const { frames, events, steps, duration_s: duration } = this.recorded;
    const frame = last(frames, (each) => each.t, this.moment);
    if (frame !== this.shown.frame && frame >= 0) this.to.view(frames[frame].view);
    const event = last(events, (each) => each.time, this.moment);
    if (event !== this.shown.event) {
      if (this.shown.event !== undefined) for (const each of events.slice(this.shown.event + 1, event + 1)) this.to.event(each);
      this.to.events(events.slice(0, event + 1));
    }
    const step = last(steps, (each) => each.time, this.moment);
    if (step !== this.shown.step) this.to.steps(steps.slice(0, step + 1));
    this.shown = { frame, event, step };
    this.scrub.value = String(Math.round((this.moment / Math.max(duration, 1e-9)) * 1000));
    this.output.textContent = `${this.moment.toFixed(1)} of ${duration.toFixed(1)} s`;
  }
}

// The last item whose time is not after the moment, -1 where there is none. Times rise.
function last(items, time, moment) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (time(items[middle]) <= moment) low = middle + 1; else high = middle;
  }
  return low - 1;
}
