// Dark or light: as the system has it, until the viewer chooses. Canvases take their colours from here.

const KEY = "swarmflow-theme";
const CHOICES = ["auto", "light", "dark"];
const NAMES = [
  "card", "lane", "raised", "line", "text", "soft", "accent", "forward", "done", "loading", "draining", "dead", "repair",
  "flow", "track", "edge",
];

export const palette = {};
export const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

const listeners = [];
const system = window.matchMedia("(prefers-color-scheme: dark)");

// A custom property is read as it was written; only a real property has the colour of the present theme.
function readPalette() {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    palette[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  palette.sans = getComputedStyle(document.body).fontFamily;
  palette.mono = getComputedStyle(document.documentElement).getPropertyValue("--mono");
  for (const listener of listeners) listener();
}

export function onPalette(listener) {
  listeners.push(listener);
}

function stored() {
  try {
    const choice = localStorage.getItem(KEY);
    return CHOICES.includes(choice) ? choice : "auto";
  } catch {
    return "auto"; // a browser may keep nothing for this page
  }
}

function choose(choice) {
  document.documentElement.dataset.theme = choice;
  document.getElementById("theme-name").textContent = choice;
  document.getElementById("theme").setAttribute("aria-label", `Theme: ${choice}`);
  readPalette();
}

export function startTheme() {
  choose(stored());
  system.addEventListener("change", readPalette);
  document.getElementById("theme").addEventListener("click", () => {
    const choice = CHOICES[(CHOICES.indexOf(document.documentElement.dataset.theme) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // It then holds until the page is loaded again.
    }
    choose(choice);
  });
}
