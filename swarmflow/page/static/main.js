// Puts the page together: what the server or a recording says goes to the parts of the page, which are drawn in each frame.

import { Curves } from "./curves.js";
import { byId, setText } from "./dom.js";
import { Connection, showFinished, showHeader } from "./header.js";
import { News } from "./news.js";
import { Peers } from "./peers.js";
import { Pipeline } from "./pipeline.js";
import { Player } from "./player.js";
import { Poll } from "./poll.js";
import { Run } from "./run.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";

const FRAMES_MAX = 600;
const RECENT_S = 8; // of a recording, before a moment to which one jumps: what happened then is still shown

const run = new Run();
const peers = new Peers();
const pipeline = new Pipeline((id) => peers.pick(id));
const curves = new Curves();
const news = new News();
const connection = new Connection();
const timeline = new Timeline((event) => player?.jump(event.time));
let player = null;
const frames = []; // the times of the last frames, for measurements of the page

function showView(events, now) {
  if (!run.view) return;
  showHeader(run);
  pipeline.show(run.view, events, now);
  peers.show(run);
  curves.show(run);
}

const live = {
  run(answer) {
    const now = performance.now();
    const first = run.view === null;
    run.takeEvents(answer.events);
    if (first) timeline.show(run.events, true);
    else timeline.add(answer.events, true);
    // Whoever opens the page is told of what happens from now on, and of what has just happened.
    const fresh = first && answer.view ? answer.events.filter((event) => answer.view.time - event.time < RECENT_S) : answer.events;
    if (answer.view) run.takeView(answer.view);
    if (run.view) news.take(fresh, now);
    showView(fresh, now);
  },
  steps(lines) {
    run.takeSteps(lines);
    showHeader(run);
    curves.show(run);
  },
  restart() {
    run.forget();
    timeline.forget();
  },
  silence: (text, since) => connection.silence(text, since),
  record(recorded) {
    run.live = false;
    connection.recorded = true;
    if (recorded.frames.length) player = new Player(recorded, recording);
    else showLog(recorded.steps);
    curves.hideEmpty({ steps: recorded.steps, rates: { samples: player?.samples ?? [] } });
  },
};

const recording = {
  jump(moment, views, events, steps, samples) {
    const now = performance.now();
    run.forget();
    run.live = false;
    for (const view of views) run.takeView(view);
    run.rates.samples = samples.concat(run.rates.samples.slice(-1));
    run.takeEvents(events);
    run.takeSteps(steps);
    pipeline.forget();
    news.forget();
    timeline.show(run.events, false);
    const fresh = events.filter((event) => moment - event.time < RECENT_S);
    news.take(fresh, now);
    showView(fresh, now);
  },
  advance(views, events, steps) {
    const now = performance.now();
    for (const view of views) run.takeView(view);
    run.takeEvents(events);
    run.takeSteps(steps);
    if (events.length) timeline.add(events, false);
    news.take(events, now);
    showView(events, now);
  },
};

// A run of which only the log is left: its curves.
function showLog(steps) {
  for (const id of ["pipeline-card", "peers-card", "events-card"]) byId(id).hidden = true;
  byId("content").classList.add("curves-only");
  byId("phase").hidden = true;
  run.takeSteps(steps);
  showFinished(steps);
  curves.show(run);
}

function frame(now) {
  frames.push(now);
  if (frames.length > FRAMES_MAX) frames.splice(0, FRAMES_MAX / 2);
  player?.frame(now);
  pipeline.frame(now);
  curves.frame();
  requestAnimationFrame(frame);
}

startTheme();
setInterval(() => {
  connection.show();
  news.expire(performance.now());
}, 1000);
new Poll(live).start();
requestAnimationFrame(frame);

// For measurements and for those who look by the console; the page itself does not read it.
window.swarmflow = { run, frames, pipeline, curves, get view() { return run.view; }, get player() { return player; } };
setText(byId("link-text"), "connecting");
