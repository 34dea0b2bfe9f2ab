// The microbatches of the step as dots, each at the peer where it has got furthest; they fly when a view has them elsewhere.

import { scaleOf, spriteOf, stamp } from "./sprites.js";
import { calm, palette } from "./theme.js";

const FLIGHT_MS = 650; // a little longer than the time between two views: the picture never stands still in a running step
const DOTS_MAX = 2500; // of more, nobody could tell one from another
const RETURNS_MAX = 400;
const LARGE_MAX = 160; // nodes, up to which dots are large and have a trail
const ARC = 2.2; // radians of each side of a peer: above and below it are names

export class Microbatches {
  constructor() {
    this.forget();
  }

  forget() {
    this.dots = new Map(); // microbatch -> {from: [x, y], at: [x, y], feeder, to, since, done, slot}
    this.returning = []; // {from: [x, y], to, since}: gradients of a committed step, on their way home
    this.step = null;
    this.doneOf = new Map(); // stage -> microbatches done there
    this.until = 0; // when the last of them arrives
  }

  // Forward, a microbatch is at its latest stage; on its way back, at the earliest one that has its gradient.
  take(view, now) {
    const at = new Map();
    this.doneOf = new Map();
    for (const [index, stage, peer, state] of view.hops) {
      const done = state === "done";
      if (done) this.doneOf.set(stage, (this.doneOf.get(stage) ?? 0) + 1);
      const known = at.get(index);
      if (!known || (done && !known.done) || (done === known.done && (done ? stage < known.stage : stage > known.stage))) {
        at.set(index, { peer, stage, done });
      }
    }
    const feeders = new Map(); // peer -> the trainer that feeds it
    const trainers = new Set(view.trainers.map((trainer) => trainer.id));
    for (const [from, to] of view.links) if (trainers.has(from)) feeders.set(to, from);
    if (this.step !== null && view.step > this.step) this.sendHome(view, now);
    this.step = view.step;
    for (const index of this.dots.keys()) if (!at.has(index)) this.dots.delete(index);
    for (const [index, { peer, done }] of at) this.move(index, peer, done, feeders.get(peer) ?? null, now);
    this.park();
  }

  move(index, peer, done, feeder, now) {
    const dot = this.dots.get(index);
    if (dot && dot.to === peer && dot.done === done) return;
    if (!dot && this.dots.size >= DOTS_MAX) return;
    // A spread of the starts keeps dots that leave together from flying as one.
    const since = now + (index % 7) * 25;
    this.dots.set(index, { at: dot?.at ?? null, from: dot?.at ?? null, feeder, to: peer, since, done, slot: 0 });
    this.until = Math.max(this.until, since + FLIGHT_MS);
  }

  sendHome(view, now) {
    const leader = view.trainers.find((trainer) => trainer.leads) ?? view.trainers[0];
    this.returning = leader && this.dots.size <= RETURNS_MAX
      ? [...this.dots.values()].map((dot, number) => ({ from: dot.at, to: leader.id, since: now + (number % 9) * 20 })) : [];
    if (this.returning.length) this.until = Math.max(this.until, now + FLIGHT_MS + 180);
    this.dots.clear();
  }

  // Each has a slot beside its peer: at the right on its way forward, at the left on its way back.
  park() {
    const held = new Map();
    for (const done of [false, true]) {
      held.clear();
      for (const dot of this.dots.values()) {
        if (dot.done !== done) continue;
        dot.slot = held.get(dot.to) ?? 0;
        held.set(dot.to, dot.slot + 1);
      }
    }
  }

  moving(now) {
    return !calm.matches && now < this.until;
  }

  draw(context, places, now) {
    const large = places.size <= LARGE_MAX;
    const size = large ? 4.6 : 2.6;
    const trails = large ? { done: new Path2D(), forward: new Path2D() } : {};
    const scale = scaleOf(context);
    const sprites = {
      done: spriteOf("done", scale, 3 * size, (own) => paintDot(own, "done", size, large)),
      forward: spriteOf("forward", scale, 3 * size, (own) => paintDot(own, "forward", size, large)),
    };
    const seen = []; // [sprite, [x, y]]
    for (const dot of this.dots.values()) {
      const to = places.get(dot.to);
      if (!to) continue;
      const rest = slotAt(to, dot.slot, dot.done, size);
      const feeder = places.get(dot.feeder);
      const kind = dot.done ? "done" : "forward";
      dot.from ??= feeder ? [feeder.x, feeder.y] : rest;
      dot.at = fly(dot, rest, now, trails[kind]);
      seen.push([sprites[kind], dot.at]);
    }
    for (const dot of this.returning) {
      const to = places.get(dot.to);
      if (!dot.from || !to || calm.matches || now - dot.since > FLIGHT_MS) continue;
      seen.push([sprites.done, fly(dot, [to.x, to.y], now, trails.done)]);
    }
    drawTrails(context, trails, size);
    for (const [sprite, [x, y]] of seen) stamp(context, sprite, x, y);
  }
}

function drawTrails(context, trails, size) {
  context.lineCap = "round";
  context.lineWidth = size * 1.1;
  context.globalAlpha = 0.3;
  for (const [kind, path] of Object.entries(trails)) {
    context.strokeStyle = palette[kind];
    context.stroke(path);
  }
  context.globalAlpha = 1;
  context.lineCap = "butt";
}

function fly({ from, since }, rest, now, trail) {
  const part = calm.matches ? 1 : Math.min(1, Math.max(0, (now - since) / FLIGHT_MS));
  if (part >= 1) return rest;
  const at = between(from, rest, part);
  if (trail && part > 0.02) {
    trail.moveTo(...between(from, rest, Math.max(0, part - 0.12)));
    trail.lineTo(...at);
  }
  return at;
}

function between([fromX, fromY], [x, y], part) {
  const eased = part * part * (3 - 2 * part);
  return [fromX + (x - fromX) * eased, fromY + (y - fromY) * eased * eased * (3 - 2 * eased)];
}

function slotAt(place, slot, done, size) {
  const gap = size * 2.5;
  let ring = place.r + size + 4;
  const fits = () => Math.max(1, Math.floor((ARC * ring) / gap));
  while (slot >= fits()) {
    slot -= fits();
    ring += gap;
  }
  // From the middle of the side up and down in turn.
  const angle = ((slot % 2 ? 1 : -1) * Math.ceil(slot / 2) * gap) / ring;
  return [place.x + (done ? -1 : 1) * Math.cos(angle) * ring, place.y + Math.sin(angle) * ring];
}

// On its way forward a microbatch is a disc, and its gradient a diamond.
function paintDot(context, kind, size, edged) {
  context.beginPath();
  if (kind === "done") {
    const arm = size * 1.2;
    context.moveTo(0, -arm);
    context.lineTo(arm, 0);
    context.lineTo(0, arm);
    context.lineTo(-arm, 0);
    context.closePath();
  } else context.arc(0, 0, size, 0, 2 * Math.PI);
  context.fillStyle = palette[kind];
  context.fill();
  if (!edged) return;
  context.strokeStyle = palette.edge;
  context.stroke();
}
