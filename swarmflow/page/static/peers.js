// The table of peers. Only the rows in sight exist: with a thousand peers it scrolls, sorts and changes as with ten.

import { COLUMNS, sortedBy, totalsOf } from "./columns.js";
import { byId, element, setClass, setText } from "./dom.js";
import { clean } from "./format.js";

const ROW = 36; // pixels; as in tables.css
const SPARE = 6; // rows beyond the edges, so that a scroll shows no gap

export class Peers {
  constructor() {
    this.table = byId("peers");
    this.scroll = byId("peers-scroll");
    this.peers = [];
    this.rows = [];
    this.column = COLUMNS[1];
    this.falling = false;
    this.wanted = "";
    this.picked = null;
    this.makeHead();
    const body = element("tbody");
    this.above = this.space(body);
    this.below = this.space(body);
    this.table.append(body);
    this.scroll.addEventListener("scroll", () => this.paint(), { passive: true });
    new ResizeObserver(() => this.paint()).observe(this.scroll);
    byId("peers-find").addEventListener("input", (event) => {
      this.wanted = event.target.value.toLowerCase();
      this.arrange();
    });
  }

  makeHead() {
    const columns = element("colgroup");
    const row = this.table.createTHead().insertRow();
    for (const column of COLUMNS) {
      const made = element("col");
      made.style.width = `${column.width}px`;
      columns.append(made);
      column.head = element("th", "", column.left ? "left" : "");
      column.head.scope = "col";
      const button = element("button", column.name);
      button.type = "button";
      if (column.title) button.title = column.title;
      button.addEventListener("click", () => this.sortBy(column));
      column.head.append(button);
      row.append(column.head);
    }
    this.table.prepend(columns);
    this.mark();
  }

  // A row as high as those that do not exist.
  space(body) {
    const row = element("tr", "", "space");
    row.setAttribute("aria-hidden", "true");
    const cell = element("td");
    cell.colSpan = COLUMNS.length;
    row.append(cell);
    body.append(row);
    return cell;
  }

  sortBy(column) {
    // Numbers begin with the largest: who contributes most is what one wants to know.
    this.falling = this.column === column ? !this.falling : !column.left && column.name !== "Stage";
    this.column = column;
    this.mark();
    this.arrange();
  }

  mark() {
    for (const column of COLUMNS) {
      const way = column !== this.column ? "none" : this.falling ? "descending" : "ascending";
      column.head.setAttribute("aria-sort", way);
    }
  }

  show(run) {
    this.all = totalsOf(run.peers, run.rates);
    this.arrange();
  }

  arrange() {
    if (!this.all) return;
    const found = this.wanted
      ? this.all.filter((peer) => `${peer.id} ${peer.name} ${peer.phase} ${peer.address} stage ${peer.stage}`.toLowerCase().includes(this.wanted))
      : this.all;
    this.peers = sortedBy(found, this.column, this.falling);
    const some = found.length === this.all.length ? "" : `${found.length} of `;
    setText(byId("peers-count"), `${some}${this.all.length} peers`);
    this.table.setAttribute("aria-rowcount", String(found.length + 1));
    this.paint();
  }

  paint() {
    const top = Math.max(0, Math.floor((this.scroll.scrollTop - ROW) / ROW) - SPARE);
    const most = Math.ceil(this.scroll.clientHeight / ROW) + 2 * SPARE;
    const first = Math.max(0, Math.min(top, this.peers.length - most));
    const shown = this.peers.slice(first, first + most);
    while (this.rows.length < shown.length) this.rows.push(this.makeRow());
    while (this.rows.length > shown.length) this.rows.pop().row.remove();
    shown.forEach((peer, number) => this.fill(this.rows[number], peer, first + number + 2));
    setHeight(this.above, first * ROW);
    setHeight(this.below, (this.peers.length - first - shown.length) * ROW);
  }

  makeRow() {
    const row = element("tr");
    const cells = COLUMNS.map((column, number) => {
      const cell = element("td", "", column.left ? "left" : "");
      let target = cell;
      let meter = null;
      if (number === 0) {
        target = element("span", "", "id");
        cell.append(target);
      } else if (column.meter) {
        meter = element("meter");
        target = element("span");
        cell.append(meter, target);
      }
      row.append(cell);
      return { cell, target, meter };
    });
    this.below.parentNode.before(row);
    return { row, cells };
  }

  fill({ row, cells }, peer, index) {
    if (row.dataset.id !== peer.id) {
      row.dataset.id = peer.id;
      row.title = clean(peer.name);
    }
    row.setAttribute("aria-rowindex", String(index));
    setClass(row, this.picked === peer.id ? "picked" : "");
    COLUMNS.forEach((column, number) => {
      const { target, meter } = cells[number];
      setText(target, column.text(peer));
      if (column.name === "State") setClass(target, `left phase ${/^[a-z]+$/.test(peer.phase) ? peer.phase : ""}`);
      if (meter) {
        const share = column.meter(peer);
        if (meter.value !== share) meter.value = share;
        if (meter.getAttribute("aria-label") !== "load") meter.setAttribute("aria-label", "load");
      }
    });
  }

  // Show the row of a peer that was picked in the picture.
  pick(id) {
    const at = this.peers.findIndex((peer) => peer.id === id);
    this.picked = id;
    if (at >= 0) this.scroll.scrollTop = at * ROW - this.scroll.clientHeight / 2;
    this.scroll.scrollIntoView({ block: "nearest" });
    this.paint();
  }
}

function setHeight(cell, height) {
  const wanted = `${height}px`;
  if (cell.style.height !== wanted) cell.style.height = wanted;
  cell.parentNode.hidden = height === 0;
}
