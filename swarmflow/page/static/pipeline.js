// The picture of the pipeline: trainers, stages as columns, peers as nodes, microbatches as dots that move between them.

import { bytes, colours, count, fitted, seconds } from "./format.js";

const MOVE_MS = 420;
const DEAD_MS = 10000;
const PULSE_MS = 6000;
const DOTS_MAX = 1500; // more dots than that are a smear, and cost frames

export class Pipeline {
  constructor(canvas, tip, text) {
    this.canvas = canvas;
    this.tip = tip;
    this.text = text;
    this.view = null;
    this.places = new Map(); // id -> {x, y, r, stage, peer | trainer}
    this.dots = new Map(); // microbatch -> {from, to, since, done}
    this.gone = new Map(); // id -> {x, y, r, at} of those that were there a while ago
    this.died = new Set(); // ids, told before their peer is gone or after; any other peer has just left
    this.pulses = new Map(); // id -> when it took over
    this.still = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.dirty = true;
    canvas.addEventListener("pointermove", (event) => this.point(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("keydown", (event) => this.step(event));
    canvas.addEventListener("blur", () => { this.tip.hidden = true; this.chosen = null; });
    new ResizeObserver(() => { this.arrange(); this.dirty = true; }).observe(canvas);
  }

  show(view, now = performance.now()) {
    const before = this.places;
    this.view = view;
    this.arrange();
    for (const [id, place] of before) {
      if (!this.places.has(id) && place.peer) this.gone.set(id, { ...place, at: now });
    }
    this.moveDots(now);
    this.describe();
    this.dirty = true;
  }

  // Another moment of a recording is no death of everybody who was there at the one before.
  forget() {
    this.places = new Map();
    this.gone.clear();
    this.died.clear();
    this.dots.clear();
    this.pulses.clear();
  }

  tell(event, now = performance.now()) {
    if (event.kind === "repaired" && event.peer) this.pulses.set(event.peer, now);
    if (event.kind === "died") this.died.add(event.peer);
    if (["joined", "loading", "serving"].includes(event.kind)) this.died.delete(event.peer); // it is back
    this.dirty = true;
  }

  arrange() {
    this.places = new Map();
    if (!this.view) return;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const columns = this.view.stages.length + 1;
    const column = width / columns;
    this.column = column;
    const put = (members, index, make) => {
      const top = 34;
      const room = height - top - 8;
      // As many nodes side by side as it takes for all of a stage to fit.
      let across = 1;
      while (across < members.length && Math.ceil(members.length / across) * Math.min(46, (column * 0.86) / across) > room) across += 1;
      const rows = Math.ceil(members.length / across) || 1;
      const cell = Math.min(84, (column * 0.86) / across, room / rows);
      const radius = Math.max(1.5, Math.min(21, cell * 0.33));
      members.forEach((member, number) => {
        const row = Math.floor(number / across);
        const inRow = Math.min(across, members.length - row * across);
        this.places.set(member.id, {
          x: column * (index + 0.5) + (number % across - (inRow - 1) / 2) * cell,
          y: top + room / 2 + (row - (rows - 1) / 2) * cell,
          r: radius,
          ...make(member),
        });
      });
    };
    put(this.view.trainers, 0, (trainer) => ({ trainer, stage: -1 }));
    for (const { stage, peers } of this.view.stages) put(peers, stage + 1, (peer) => ({ peer, stage }));
  }

  // A microbatch stands where it has got furthest: forward on its latest stage, backward on its earliest.
  moveDots(now) {
    const at = new Map();
    for (const [index, stage, peer, state] of this.view.hops) {
      const known = at.get(index);
      const done = state === "done";
      const later = !known || (done && !known.done) || (done === known.done && (done ? stage < known.stage : stage > known.stage));
      if (later) at.set(index, { peer, stage, done });
    }
    for (const index of [...this.dots.keys()]) if (!at.has(index)) this.dots.delete(index);
    for (const [index, { peer, done }] of at) {
      if (this.dots.size >= DOTS_MAX && !this.dots.has(index)) continue;
      const dot = this.dots.get(index);
      if (!dot) this.dots.set(index, { from: null, to: peer, since: now, done });
      else if (dot.to !== peer || dot.done !== done) this.dots.set(index, { from: dot.to, to: peer, since: now, done });
    }
  }

  describe() {
    const stages = this.view.stages.map(({ stage, peers }) => `stage ${stage}: ${peers.length}`).join(", ");
    this.canvas.setAttribute("aria-label", `Pipeline of ${this.view.stages.length} stages`);
    this.text.textContent = `${this.view.trainers.length} trainers; peers by stage: ${stages}. The arrow keys name one after the other.`;
  }

  get moving() {
    const now = performance.now();
    const recent = (since, within) => now - since < within;
    return [...this.dots.values()].some((dot) => recent(dot.since, MOVE_MS))
      || [...this.gone].some(([id, place]) => this.died.has(id) && recent(place.at, DEAD_MS + 100))
      || [...this.pulses.values()].some((since) => recent(since, PULSE_MS + 100));
  }

  draw(now) {
    if (!this.dirty && !this.moving) return false;
    this.dirty = false;
    const { context, height } = fitted(this.canvas);
    const colour = colours();
    if (!this.view) return true;
    this.drawColumns(context, colour, height);
    this.drawFlows(context, colour);
    for (const [id, place] of this.places) this.drawNode(context, colour, id, place, now);
    for (const [id, place] of this.gone) {
      if (now - place.at > DEAD_MS || this.places.has(id)) {
        this.gone.delete(id);
        this.died.delete(id);
      } else if (this.died.has(id)) this.drawDead(context, colour, place);
    }
    this.drawDots(context, colour, now);
    return true;
  }

  drawColumns(context, colour, height) {
    context.textAlign = "center";
    context.font = "600 12px system-ui, sans-serif";
    this.view.stages.forEach(({ stage, peers }, number) => {
      const x = this.column * (number + 1.5);
      const empty = peers.every((peer) => peer.phase !== "serving" && peer.phase !== "ready");
      context.fillStyle = empty ? colour.dead : colour.soft;
      context.fillText(this.column > 74 ? `stage ${stage} · ${peers.length}` : `${stage}·${peers.length}`, x, 16);
      if (empty) {
        context.setLineDash([4, 4]);
        context.strokeStyle = colour.dead;
        context.strokeRect(x - this.column * 0.42, 26, this.column * 0.84, height - 32);
        context.setLineDash([]);
      }
    });
    context.fillStyle = colour.soft;
    context.fillText(this.column > 74 ? "trainers" : "t", this.column * 0.5, 16);
  }

  drawFlows(context, colour) {
    context.strokeStyle = colour.flow;
    for (const [from, to, microbatches] of this.view.links) {
      const a = this.places.get(from);
      const b = this.places.get(to);
      if (!a || !b) continue;
      context.lineWidth = Math.min(9, 0.8 + 1.4 * Math.sqrt(microbatches));
      context.globalAlpha = 0.55;
      context.beginPath();
      context.moveTo(a.x, a.y);
      const half = (b.x - a.x) / 2;
      context.bezierCurveTo(a.x + half, a.y, b.x - half, b.y, b.x, b.y);
      context.stroke();
    }
    context.globalAlpha = 1;
    context.lineWidth = 1;
  }

  drawNode(context, colour, id, place, now) {
    const { x, y, r, peer, trainer } = place;
    context.beginPath();
    if (trainer) context.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7);
    else context.arc(x, y, r, 0, 2 * Math.PI);
    context.fillStyle = colour.node;
    context.fill();
    context.lineWidth = r > 5 ? 2 : 1;
    const lasting = peer && ["serving", "ready"].includes(peer.phase);
    context.strokeStyle = trainer || lasting ? colour.accent : peer.phase === "draining" ? colour.draining : colour.soft;
    if (peer && peer.phase === "draining") context.setLineDash([3, 3]);
    if (trainer && trainer.leads) context.lineWidth = 3.5;
    context.stroke();
    context.setLineDash([]);
    if (peer) this.drawLoad(context, colour, place);
    const pulse = this.pulses.get(id);
    if (pulse !== undefined && now - pulse < PULSE_MS) {
      context.strokeStyle = colour.done;
      for (const wide of [4, 8]) {
        context.beginPath();
        context.arc(x, y, r + wide, 0, 2 * Math.PI);
        context.stroke();
      }
    }
    if (this.chosen === id) {
      context.strokeStyle = colour.text;
      context.strokeRect(x - r - 5, y - r - 5, 2 * r + 10, 2 * r + 10);
    }
  }

  // The ring is how full it is; while it loads, how much of its stage has arrived.
  drawLoad(context, colour, { x, y, r, peer }) {
    const loads = peer.phase === "loading" || peer.phase === "waiting";
    const summary = peer.summary;
    let share = peer.capacity ? Math.min(1, peer.held / peer.capacity) : 0;
    if (loads) share = summary && summary.loading_total_bytes ? summary.loading_bytes / summary.loading_total_bytes : 0.12;
    if (share <= 0 || r < 4) return;
    context.beginPath();
    context.arc(x, y, r * 0.62, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * share);
    context.strokeStyle = loads ? colour.loading : colour.accent;
    context.lineWidth = Math.max(1.5, r * 0.3);
    context.stroke();
    context.lineWidth = 1;
  }

  drawDead(context, colour, { x, y, r }) {
    context.strokeStyle = colour.dead;
    context.lineWidth = 3;
    const arm = Math.max(4, r * 0.8);
    context.beginPath();
    context.moveTo(x - arm, y - arm); context.lineTo(x + arm, y + arm);
    context.moveTo(x + arm, y - arm); context.lineTo(x - arm, y + arm);
    context.stroke();
    context.lineWidth = 1;
  }

  drawDots(context, colour, now) {
    const held = new Map();
    for (const dot of this.dots.values()) {
      const to = this.places.get(dot.to);
      if (!to) continue;
      const number = held.get(dot.to) || 0;
      held.set(dot.to, number + 1);
      const angle = number * 2.4; // the golden angle: dots around a node do not hide one another
      const out = to.r + 4 + Math.sqrt(number) * 1.6;
      let x = to.x + Math.cos(angle) * out;
      let y = to.y + Math.sin(angle) * out;
      const from = dot.from && this.places.get(dot.from);
      const part = this.still.matches || !from ? 1 : Math.min(1, (now - dot.since) / MOVE_MS);
      if (part < 1) {
        const eased = part * part * (3 - 2 * part);
        x = from.x + (x - from.x) * eased;
        y = from.y + (y - from.y) * eased;
      }
      context.fillStyle = dot.done ? colour.done : colour.forward;
      context.beginPath();
      if (dot.done) {
        context.moveTo(x, y - 4); context.lineTo(x + 4, y); context.lineTo(x, y + 4); context.lineTo(x - 4, y);
      } else context.arc(x, y, 3.4, 0, 2 * Math.PI);
      context.fill();
    }
  }

  point(x, y) {
    let nearest = null;
    let least = 18;
    for (const [id, place] of this.places) {
      const distance = Math.hypot(place.x - x, place.y - y);
      if (distance < least) { nearest = id; least = distance; }
    }
    this.chosen = nearest;
    this.dirty = true;
    this.name(nearest);
  }

  step(event) {
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (!(event.key in moves) || !this.places.size) return;
    event.preventDefault();
    const ids = [...this.places.keys()];
    const at = ids.indexOf(this.chosen);
    this.chosen = ids[(at + moves[event.key] + ids.length) % ids.length];
    this.dirty = true;
    this.name(this.chosen);
    this.text.textContent = this.tip.textContent;
  }

  name(id) {
    const place = id && this.places.get(id);
    this.tip.hidden = !place;
    if (!place) return;
    const { peer, trainer, stage } = place;
    const lines = trainer
      ? [`trainer ${trainer.id}${trainer.leads ? ", leads" : ""}`, trainer.address]
      : [`peer ${peer.id} of stage ${stage}: ${peer.phase}`, `${peer.held} of ${peer.capacity} microbatches, ${peer.queued} queued`, peer.address];
    if (peer && peer.summary) lines.push(`${count(peer.summary.microbatches)} computed, ${bytes(peer.summary.memory_bytes)}, ${peer.summary.reach}`);
    for (const [from, to, microbatches, cost] of this.view.links) {
      if (to === id && lines.length < 9) lines.push(`${microbatches} from ${from}${cost === null ? "" : `, ${seconds(cost)} each`}`);
    }
    this.tip.textContent = lines.filter(Boolean).join("\n");
    this.tip.style.left = `${Math.min(place.x + 20, this.canvas.clientWidth - 200)}px`;
    this.tip.style.top = `${place.y + 44}px`;
  }
}
