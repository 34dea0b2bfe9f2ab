// The table of peers: what each contributes, how it is reached, and what it uses. Rows are kept, and only cells change.

import { bytes, count, element, percent, seconds } from "./format.js";

const PAGE = 100; // rows at first: a browser lays out a thousand rows slowly, and nobody reads them

const summed = (name) => (peer) => peer.summary?.[name] ?? null;
const COLUMNS = [
  { name: "Peer", of: (peer) => peer.id, show: String, word: true },
  { name: "Stage", of: (peer) => peer.stage, show: String },
  { name: "State", of: (peer) => peer.phase, show: (value, peer) => (peer.summary?.loading_total_bytes ? `${value} ${percent(peer.summary.loading_bytes / peer.summary.loading_total_bytes)}` : value), word: true },
  { name: "Held", of: (peer) => peer.held, show: (value, peer) => `${value} / ${peer.capacity}` },
  { name: "Microbatches", of: summed("microbatches"), show: count },
  { name: "Tokens", of: summed("tokens"), show: count },
  { name: "Computed", of: summed("compute_s"), show: seconds },
  { name: "Share", of: (peer) => peer.share, show: percent },
  { name: "Wasted", of: summed("wasted_s"), show: seconds },
  { name: "Sent", of: summed("sent_bytes"), show: bytes },
  { name: "Received", of: summed("received_bytes"), show: bytes },
  { name: "Memory", of: summed("memory_bytes"), show: bytes },
  { name: "Reached", of: (peer) => peer.summary?.reach ?? "unknown", show: (value, peer) => (peer.address ? `${value}, ${peer.address}` : value), word: true },
];

export class Peers {
  constructor(table, find, more) {
    this.find = find;
    this.more = more;
    this.limit = PAGE;
    this.peers = [];
    this.sorted = { column: 1, down: false };
    this.rows = new Map();
    const head = element("thead");
    const row = element("tr");
    COLUMNS.forEach((column, number) => {
      const cell = element("th", "", column.word ? "word" : "");
      cell.scope = "col";
      const button = element("button", column.name);
      button.type = "button";
      button.addEventListener("click", () => this.sort(number));
      cell.append(button);
      row.append(cell);
    });
    head.append(row);
    this.heads = [...row.children];
    this.body = element("tbody");
    table.append(head, this.body);
    find.addEventListener("input", () => this.render());
    more.addEventListener("click", () => { this.limit += 5 * PAGE; this.render(); });
  }

  sort(number) {
    this.sorted = { column: number, down: this.sorted.column === number ? !this.sorted.down : !COLUMNS[number].word };
    this.render();
  }

  show(view) {
    this.peers = view.stages.flatMap(({ stage, peers }) => peers.map((peer) => ({ ...peer, stage })));
    const total = this.peers.reduce((sum, peer) => sum + (peer.summary?.tokens ?? 0), 0);
    for (const peer of this.peers) peer.share = total ? (peer.summary?.tokens ?? 0) / total : null;
    this.render();
  }

  render() {
    const wanted = this.find.value.toLowerCase();
    const { column, down } = this.sorted;
    this.heads.forEach((cell, number) => cell.setAttribute("aria-sort", number === column ? (down ? "descending" : "ascending") : "none"));
    const of = COLUMNS[column].of;
    const found = this.peers.filter((peer) => !wanted || `${peer.id} ${peer.phase} ${peer.address} stage ${peer.stage}`.toLowerCase().includes(wanted));
    found.sort((a, b) => {
      const [x, y] = [of(a), of(b)];
      const order = typeof x === "string" ? x.localeCompare(y) : (x ?? -1) - (y ?? -1);
      return (down ? -order : order) || (a.id < b.id ? -1 : 1);
    });
    const shown = found.slice(0, this.limit);
    this.more.hidden = shown.length === found.length;
    this.more.textContent = `Show more (${found.length - shown.length})`;
    const rows = new Map(shown.map((peer) => [peer.id, this.rows.get(peer.id) ?? this.row()]));
    for (const [id, row] of this.rows) if (!rows.has(id)) row.remove();
    this.rows = rows;
    let before = null;
    for (const peer of shown) {
      const row = rows.get(peer.id);
      COLUMNS.forEach(({ of: value, show }, number) => {
        const text = show(value(peer), peer);
        const cell = row.children[number];
        if (cell.textContent !== text) cell.textContent = text;
      });
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== row) this.body.insertBefore(row, next);
      before = row;
    }
  }

  row() {
    const row = element("tr");
    for (const column of COLUMNS) row.append(element("td", "", column.word ? "word" : ""));
    return row;
  }
}
