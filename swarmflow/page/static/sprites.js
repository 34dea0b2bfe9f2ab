// Small pictures that are drawn a thousand times in a frame: painted once, then copied, which costs a tenth of a path.

import { onPalette } from "./theme.js";

const known = new Map(); // name -> {sprite, scale}
const KNOWN_MAX = 400;

onPalette(() => known.clear());

export const scaleOf = (context) => context.getTransform().a;

// paint(context): draws around the point (0, 0), within half of size.
export function spriteOf(name, scale, size, paint) {
  const found = known.get(name);
  if (found && found.scale === scale && found.size === size) return found;
  if (known.size >= KNOWN_MAX) known.clear();
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.ceil(size * scale);
  const own = canvas.getContext("2d");
  own.setTransform(scale, 0, 0, scale, canvas.width / 2, canvas.height / 2);
  paint(own);
  const made = { canvas, scale, size, half: canvas.width / 2, wide: canvas.width / scale };
  known.set(name, made);
  return made;
}

// Whole pixels: a copy between them would have to be computed.
export function stamp(context, { canvas, scale, half, wide }, x, y) {
  context.drawImage(canvas, Math.round(x * scale - half) / scale, Math.round(y * scale - half) / scale, wide, wide);
}
