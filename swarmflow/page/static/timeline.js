// The events of the run, the newest first, of the kinds and with the text that one wants to see.

import { byId, element, setText } from "./dom.js";
import { clean, clock } from "./format.js";
import { EVENTS_MAX } from "./run.js";

const ROWS = 150; // at first, and as many more at each wish
const KINDS = {
  joined: "+", loading: "↓", serving: "●", leaving: "→", died: "✕", repaired: "↻", moved: "⇄", committed: "✓", restarted: "⟲",
  rolled_back: "◀", leader: "★", waiting: "‖", checkpoint: "▣", validated: "◎", excluded: "⊘", finished: "■", other: "·",
};

export class Timeline {
  constructor(onChoose) {
    this.list = byId("events");
    this.chips = new Map(); // kind -> {button, count}
    this.kinds = new Set(); // the chosen ones; none: all
    this.wanted = "";
    this.rows = ROWS;
    this.onChoose = onChoose;
    byId("events-find").addEventListener("input", (event) => {
      this.wanted = event.target.value.toLowerCase();
      this.rebuild();
    });
    byId("events-more").addEventListener("click", () => {
      this.rows += ROWS;
      this.rebuild();
    });
    this.forget();
  }

  forget() {
    this.events = [];
    for (const chip of this.chips.values()) chip.count = 0;
    this.list.replaceChildren();
  }

  // All events anew, as at another moment of a recording.
  show(events, live) {
    this.forget();
    this.live = live;
    this.events = [...events];
    for (const event of events) this.countKind(event.kind);
    this.rebuild();
  }

  add(events, live) {
    this.live = live;
    this.events.push(...events);
    for (const event of events) {
      this.countKind(event.kind);
      if (this.fits(event)) this.list.prepend(this.row(event));
    }
    if (this.events.length > EVENTS_MAX) this.events.splice(0, this.events.length - EVENTS_MAX);
    while (this.list.children.length > this.rows) this.list.lastChild.remove();
    this.finish();
  }

  countKind(kind) {
    const name = kind in KINDS ? kind : "other";
    let chip = this.chips.get(name);
    if (!chip) {
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      button.addEventListener("click", () => this.toggle(name, button));
      chip = { button, count: 0 };
      this.chips.set(name, chip);
      byId("kinds").append(button);
    }
    chip.count += 1;
  }

  toggle(kind, button) {
    if (!this.kinds.delete(kind)) this.kinds.add(kind);
    button.setAttribute("aria-pressed", String(this.kinds.has(kind)));
    this.rows = ROWS;
    this.rebuild();
  }

  fits(event) {
    const kind = event.kind in KINDS ? event.kind : "other";
    if (this.kinds.size && !this.kinds.has(kind)) return false;
    return !this.wanted || `${event.kind} ${event.text} ${event.peer}`.toLowerCase().includes(this.wanted);
  }

  rebuild() {
    const rows = [];
    for (let at = this.events.length - 1; at >= 0 && rows.length < this.rows; at -= 1) {
      if (this.fits(this.events[at])) rows.push(this.row(this.events[at]));
    }
    this.list.replaceChildren(...rows);
    this.finish();
  }

  finish() {
    for (const [kind, { button, count }] of this.chips) setText(button, `${KINDS[kind]} ${kind.replace("_", " ")} ${count}`);
    const none = byId("events-none");
    none.hidden = this.list.children.length > 0;
    setText(none, this.events.length ? "No event is like that." : "Nothing has happened yet.");
    byId("events-more").hidden = this.list.children.length < this.rows;
  }

  row(event) {
    const kind = event.kind in KINDS ? event.kind : "other";
    const row = element("li", "", `${kind} ${event.level === "warning" ? "warning" : ""}`);
    const glyph = element("i", KINDS[kind], "glyph");
    glyph.setAttribute("aria-hidden", "true");
    const body = element("div");
    const when = element("p", "", "when");
    const time = element(this.live ? "span" : "button", clock(event.time, this.live));
    if (!this.live) {
      time.type = "button";
      time.title = "Show the run at this time";
      time.addEventListener("click", () => this.onChoose(event));
    }
    when.append(time, ` · step ${event.step} · ${clean(event.kind, 20).replace("_", " ")}`);
    body.append(element("p", event.text), when);
    row.append(glyph, body);
    return row;
  }
}
