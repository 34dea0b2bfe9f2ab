// What stands still in the picture between two views: lanes, flows and nodes. Painted when something has changed.

import { clean, percent, seconds } from "./format.js";
import { scaleOf, spriteOf, stamp } from "./sprites.js";
import { palette } from "./theme.js";

const FLOWS_NAMED_MAX = 10; // with more, the numbers would lie upon one another
const FLOWS_THICK_MAX = 250; // thick lines that cross one another are costly; of more flows all are hairlines,
const FLOWS_MAX = 1200; // and only those with the most microbatches are drawn, and those of a node that is picked
const NUMBERED_R = 12; // below, a node has no room for a number
const STAMPED_R = 10; // below, nodes are copies of one another
const SHARES = 12; // in which the load of such a node is told

export const idOf = (id) => clean(id, 24).split(".")[0].slice(0, 12);

function roundRect(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text.length - 1;
  while (kept > 1 && context.measureText(`${text.slice(0, kept)}…`).width > width) kept -= 1;
  return `${text.slice(0, kept)}…`;
}

export function paintLanes(context, layout, view, doneOf, height) {
  for (const { stage, x, width } of layout.lanes) {
    const serving = stage ? stage.peers.filter((peer) => peer.phase === "serving" || peer.phase === "ready").length : 1;
    roundRect(context, x + 0.5, 0.5, width - 1, height - 1, 12);
    context.fillStyle = palette.lane;
    context.fill();
    if (!serving) {
      context.setLineDash([6, 5]);
      context.lineWidth = 2;
      context.strokeStyle = palette.dead;
      context.stroke();
      context.setLineDash([]);
    }
    const side = width < 90 ? 6 : 10;
    context.textAlign = "left";
    context.fillStyle = palette.text;
    context.font = `600 ${width < 90 ? 12 : 13}px ${palette.sans}`;
    context.fillText(shortened(context, stage ? `Stage ${stage.stage}` : "Trainers", width - 2 * side), x + side, 20);
    context.font = `12px ${palette.sans}`;
    context.fillStyle = palette.soft;
    if (!stage) {
      context.fillText(shortened(context, width > 100 ? `${view.trainers.length} with data` : String(view.trainers.length), width - 2 * side), x + side, 37);
      continue;
    }
    const done = doneOf.get(stage.stage) ?? 0;
    const peers = `${serving === stage.peers.length ? serving : `${serving} of ${stage.peers.length}`} ${serving === 1 && stage.peers.length === 1 ? "peer" : "peers"}`;
    const text = width > 170 ? `${peers} · ${done} of ${view.microbatches} done` : peers;
    if (!serving) context.fillStyle = palette.dead;
    context.fillText(shortened(context, serving ? text : "✕ nobody serves it", width - 2 * side), x + side, 37);
    roundRect(context, x + side, 46, width - 2 * side, 4, 2);
    context.fillStyle = palette.track;
    context.fill();
    const share = view.microbatches ? Math.min(1, done / view.microbatches) : 0;
    if (share) {
      roundRect(context, x + side, 46, (width - 2 * side) * share, 4, 2);
      context.fillStyle = palette.done;
      context.fill();
    }
  }
}

export function flowPath(context, a, b) {
  const half = Math.max(18, (b.x - a.x) / 2);
  context.moveTo(a.x, a.y);
  context.bezierCurveTo(a.x + half, a.y, b.x - half, b.y, b.x, b.y);
}

const widthOfFlow = (microbatches) => Math.min(11, 0.6 + 1.5 * Math.sqrt(microbatches));

export function paintFlows(context, layout, links, picked) {
  const many = links.length > FLOWS_THICK_MAX;
  const drawn = many ? [...links].sort((a, b) => b[2] - a[2]).slice(0, FLOWS_MAX) : links;
  const byWidth = new Map(); // flows of one width are one stroke
  for (const [from, to, microbatches] of picked ? [...drawn, ...links.filter(([a, b]) => a === picked || b === picked)] : drawn) {
    const a = layout.places.get(from);
    const b = layout.places.get(to);
    if (!a || !b) continue;
    const lit = picked === from || picked === to;
    const width = many && !lit ? 1 : Math.round(2 * widthOfFlow(microbatches)) / 2;
    const key = lit ? -width : width;
    if (!byWidth.has(key)) byWidth.set(key, { lit, width, path: new Path2D() });
    flowPath(byWidth.get(key).path, a, b);
  }
  for (const { lit, width, path } of [...byWidth.values()].sort((a, b) => a.lit - b.lit || b.width - a.width)) {
    context.strokeStyle = lit ? palette.accent : palette.flow;
    context.globalAlpha = lit ? 0.85 : picked ? 0.16 : many ? 0.3 : 0.45;
    context.lineWidth = width;
    context.stroke(path);
  }
  context.globalAlpha = 1;
}

