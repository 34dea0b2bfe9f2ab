// Numbers and times as people read them, and elements made without markup: text of peers is never parsed as HTML.

export function count(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return `${(value / (unit === 1e4 ? 1e3 : unit)).toPrecision(3)} ${name}`;
  }
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? String(Math.round(value)) : value.toPrecision(3);
}

export function bytes(value) {
  return value === null || value === undefined ? "–" : `${count(value)}B`.replace(/(\d)B$/, "$1 B");
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 90) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} d`;
}

export function clock(time, live) {
  if (!live) return `${time.toFixed(1)} s`;
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}

export function percent(share) {
  return share === null || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  return made;
}

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["card", "line", "text", "soft", "accent", "forward", "done", "loading", "draining", "dead", "node", "flow"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// A canvas draws in its own pixels: as many as the screen has, or lines blur.
export function fitted(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
