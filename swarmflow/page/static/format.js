// Numbers, times and foreign text as people read them. What is no number is shown as a dash.

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
export const DASH = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1e4) {
    const [unit, name] = UNITS.find(([least]) => size >= least);
    return `${(value / unit).toPrecision(3)} ${name}`;
  }
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

export function bytes(value) {
  if (!isNumber(value)) return DASH;
  const found = UNITS.find(([least]) => Math.abs(value) >= least);
  if (!found) return `${Math.round(value)} B`;
  const scaled = value / found[0];
  return `${scaled >= 100 ? Math.round(scaled) : scaled.toPrecision(3)} ${found[1]}B`;
}

export function seconds(value) {
  if (!isNumber(value)) return DASH;
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 90) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} days`;
}

export function percent(share) {
  if (!isNumber(share)) return DASH;
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

export function decimals(value) {
  return isNumber(value) ? value.toFixed(Math.abs(value) < 10 ? 3 : 2) : DASH;
}

// A live event has the time of the viewer's clock, one of a recording the time since its start.
export function clock(time, live) {
  if (!isNumber(time)) return DASH;
  return live ? new Date(time * 1000).toLocaleTimeString([], { hour12: false }) : `${time.toFixed(1)} s`;
}

// Text of a peer may have anything in it. Control characters become visible pictures of themselves, and those that
// change the direction of text or hide in it become a mark, so that no name can pose as another one.
export function clean(text, longest = 400) {
  const whole = String(text ?? "");
  const short = whole.length > longest ? `${whole.slice(0, longest)}…` : whole;
  return short.replace(UNPRINTABLE, (sign) => (sign < " " ? String.fromCharCode(0x2400 + sign.charCodeAt(0)) : "\ufffd"));
}
