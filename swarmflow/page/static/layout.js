// Where everything of the pipeline stands: a lane for the trainers and one for each stage, and a place for each node.

export const HEADER = 58;
const GAP = 14;
const MARGIN = 2;
const LABELLED = { width: 66, height: 84, most: 104 }; // a node with its name below
const LANE_MIN = 76;

export function widthOf(view, room) {
  return Math.max(room, (view.stages.length + 1) * LANE_MIN);
}

// A picture is as high as its fullest stage asks for, within what a screen shows.
export function heightOf(view, narrow) {
  const most = view.stages.reduce((high, { peers }) => Math.max(high, peers.length), view.trainers.length);
  return Math.max(300, Math.min(narrow ? 440 : 530, HEADER + 36 + most * LABELLED.height));
}

export class Layout {
  constructor() {
    this.order = new Map(); // id -> when it was first seen: no node takes another one's place
    this.seen = 0;
    this.lanes = [];
    this.places = new Map(); // id -> {x, y, r, stage, labelled, peer | trainer | ghost}
  }

  // ghosts: id -> {stage}, those who have died a moment ago, and keep their place.
  arrange(view, ghosts, width, height) {
    const old = this.places;
    this.places = new Map();
    this.lanes = [];
    const stages = view.stages.length;
    const first = Math.min(150, Math.max(LANE_MIN - GAP, (width / (stages + 1)) * 0.62));
    const lane = (width - 2 * MARGIN - first - GAP * stages) / Math.max(1, stages);
    const fit = { y: HEADER, height: height - HEADER - 8 };
    this.fill(null, MARGIN, first, fit, view.trainers.map((trainer) => ({ id: trainer.id, trainer, stage: -1 })));
    view.stages.forEach(({ stage, peers }, number) => {
      const present = new Set(peers.map((peer) => peer.id));
      const members = peers.map((peer) => ({ id: peer.id, peer, stage }));
      for (const [id, ghost] of ghosts) if (ghost.stage === stage && !present.has(id)) members.push({ id, ghost, stage });
      this.fill({ stage, peers }, MARGIN + first + GAP + number * (lane + GAP), lane, fit, members);
    });
    for (const id of this.order.keys()) if (!this.places.has(id)) this.order.delete(id);
    for (const [id, place] of this.places) {
      const before = old.get(id);
      place.from = before ? { x: before.x, y: before.y } : { x: place.x, y: place.y };
    }
  }

  fill(stage, x, width, { y, height }, members) {
    this.lanes.push({ stage, x, width });
    for (const { id } of members) if (!this.order.has(id)) this.order.set(id, this.seen++);
    members.sort((a, b) => this.order.get(a.id) - this.order.get(b.id));
    const grid = gridOf(members.length, width - 8, height);
    members.forEach((member, number) => {
      const row = Math.floor(number / grid.across);
      const inRow = Math.min(grid.across, members.length - row * grid.across);
      this.places.set(member.id, {
        ...member,
        x: x + width / 2 + ((number % grid.across) - (inRow - 1) / 2) * grid.cellX,
        y: y + height / 2 + (row - (grid.rows - 1) / 2) * grid.cellY - (grid.labelled ? 8 : 0),
        r: grid.r,
        labelled: grid.labelled ? grid.cellX - 4 : 0, // the width that its name may have
      });
    });
  }

  nearest(x, y, reach) {
    let found = null;
    let least = reach;
    for (const [id, place] of this.places) {
      const distance = Math.max(0, Math.hypot(place.x - x, place.y - y) - place.r);
      if (distance < least) { found = id; least = distance; }
    }
    return found;
  }
}

// The fewest columns in which nodes with names fit; where none do, the largest cells without names.
function gridOf(members, width, height) {
  // Side by side, names need more room than in a narrow lane.
  for (let across = 1; across === 1 || across * 68 <= width; across += 1) {
    const rows = Math.ceil(members / across) || 1;
    if (rows * LABELLED.height > height) continue;
    const cellY = Math.min(LABELLED.most, height / rows);
    const cellX = Math.min(150, width / across);
    return { across, rows, cellX, cellY, r: Math.min(23, (cellY - 34) / 2, cellX * 0.28), labelled: true };
  }
  let cell = Math.sqrt((width * height) / members);
  while (Math.floor(width / cell) * Math.floor(height / cell) < members) cell *= 0.985;
  const across = Math.max(1, Math.floor(width / cell));
  return { across, rows: Math.ceil(members / across), cellX: cell, cellY: cell, r: Math.max(1.4, Math.min(20, cell * 0.34)), labelled: false };
}
