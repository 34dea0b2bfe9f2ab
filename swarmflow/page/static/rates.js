// How busy the peers are and how much they send: from their counts, each of which is new every few seconds.
//
// A peer's rate is that between its last two reports, and holds until the next one; a peer that has gone has none. So
// no death looks like a drop of a sum of counts, and no join like a leap.

const SAMPLE_S = 1;
const REPORT_S = 3; // a rate over less is noise
const SAMPLES_MAX = 4000;

export class Rates {
  constructor() {
    this.peers = new Map(); // id -> {time, compute, sent, utilisation, bytesPerS}
    this.samples = []; // {step, utilisation, bytesPerS}, in the order of time
    this.sampled = -Infinity;
  }

  take(view) {
    const present = new Set();
    for (const { peers } of view.stages) {
      for (const peer of peers) {
        present.add(peer.id);
        if (peer.summary) this.report(peer.id, peer.summary, view.time);
      }
    }
    for (const id of this.peers.keys()) if (!present.has(id)) this.peers.delete(id);
    if (view.time - this.sampled >= SAMPLE_S) this.sample(view);
  }

  report(id, summary, time) {
    const { compute_s: compute, sent_bytes: sent } = summary;
    const known = this.peers.get(id);
    if (!known) {
      this.peers.set(id, { time, compute, sent, utilisation: null, bytesPerS: null });
    } else if (compute !== known.compute || sent !== known.sent) {
      const elapsed = Math.max(1e-3, time - known.time);
      if (elapsed < REPORT_S) return;
      known.utilisation = Math.min(1, Math.max(0, (compute - known.compute) / elapsed));
      known.bytesPerS = Math.max(0, (sent - known.sent) / elapsed);
      Object.assign(known, { time, compute, sent });
    } else if (time - known.time > 15) {
      known.utilisation = known.bytesPerS = 0; // it has reported since, that nothing has changed
    }
  }

  // One point for a step: the mean of what was seen in it.
  sample(view) {
    const known = [...this.peers.values()].filter((peer) => peer.utilisation !== null);
    this.sampled = view.time;
    if (!known.length) return;
    const sum = (name) => known.reduce((total, peer) => total + peer[name], 0);
    while (this.samples.length && this.samples.at(-1).step > view.step) this.samples.pop();
    if (this.samples.at(-1)?.step !== view.step) this.samples.push({ step: view.step, seen: 0, utilisation: 0, bytesPerS: 0 });
    const point = this.samples.at(-1);
    point.seen += 1;
    point.utilisation += (sum("utilisation") / known.length - point.utilisation) / point.seen;
    point.bytesPerS += (sum("bytesPerS") - point.bytesPerS) / point.seen;
    if (this.samples.length > SAMPLES_MAX) this.samples = this.samples.filter((_, number) => number % 2);
  }

  of(id) {
    return this.peers.get(id);
  }
}
