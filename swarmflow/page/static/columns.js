// The columns of the table of peers: what each shows, and by what it is sorted.

import { DASH, bytes, count, percent, seconds } from "./format.js";
import { shareOf } from "./paint.js";

const REACHED = { public: "direct", punched: "punched", relay: "relay", local: "local", unknown: "unknown" };
const of = (peer, name) => peer.summary?.[name];

const busyOf = (peer) => of(peer, "utilisation") ?? peer.busy ?? null;

// share: of the microbatches that the peers present have computed.
export const COLUMNS = [
  { name: "Peer", width: 122, left: true, text: (peer) => peer.id, sort: (peer) => peer.id },
  { name: "Stage", width: 66, text: (peer) => String(peer.stage), sort: (peer) => peer.stage },
  { name: "State", width: 92, left: true, text: (peer) => peer.phase, sort: (peer) => peer.phase },
  { name: "Load", width: 136, left: true, meter: shareOf, text: loadText, sort: shareOf },
  { name: "Microbatches", width: 112, text: (peer) => count(of(peer, "microbatches")), sort: (peer) => of(peer, "microbatches") },
  { name: "Tokens", width: 78, text: (peer) => count(of(peer, "tokens")), sort: (peer) => of(peer, "tokens") },
  { name: "Share", width: 68, text: (peer) => percent(peer.share), sort: (peer) => peer.share },
  { name: "Computed", width: 92, text: (peer) => seconds(of(peer, "compute_s")), sort: (peer) => of(peer, "compute_s") },
  { name: "Wasted", width: 80, text: (peer) => seconds(of(peer, "wasted_s")), sort: (peer) => of(peer, "wasted_s") },
  { name: "Busy", width: 66, text: (peer) => percent(busyOf(peer)), sort: busyOf },
  { name: "Sent", width: 80, text: (peer) => bytes(of(peer, "sent_bytes")), sort: (peer) => of(peer, "sent_bytes") },
  { name: "Received", width: 88, text: (peer) => bytes(of(peer, "received_bytes")), sort: (peer) => of(peer, "received_bytes") },
  { name: "Memory", width: 84, text: (peer) => bytes(of(peer, "memory_bytes")), sort: (peer) => of(peer, "memory_bytes") },
  { name: "Reached", width: 176, left: true, text: reachOf, sort: reachOf },
];

function reachOf(peer) {
  const reach = of(peer, "reach");
  return reach === undefined ? peer.address || DASH : `${REACHED[reach] ?? reach} ${peer.address}`;
}

function loadText(peer) {
  const total = of(peer, "loading_total_bytes");
  if (total) return percent(of(peer, "loading_bytes") / total);
  return `${peer.held} of ${peer.capacity}`;
}

export function totalsOf(peers, rates) {
  const all = peers.reduce((sum, peer) => sum + (of(peer, "microbatches") ?? 0), 0);
  for (const peer of peers) {
    peer.share = all && peer.summary ? peer.summary.microbatches / all : null;
    peer.busy = rates.of(peer.id)?.utilisation ?? null;
  }
  return peers;
}

export function sortedBy(peers, column, falling) {
  const sign = falling ? -1 : 1;
  const keyed = peers.map((peer) => [column.sort(peer), peer]);
  // What is unknown stands last, whichever way the table is sorted.
  keyed.sort(([a, one], [b, other]) => {
    const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
    if (noA || noB) return noA - noB || (one.id < other.id ? -1 : 1);
    if (a === b) return one.stage - other.stage || (one.id < other.id ? -1 : 1);
    return a < b ? -sign : sign;
  });
  return keyed.map(([, peer]) => peer);
}
