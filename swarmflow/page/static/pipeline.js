// The picture of the pipeline: when it is painted, and what of it a pointer or the keyboard has picked.
//
// Two canvases lie upon one another. The lower one is painted when a view has come; the upper one, with what moves, in
// each frame in which something does.

import { byId, element, fillTable, fit, setText } from "./dom.js";
import { bytes, clean, count, percent, seconds } from "./format.js";
import { HEADER, Layout, heightOf, widthOf } from "./layout.js";
import { Microbatches } from "./microbatches.js";
import { paintFlowNames, paintFlows, paintLanes, paintNodes } from "./paint.js";
import { Repairs } from "./repairs.js";
import { calm, onPalette, palette } from "./theme.js";

const SETTLE_MS = 350; // in which nodes move to their new places
const SETTLE_MAX = 200; // of more nodes, all stand in their new places at once

export class Pipeline {
  constructor(onPick) {
    this.frame_ = byId("picture");
    this.base = byId("picture-base");
    this.top = byId("picture-top");
    this.tip = byId("tip");
    this.layout = new Layout();
    this.microbatches = new Microbatches();
    this.repairs = new Repairs();
    this.view = null;
    this.picked = null;
    this.onPick = onPick;
    this.settled = 0;
    this.dirty = this.topDirty = true;
    onPalette(() => { this.dirty = true; });
    new ResizeObserver(() => this.arrange()).observe(byId("picture-scroll"));
    this.listen();
  }

