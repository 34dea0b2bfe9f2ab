// The top of the page: the run, its phase, how far it is, its figures, and why it waits.

import { byId, element, setClass, setText } from "./dom.js";
import { DASH, count, decimals, seconds } from "./format.js";

const LATE_S = 10; // a step that takes longer, and three times as long as the one before, is worth a banner

const PHASES = {
  gathering: "gathering peers", running: "running", validating: "validating", unmeasured: "validating again",
  saving: "saving", finished: "finished",
};

function figuresOf(run) {
  const { view } = run;
  const peers = run.peers;
  const serving = peers.filter((peer) => peer.phase === "serving" || peer.phase === "ready").length;
  const validated = run.steps.findLast((step) => Number.isFinite(step.validation_loss));
  return [
    ["Loss", decimals(view.loss)],
    ["Validation", validated ? decimals(validated.validation_loss) : DASH],
    ["Tokens/s", count(view.tokens_per_s === null ? null : Math.round(view.tokens_per_s))],
    ["Time a step", seconds(view.step_seconds)],
    ["Peers serving", peers.length === serving ? String(serving) : `${serving} of ${peers.length}`],
    ["Safe on disk", `step ${view.durable_version}`],
  ].filter(([, text]) => run.live || text !== DASH); // a simulation has no loss, and never will
}

function showFigures(rows) {
  const list = byId("figures");
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach(([name, value], number) => {
    let row = list.children[number];
    if (!row) {
      row = element("div");
      row.append(element("dt"), element("dd"));
      list.append(row);
    }
    setText(row.firstChild, name);
    setText(row.lastChild, value);
  });
}

function showProgress(step, steps, durable, left) {
  const share = steps ? Math.min(1, step / steps) : 0;
  const text = byId("progress-text");
  if (!text.firstChild) text.append(element("strong"), document.createTextNode(""));
  setText(text.firstChild, `Step ${step}`);
  text.lastChild.data = steps ? ` of ${steps}` : "";
  setText(byId("left-text"), left);
  byId("bar").setAttribute("aria-valuenow", String(Math.round(100 * share)));
  byId("bar").setAttribute("aria-valuetext", `step ${step} of ${steps}`);
  byId("bar-done").style.width = `${100 * share}%`;
  byId("bar-durable").hidden = !durable || durable >= steps;
  byId("bar-durable").style.left = `${steps ? (100 * durable) / steps : 0}%`;
}

// Why nothing happens, and since when. A running step always waits for something; it is said when it takes long.
function reasonOf(run) {
  const { view } = run;
  if (view.phase === "finished") return null;
  if (view.phase !== "running") {
    const stated = view.waiting_for && view.waiting_for !== view.phase;
    return stated ? [`The run waits for ${view.waiting_for}.`, view.waiting_s] : null;
  }
  const since = view.time - run.stepSince.time;
  if (!view.waiting_for || since < Math.max(LATE_S, 3 * (view.step_seconds ?? 0))) return null;
  return [`Step ${view.step} takes longer than usual: it waits for ${view.waiting_for}.`, since];
}

function showReason(reason) {
  byId("waiting").hidden = !reason;
  setText(byId("waiting-text"), reason ? reason[0] : "");
  setText(byId("waiting-since"), reason && reason[1] >= 1 ? `It has waited for ${seconds(reason[1])}.` : "");
}

export function showHeader(run) {
  const { view } = run;
  setText(byId("run"), view.run || "swarmflow");
  document.title = `${byId("run").textContent}: step ${view.step} · swarmflow`;
  const phase = byId("phase");
  phase.hidden = false;
  setText(phase, PHASES[view.phase] ?? view.phase);
  setClass(phase, `badge ${view.phase in PHASES ? view.phase : ""}`);
  const left = view.phase === "finished" || !Number.isFinite(view.left_s) ? "" : `${seconds(view.left_s)} left`;
  showProgress(view.step, view.steps, view.durable_version, left);
  showFigures(figuresOf(run));
  showReason(reasonOf(run));
}

// A finished run of which only the steps are left.
export function showFinished(steps) {
  const last = steps.at(-1);
  const validated = steps.findLast((step) => Number.isFinite(step.validation_loss));
  const tokens = steps.reduce((sum, step) => sum + step.tokens, 0);
  setText(byId("run"), "A run's log");
  document.title = "A run's log · swarmflow";
  showProgress(last.step + 1, last.step + 1, 0, `in ${seconds(last.time)}`);
  showFigures([
    ["Loss", decimals(last.loss)],
    ["Validation", validated ? decimals(validated.validation_loss) : DASH],
    ["Tokens", count(tokens)],
    ["Tokens/s", count(Math.round(tokens / Math.max(last.time, 1e-9)))],
    ["Hops repaired", count(steps.reduce((sum, step) => sum + (step.retries ?? 0), 0))],
  ]);
}

export class Connection {
  constructor() {
    this.text = null;
    this.since = 0;
  }

  silence(text, since) {
    this.text = text;
    this.since = since ?? 0;
    this.show();
  }

  // Called once a second: how long the silence lasts stands apart from its reason, which alone is read out.
  show() {
    const lost = this.text !== null;
    byId("silence").hidden = !lost;
    setClass(byId("link"), lost ? "link lost" : "link");
    if (this.recorded) setText(byId("link-text"), "recording");
    else setText(byId("link-text"), lost ? "no answer" : "live");
    if (!lost) return;
    setText(byId("silence-text"), this.text);
    const past = Math.round((performance.now() - this.since) / 1000);
    setText(byId("silence-since"), `The last answer came ${seconds(past)} ago; what is below may be out of date.`);
  }
}