// How many microbatches a flow has, and what one costs: of all of a small picture, else of the node that is picked.
export function paintFlowNames(context, layout, links, picked) {
  const named = picked ? links.filter(([from, to]) => from === picked || to === picked) : links;
  if (named.length > (picked ? 2 * FLOWS_NAMED_MAX : FLOWS_NAMED_MAX)) return;
  context.font = `11px ${palette.sans}`;
  context.textAlign = "center";
  const taken = []; // [x, y, width] of names, which do not lie upon one another
  for (const [from, to, microbatches, cost] of named) {
    const a = layout.places.get(from);
    const b = layout.places.get(to);
    if (!a || !b || b.x - a.x < 120) continue;
    const text = Number.isFinite(cost) ? `${microbatches} × ${seconds(cost)}` : String(microbatches);
    const wide = context.measureText(text).width + 10;
    // Away from the node at which all flows of the picked one meet.
    const parts = picked === from ? [0.66, 0.78, 0.54] : picked ? [0.34, 0.22, 0.46] : [0.5, 0.36, 0.64, 0.25];
    const spots = parts.map((part) => [a.x + (b.x - a.x) * part, a.y + (b.y - a.y) * part * part * (3 - 2 * part)]);
    const free = spots.find(([x, y]) => layout.nearest(x, y, 8) === null && taken.every(([otherX, otherY, other]) => Math.abs(x - otherX) > (wide + other) / 2 || Math.abs(y - otherY) > 18));
    if (!free) continue;
    taken.push([...free, wide]);
    paintName(context, text, ...free, wide);
  }
}

function paintName(context, text, x, y, wide) {
  roundRect(context, x - wide / 2, y - 9, wide, 18, 9);
  context.fillStyle = palette.card;
  context.fill();
  context.strokeStyle = palette.line;
  context.lineWidth = 1;
  context.stroke();
  context.fillStyle = palette.text;
  context.fillText(text, x, y + 4);
}

// Nodes of one kind are one path: a thousand of them are a few strokes.
export function paintNodes(context, layout) {
  const kinds = new Map();
  const scale = scaleOf(context);
  for (const place of layout.places.values()) {
    if (place.ghost) continue;
    if (place.peer && place.r <= STAMPED_R) {
      stampNode(context, place, scale);
      continue;
    }
    const kind = place.trainer ? "trainer" : styleOf(place.peer.phase);
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push(place);
  }
  for (const [kind, places] of kinds) paintKind(context, kind, places);
  paintLoads(context, layout);
  paintNames(context, layout);
}

function styleOf(phase) {
  if (phase === "serving" || phase === "ready") return "serving";
  if (phase === "draining") return "draining";
  return phase === "failed" || phase === "barred" ? "failed" : "loading";
}

function paintKind(context, kind, places) {
  context.beginPath();
  for (const { x, y, r } of places) {
    if (kind === "trainer") context.roundRect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8, r * 0.4);
    else if (kind === "failed") { context.moveTo(x, y - r); context.lineTo(x + r, y); context.lineTo(x, y + r); context.lineTo(x - r, y); context.closePath(); }
    else { context.moveTo(x + r, y); context.arc(x, y, r, 0, 2 * Math.PI); }
  }
  const thick = places[0].r > 10;
  context.fillStyle = palette.card;
  context.fill();
  context.lineWidth = thick ? 4 : Math.min(1.5, places[0].r * 0.3);
  if (kind === "draining") context.setLineDash(thick ? [5, 4] : [2, 2]);
  const colours = { trainer: palette.text, serving: thick ? palette.track : palette.accent, loading: palette.track, draining: palette.draining, failed: palette.dead };
  context.strokeStyle = colours[kind];
  if (kind === "trainer") context.lineWidth = 2;
  context.stroke();
  context.setLineDash([]);
}

// A small node is a pie: as full as the peer, or as far as it has loaded.
function stampNode(context, { x, y, r, peer }, scale) {
  const style = styleOf(peer.phase);
  const share = Math.ceil(shareOf(peer) * SHARES);
  const radius = Math.round(r * 4) / 4;
  const sprite = spriteOf(`${style} ${share}`, scale, 2 * radius + 3, (own) => {
    paintKind(own, style, [{ x: 0, y: 0, r: radius }]);
    if (!share || radius < 2.5) return;
    own.fillStyle = palette[style === "loading" ? "loading" : "accent"];
    own.beginPath();
    own.moveTo(0, 0);
    own.arc(0, 0, radius * 0.74, -Math.PI / 2, -Math.PI / 2 + (2 * Math.PI * share) / SHARES);
    own.fill();
  });
  stamp(context, sprite, x, y);
}

// The ring of a peer is how full it is; while it loads, how much of its stage has arrived.
function paintLoads(context, layout) {
  context.lineWidth = 4;
  for (const { x, y, r, peer } of layout.places.values()) {
    const share = peer && r > STAMPED_R ? shareOf(peer) : 0;
    if (share <= 0) continue;
    context.strokeStyle = palette[styleOf(peer.phase) === "loading" ? "loading" : "accent"];
    context.beginPath();
    context.arc(x, y, r, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * share);
    context.stroke();
  }
}

export function shareOf(peer) {
  if (styleOf(peer.phase) !== "loading") return peer.capacity ? Math.min(1, peer.held / peer.capacity) : 0;
  const { loading_bytes: have, loading_total_bytes: total } = peer.summary ?? {};
  return total ? Math.min(1, have / total) : 0;
}

function paintNames(context, layout) {
  for (const { id, x, y, r, peer, trainer, labelled, ghost } of layout.places.values()) {
    if (ghost || r < NUMBERED_R) continue;
    context.textAlign = "center";
    context.fillStyle = palette.text;
    context.font = `600 13px ${palette.sans}`;
    if (trainer) context.fillText(trainer.leads ? "★" : "T", x, y + 5);
    else if (styleOf(peer.phase) === "loading") {
      context.font = `600 11px ${palette.sans}`;
      context.fillText(percent(shareOf(peer)), x, y + 4);
    } else context.fillText(String(peer.held), x, y + 5);
    if (!labelled) continue;
    context.font = `11px ${palette.mono}`;
    context.fillStyle = palette.soft;
    context.fillText(shortened(context, idOf(id), labelled), x, y + r + 23);
  }
}
