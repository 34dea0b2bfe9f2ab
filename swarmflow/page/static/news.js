// What happened last, in words, below the picture; a screen reader says it as it comes.

import { byId, element } from "./dom.js";

const NEW_MS = 15000;
const MOST = 3;
const NEWS = new Set(["died", "repaired", "rolled_back", "restarted", "leader", "excluded", "finished"]);
const GLYPHS = { died: "✕", repaired: "↻", rolled_back: "◀", restarted: "⟲", leader: "★", excluded: "⊘", finished: "■" };

export class News {
  constructor() {
    this.list = byId("news");
    this.shown = []; // {row, since}
  }

  forget() {
    this.shown = [];
    this.list.replaceChildren();
  }

  take(events, now) {
    for (const event of events.filter(({ kind }) => NEWS.has(kind)).slice(-MOST)) {
      const row = element("li", "", `${event.kind} ${event.level === "warning" ? "warning" : ""}`);
      const glyph = element("b", GLYPHS[event.kind]);
      glyph.setAttribute("aria-hidden", "true");
      row.append(glyph, element("span", event.text));
      this.list.append(row);
      this.shown.push({ row, since: now });
    }
    this.expire(now);
  }

  expire(now) {
    while (this.shown.length > MOST) this.shown.shift().row.remove();
    for (const { row, since } of this.shown) row.classList.toggle("old", now - since > NEW_MS);
  }
}