  listen() {
    const frame = this.frame_;
    frame.addEventListener("pointermove", (event) => {
      const box = frame.getBoundingClientRect();
      this.pick(this.layout.nearest(event.clientX - box.left, event.clientY - box.top, 12));
    });
    frame.addEventListener("pointerleave", () => this.pick(null));
    frame.addEventListener("blur", () => this.pick(null));
    frame.addEventListener("click", () => { if (this.picked) this.onPick(this.picked); });
    frame.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const ids = [...this.layout.places.keys()];
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key === "Escape") this.pick(null);
    else if (event.key === "Enter" && this.picked) this.onPick(this.picked);
    else if (event.key in moves && ids.length) {
      const at = ids.indexOf(this.picked);
      this.pick(ids[at < 0 ? 0 : (at + moves[event.key] + ids.length) % ids.length]);
      setText(byId("picked"), [...this.tip.children].map((line) => line.textContent).join(", "));
    } else return;
    event.preventDefault();
  }

  show(view, events, now) {
    this.view = view;
    this.repairs.take(events, now);
    this.microbatches.take(view, now);
    this.arrange(now);
    this.tabulate();
    if (this.picked) this.describe();
  }

  // Another moment of a recording: nothing flies there, and nobody has died on the way.
  forget() {
    this.microbatches.forget();
    this.repairs.forget();
    this.layout.places = new Map();
  }

  arrange(now = performance.now()) {
    if (!this.view) return;
    const room = byId("picture-scroll").clientWidth;
    const height = `${heightOf(this.view, room < 700)}px`;
    // A picture that shrinks and grows with each peer would push about what is below it.
    if (parseFloat(this.frame_.style.height || 0) < parseFloat(height)) this.frame_.style.height = height;
    const width = widthOf(this.view, room);
    this.frame_.style.width = width > room ? `${width}px` : "";
    const before = this.layout.places;
    const size = `${this.frame_.clientWidth} ${this.frame_.clientHeight}`;
    const resized = size !== this.size; // then everything is elsewhere at once
    this.size = size;
    this.layout.arrange(this.view, this.repairs.dead, this.frame_.clientWidth, this.frame_.clientHeight);
    const moved = !resized && [...this.layout.places.values()].some(({ x, y, from }) => x !== from.x || y !== from.y);
    if (moved && before.size && this.layout.places.size <= SETTLE_MAX && !calm.matches) this.settled = now + SETTLE_MS;
    if (resized) this.settled = 0;
    this.dirty = true;
  }

  frame(now) {
    if (!this.view) return;
    if (this.repairs.expire(now)) this.arrange(now);
    const settling = now < this.settled;
    if (settling || this.wasSettling) this.settle(settling ? 1 - (this.settled - now) / SETTLE_MS : 1);
    this.wasSettling = settling;
    if (this.dirty) this.paint();
    const moving = this.microbatches.moving(now) || this.repairs.active;
    if (this.dirty || moving || this.wasMoving || this.topDirty) this.paintTop(now);
    this.wasMoving = moving;
    this.dirty = this.topDirty = false;
  }

  settle(part) {
    for (const place of this.layout.places.values()) {
      place.goal ??= { x: place.x, y: place.y };
      const eased = 1 - (1 - part) ** 3;
      place.x = place.from.x + (place.goal.x - place.from.x) * eased;
      place.y = place.from.y + (place.goal.y - place.from.y) * eased;
    }
    this.dirty = true;
  }

  paint() {
    const context = fit(this.base);
    paintLanes(context, this.layout, this.view, this.microbatches.doneOf, this.frame_.clientHeight);
    // Flows leave the names of the stages alone.
    context.save();
    context.beginPath();
    context.rect(0, HEADER - 4, this.frame_.clientWidth, this.frame_.clientHeight);
    context.clip();
    paintFlows(context, this.layout, this.view.links, this.picked);
    context.restore();
    paintNodes(context, this.layout);
    paintFlowNames(context, this.layout, this.view.links, this.picked);
  }

  paintTop(now) {
    const context = fit(this.top);
    this.microbatches.draw(context, this.layout.places, now);
    this.repairs.draw(context, this.layout.places, now);
    const place = this.picked && this.layout.places.get(this.picked);
    if (!place) return;
    context.strokeStyle = palette.text;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(place.x, place.y, place.r + 5, 0, 2 * Math.PI);
    context.stroke();
  }

  pick(id) {
    if (id === this.picked) return;
    this.picked = id;
    this.dirty = true;
    this.frame_.style.cursor = id ? "pointer" : "";
    this.describe();
  }

  describe() {
    const place = this.picked && this.layout.places.get(this.picked);
    this.tip.hidden = !place;
    if (!place) return;
    const [title, ...lines] = place.trainer ? linesOfTrainer(place) : place.peer ? this.linesOfPeer(place) : [`${clean(place.id)} died`];
    this.tip.replaceChildren(element("b", title), ...lines.filter(Boolean).map((line) => element("span", line)));
    const left = place.x + place.r + 14;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(2, left + wide > this.frame_.clientWidth ? place.x - place.r - 14 - wide : left)}px`;
    this.tip.style.top = `${Math.max(2, Math.min(place.y - 24, this.frame_.clientHeight - this.tip.offsetHeight - 4))}px`;
  }

  linesOfPeer({ peer, stage }) {
    const { summary } = peer;
    const lines = [
      peer.id,
      `stage ${stage}, ${peer.phase}, ${peer.held} of ${peer.capacity} microbatches, ${peer.queued} queued`,
    ];
    if (summary) {
      lines.push(`${count(summary.microbatches)} computed, memory ${bytes(summary.memory_bytes)}`);
      lines.push(`reached ${summary.reach === "public" ? "directly" : summary.reach}${peer.address ? `, ${peer.address}` : ""}`);
      if (summary.loading_total_bytes) lines.push(`loading ${bytes(summary.loading_bytes)} of ${bytes(summary.loading_total_bytes)}`);
    }
    const flows = this.view.links.filter(([from, to]) => from === peer.id || to === peer.id);
    for (const [from, to, microbatches, cost] of flows.slice(0, 8)) {
      const each = Number.isFinite(cost) ? `, ${seconds(cost)} each` : "";
      lines.push(from === peer.id ? `→ ${microbatches} to ${clean(to, 40)}${each}` : `← ${microbatches} from ${clean(from, 40)}${each}`);
    }
    return lines;
  }

  tabulate() {
    const { stages, microbatches } = this.view;
    const rows = stages.map(({ stage, peers }) => {
      const phases = (...wanted) => peers.filter((peer) => wanted.includes(peer.phase)).length;
      const held = peers.reduce((sum, peer) => sum + peer.held, 0);
      const capacity = peers.reduce((sum, peer) => sum + peer.capacity, 0);
      const done = this.microbatches.doneOf.get(stage) ?? 0;
      return [
        `Stage ${stage}`, count(phases("serving", "ready")), count(phases("loading", "waiting")), count(phases("draining")),
        `${held} of ${capacity}`, `${done} of ${microbatches} (${percent(microbatches ? done / microbatches : 0)})`,
      ];
    });
    fillTable(byId("stages"), ["Stage", "Serving", "Loading", "Leaving", "Microbatches held", "Done in this step"], rows);
  }
}

function linesOfTrainer({ trainer }) {
  return [trainer.id, trainer.leads ? "trainer, leads the run" : "trainer", trainer.address];
}
