// Deaths and repairs: a dead peer stays crossed out for some seconds, with an arrow to who takes over its work.

import { calm, palette } from "./theme.js";
import { idOf } from "./paint.js";

const SHOWN_MS = 12000;
const FADE_MS = 1500;

export class Repairs {
  constructor() {
    this.forget();
  }

  forget() {
    this.dead = new Map(); // id -> {stage, since}
    this.takeovers = []; // {heir, stage, since}
  }

  take(events, now) {
    for (const { kind, peer, stage } of events) {
      if (!peer || stage < 0) continue;
      if (kind === "died") this.dead.set(peer, { stage, since: now });
      else if (kind === "repaired") this.takeovers.push({ heir: peer, stage, since: now });
    }
  }

  // Whether any of them is over since the last call: then the others may have its place.
  expire(now) {
    const before = this.dead.size + this.takeovers.length;
    for (const [id, { since }] of this.dead) if (now - since > SHOWN_MS) this.dead.delete(id);
    this.takeovers = this.takeovers.filter(({ since }) => now - since <= SHOWN_MS);
    return this.dead.size + this.takeovers.length !== before;
  }

  get active() {
    return this.dead.size + this.takeovers.length > 0;
  }

  draw(context, places, now) {
    for (const { heir, stage, since } of this.takeovers) {
      if (this.dead.has(heir)) continue;
      context.globalAlpha = fading(now - since);
      const to = places.get(heir);
      if (!to) continue;
      for (const [id, ghost] of this.dead) {
        const from = places.get(id);
        if (from && ghost.stage === stage && id !== heir) drawTakeover(context, from, to, now);
      }
      drawHeir(context, to);
    }
    for (const [id, { since }] of this.dead) {
      context.globalAlpha = fading(now - since);
      const place = places.get(id);
      if (place) drawDead(context, id, place);
    }
    context.globalAlpha = 1;
  }
}

const fading = (age) => Math.max(0, Math.min(1, (SHOWN_MS - age) / FADE_MS));

// In one column the arrow swings out at the right; to another one it bends a little.
function drawTakeover(context, from, to, now) {
  const column = Math.abs(from.x - to.x) < 30;
  const reach = to.r + 13;
  const start = column ? { x: from.x + from.r + 3, y: from.y } : from;
  const swing = column ? Math.min(34 + Math.min(40, Math.abs(to.y - from.y) * 0.2), to.labelled ? to.labelled * 0.42 : 40) : 0;
  const first = { x: start.x + swing, y: start.y + (to.y - from.y) * 0.1 };
  const second = column ? { x: to.x + reach + swing, y: to.y } : { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 - 24 };
  const angle = Math.atan2(to.y - second.y, to.x - second.x);
  const end = { x: to.x - Math.cos(angle) * reach, y: to.y - Math.sin(angle) * reach };
  context.strokeStyle = context.fillStyle = palette.repair;
  context.lineWidth = 3;
  context.setLineDash([8, 6]);
  context.lineDashOffset = calm.matches ? 0 : -now / 40;
  context.beginPath();
  context.moveTo(start.x, start.y);
  context.bezierCurveTo(first.x, first.y, second.x, second.y, end.x - Math.cos(angle) * 6, end.y - Math.sin(angle) * 6);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(end.x, end.y);
  context.lineTo(end.x - Math.cos(angle) * 10 - Math.sin(angle) * 6, end.y - Math.sin(angle) * 10 + Math.cos(angle) * 6);
  context.lineTo(end.x - Math.cos(angle) * 10 + Math.sin(angle) * 6, end.y - Math.sin(angle) * 10 - Math.cos(angle) * 6);
  context.fill();
}

function drawHeir(context, { x, y, r }) {
  context.strokeStyle = palette.repair;
  context.lineWidth = 2;
  for (const out of [4, 8]) {
    context.beginPath();
    context.arc(x, y, r + out, 0, 2 * Math.PI);
    context.stroke();
  }
}

function drawDead(context, id, { x, y, r, labelled }) {
  const size = Math.max(6, r);
  context.beginPath();
  context.arc(x, y, size, 0, 2 * Math.PI);
  context.fillStyle = palette.card;
  context.fill();
  context.strokeStyle = palette.dead;
  context.lineWidth = 2;
  context.setLineDash([4, 4]);
  context.stroke();
  context.setLineDash([]);
  const arm = size * 0.62;
  context.lineWidth = Math.max(3, size * 0.22);
  context.lineCap = "round";
  context.beginPath();
  context.moveTo(x - arm, y - arm);
  context.lineTo(x + arm, y + arm);
  context.moveTo(x + arm, y - arm);
  context.lineTo(x - arm, y + arm);
  context.stroke();
  context.lineCap = "butt";
  if (!labelled) return;
  context.fillStyle = palette.dead;
  context.textAlign = "center";
  context.font = `600 11px ${palette.sans}`;
  context.fillText(`${idOf(id)} died`, x, y + r + 23);
}
