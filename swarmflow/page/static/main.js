// Asks the server what the run does, and gives it to the parts of the page.

import { Curves } from "./curves.js";
import { count, element, seconds } from "./format.js";
import { Peers } from "./peers.js";
import { Pipeline } from "./pipeline.js";
import { Player } from "./player.js";
import { Timeline } from "./timeline.js";

const ASK_MS = 500;
const ASK_HIDDEN_MS = 5000; // nobody looks
const ANSWER_MS = 10000; // a server that hangs never answers, nor does its connection break
const BANNER_MS = 1000;
const STALE_S = 3;
const STEPS_MAX = 20000; // as the server keeps, but of a tab that is open for weeks

const find = (id) => document.getElementById(id);
const pipeline = new Pipeline(find("pipeline"), find("tip"), find("pipeline-text"));
const curves = new Curves(find("curves"), document.querySelectorAll("[data-zoom]"));
const peers = new Peers(find("peer-table"), find("find"), find("more"));
const timeline = new Timeline(find("events"), find("kind"), find("text"), find("news"));

const state = { event: 0, seq: 0, steps: [], before: null, error: null, silentSince: null, frames: [], pipeline };
window.swarmflow = state; // for those who look into it by the console, and for the tests

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = find("theme");
  button.setAttribute("aria-pressed", String(dark));
  button.textContent = dark ? "Light" : "Dark";
  pipeline.dirty = curves.dirty = true;
}
const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
theme(wantsDark.matches);
wantsDark.addEventListener("change", (event) => theme(event.matches));
find("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme !== "dark"));

function figures(view) {
  const rows = [
    ["step", `${view.step} / ${view.steps}`],
    ["loss", view.loss === null ? "–" : view.loss.toFixed(3)],
    ["tokens/s", count(view.tokens_per_s === null ? null : Math.round(view.tokens_per_s))],
    ["a step", seconds(view.step_seconds)],
    ["left", seconds(view.left_s)],
    ["on disk", `version ${view.durable_version}`],
    ["peers", String(view.stages.reduce((sum, stage) => sum + stage.peers.length, 0))],
    ["trainers", String(view.trainers.length)],
  ];
  const list = find("figures");
  rows.forEach(([name, value], number) => {
    let row = list.children[number];
    if (!row) {
      row = element("div");
      row.append(element("dt", name), element("dd"));
      list.append(row);
    }
    if (row.lastChild.textContent !== value) row.lastChild.textContent = value;
  });
}

function banner({ view, error }) {
  const shown = find("banner");
  const silent = state.recorded || state.silentSince === null ? 0 : (performance.now() - state.silentSince) / 1000;
  let text = "";
  if (silent > STALE_S) text = `The page's server has not answered for ${Math.round(silent)} s`;
  else if (error) text = error;
  else if (view && view.phase !== "running" && view.waiting_for && view.phase !== view.waiting_for) {
    text = `Waiting for ${view.waiting_for}${view.waiting_s > 2 ? `, for ${seconds(view.waiting_s)} by now` : ""}`;
  }
  shown.classList.toggle("lost", Boolean(error) || silent > STALE_S);
  if (shown.textContent !== text) shown.textContent = text;
  shown.hidden = !text;
}

export function show(view) {
  find("run").textContent = view.run;
  document.title = `${view.run}: step ${view.step} – swarmflow`;
  find("phase").textContent = view.phase;
  find("progress").value = view.steps ? view.step / view.steps : 0;
  figures(view);
  pipeline.show(view);
  peers.show(view);
}

// What all peers have done since the view before, as the figures of the step that is under way.
function derive(view) {
  const all = view.stages.flatMap((stage) => stage.peers).filter((peer) => peer.summary);
  const sum = (name) => all.reduce((total, peer) => total + peer.summary[name], 0);
  const now = { time: view.time, peers: all.length, compute: sum("compute_s"), bytes: sum("sent_bytes") };
  const before = state.before;
  if (!before || now.peers !== before.peers || now.compute < before.compute) state.before = now;
  else if (now.time - before.time >= 10 && now.compute > before.compute) {
    const elapsed = now.time - before.time;
    state.derived = {
      utilisation: Math.min(1, (now.compute - before.compute) / (elapsed * now.peers)),
      bytes_per_s: (now.bytes - before.bytes) / elapsed,
    };
    state.before = now;
  }
}

function table(steps) {
  const names = ["step", "loss", "validation_loss", "tokens", "seconds", "grad_norm", "lr", "retries"];
  const made = find("steps");
  const head = element("tr");
  for (const name of names) head.append(element("th", name.replaceAll("_", " ")));
  const rows = steps.slice(-20).reverse().map((step) => {
    const row = element("tr");
    for (const name of names) row.append(element("td", count(step[name])));
    return row;
  });
  made.replaceChildren(element("thead"), element("tbody"));
  made.firstChild.append(head);
  made.lastChild.append(...rows);
}

export function showSteps(steps) {
  curves.show(steps);
  table(steps);
}

function thinned(steps) {
  if (steps.length <= STEPS_MAX) return steps;
  const older = steps.slice(0, -STEPS_MAX / 2);
  // Validation is rare: a curve of it would lose most of its points, or all.
  const kept = older.filter((step, number) => number % 2 || Number.isFinite(step.validation_loss));
  return [...(kept.length < older.length ? kept : older.filter((_, number) => number % 2)), ...steps.slice(-STEPS_MAX / 2)];
}

class NoAnswer extends Error {} // without a message the server is gone, or hangs: see banner()

async function get(path, signal = AbortSignal.timeout(ANSWER_MS)) {
  state.silentSince ??= performance.now();
  let answer;
  let text;
  try {
    answer = await fetch(path, { cache: "no-store", signal });
    text = await answer.text();
  } catch {
    throw new NoAnswer();
  }
  state.silentSince = null;
  if (!answer.ok) throw new NoAnswer(`No answer from the run: ${text.trim() || answer.statusText}`);
  return JSON.parse(text);
}

// Another server has taken the port, and counts events and steps from 1.
function forget(feed) {
  Object.assign(state, { feed, event: 0, seq: 0, steps: [], before: null, derived: null });
  timeline.show([], true);
  pipeline.forget();
  showSteps(state.steps);
}

async function ask() {
  let error = null;
  try {
    const answer = await get(`/api/run?after=${state.event}`);
    if (answer.error) error = `No answer from the run: ${answer.error}`;
    if (answer.mode === "recording") return await play();
    state.feed ??= answer.feed;
    if (answer.feed !== state.feed) { // this answer lacks the events up to those of the other server
      forget(answer.feed);
      return setTimeout(ask, 0);
    }
    if (answer.events.length) {
      state.event = answer.events.at(-1).seq;
      timeline.add(answer.events);
      for (const event of answer.events) pipeline.tell(event);
    }
    if (answer.view) {
      state.view = answer.view;
      derive(answer.view);
      show(answer.view);
      await askSteps();
    }
  } catch (failure) {
    error = failure instanceof NoAnswer ? failure.message : `The page cannot show what the run answers: ${failure}`;
  }
  state.error = error;
  banner(state);
  if (state.recorded) return null; // it came whole, and would fail again
  return setTimeout(ask, document.hidden ? ASK_HIDDEN_MS : ASK_MS);
}

async function askSteps() {
  const { steps } = await get(`/api/steps?after=${state.seq}`);
  if (!steps.length) return;
  state.seq = steps.at(-1).seq;
  const from = steps[0].step;
  while (state.steps.length && state.steps.at(-1).step >= from) state.steps.pop();
  for (const step of steps) state.steps.push({ ...step, ...state.derived });
  state.steps = thinned(state.steps);
  showSteps(state.steps);
}

async function play() {
  const recorded = await get("/api/recording", null); // a large one takes its time
  Object.assign(state, { recorded: true, error: null });
  const player = new Player(recorded, {
    jump: () => pipeline.forget(),
    view: (view) => { state.view = view; show(view); banner(state); },
    steps: showSteps,
    events: (events) => timeline.show(events, false),
    event: (event) => pipeline.tell(event),
  });
  for (const section of ["pipeline-section", "peers", "events-section"]) find(section).hidden = !recorded.frames.length;
  if (!recorded.frames.length) {
    find("run").textContent = "A finished run";
    find("phase").textContent = `${recorded.steps.length} steps`;
  }
  state.player = player;
}

function frame(now) {
  state.frames.push(now);
  if (state.frames.length > 240) state.frames.shift();
  state.player?.advance(now);
  pipeline.draw(now);
  curves.draw();
  requestAnimationFrame(frame);
}

ask();
setInterval(() => banner(state), BANNER_MS); // while an answer is awaited too
requestAnimationFrame(frame);
