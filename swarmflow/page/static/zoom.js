// The range of steps that all curves show, and what changes it.

export class Zoom {
  constructor(onChange) {
    this.first = 0; // of the run
    this.last = 1;
    this.range = null; // null: all steps; else [first, last]
    this.onChange = onChange;
  }

  bounds() {
    return this.range ?? [this.first, this.last];
  }

  // The steps that there are: a range of them stays as it is while more come.
  extend(first, last) {
    this.first = first;
    this.last = Math.max(first + 1, last);
    if (this.range && (this.range[0] >= this.last || this.range[1] <= this.first)) this.range = null;
  }

  set(first, last) {
    const span = Math.max(1, last - first);
    const from = Math.max(this.first, Math.min(first, this.last - span));
    const to = Math.min(this.last, from + span);
    this.range = from <= this.first && to >= this.last ? null : [from, to];
    this.onChange();
  }

  change(what, around = null) {
    const [first, last] = this.bounds();
    const span = last - first;
    const middle = around ?? (first + last) / 2;
    const scaled = (factor) => this.set(middle - (middle - first) * factor, middle + (last - middle) * factor);
    if (what === "in") scaled(0.6);
    else if (what === "out") scaled(1 / 0.6);
    else if (what === "left") this.set(first - span / 4, last - span / 4);
    else if (what === "right") this.set(first + span / 4, last + span / 4);
    else {
      this.range = null;
      this.onChange();
    }
  }
}
