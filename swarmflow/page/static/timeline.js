// The timeline of events, newest first, filtered by kind and text. Screen readers hear deaths and repairs as they happen.

import { clock, element } from "./format.js";

const SHOWN_MAX = 300;
const SPOKEN = new Set(["died", "repaired", "rolled_back", "leader", "finished"]);

export class Timeline {
  constructor(list, kind, text, news) {
    Object.assign(this, { list, kind, text, news });
    this.events = [];
    this.kinds = new Set();
    this.live = true;
    kind.addEventListener("change", () => this.render());
    text.addEventListener("input", () => this.render());
  }

  show(events, live) {
    this.events = events.slice(-2000);
    this.live = live;
    this.learn(events);
    this.render();
  }

  add(events) {
    this.events.push(...events);
    this.events.splice(0, Math.max(0, this.events.length - 2000));
    this.learn(events);
    const told = events.filter((event) => SPOKEN.has(event.kind)).at(-1);
    if (told) this.news.textContent = told.text;
    for (const event of events) if (this.wanted(event)) this.list.prepend(this.line(event));
    while (this.list.children.length > SHOWN_MAX) this.list.lastChild.remove();
  }

  learn(events) {
    for (const { kind } of events) {
      if (this.kinds.has(kind)) continue;
      this.kinds.add(kind);
      const option = element("option", kind.replaceAll("_", " "));
      option.value = kind;
      this.kind.append(option);
    }
  }

  wanted({ kind, text, peer }) {
    const words = this.text.value.toLowerCase();
    return (!this.kind.value || kind === this.kind.value) && (!words || `${text} ${peer}`.toLowerCase().includes(words));
  }

  render() {
    this.list.replaceChildren();
    for (let i = this.events.length - 1; i >= 0 && this.list.children.length < SHOWN_MAX; i -= 1) {
      if (this.wanted(this.events[i])) this.list.append(this.line(this.events[i]));
    }
  }

  line(event) {
    const item = element("li");
    if (/^[a-z_]+$/.test(event.kind)) item.classList.add(event.kind);
    item.append(element("time", clock(event.time, this.live)), element("span", event.kind.replaceAll("_", " "), "kind"), element("span", event.text, "what"));
    return item;
  }
}
