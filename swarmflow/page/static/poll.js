// Asks the server for the run: twice a second, less often while nobody looks or nothing answers.

const POLL_MS = 500;
const HIDDEN_MS = 5000;
const SLOWEST_MS = 8000;
const PATIENCE_MS = 15000; // for one answer

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error((await answer.text()).trim().slice(0, 400) || `status ${answer.status}`);
  return answer.json();
}

export class Poll {
  // to: {run(answer), steps(lines), record(recording), restart(), silence(text | null, since)}
  constructor(to) {
    this.to = to;
    this.wait = POLL_MS;
    this.event = 0; // the last one that is here
    this.step = 0;
    this.version = null; // for which the steps were asked for
    this.answered = performance.now();
    this.lost = false;
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.soon(); });
  }

  start() {
    this.ask();
  }

  soon() {
    clearTimeout(this.timer);
    if (!this.asking) this.ask();
  }

  async ask() {
    this.asking = true;
    let over = false;
    try {
      // The server may be another one after a silence, which counts its events from 1 again.
      if (this.lost) this.begin();
      const answer = await get(`/api/run?after=${this.event}`);
      if (this.lost) this.to.restart();
      this.lost = false;
      over = answer.mode === "recording";
      if (over) this.to.record(await get("/api/recording"));
      else await this.take(answer);
      if (answer.error) this.fail(answer.error, "the swarm");
      else this.succeed();
    } catch (error) {
      this.lost = true;
      this.fail(error.name === "TypeError" ? "" : error.message, "the page's server");
    }
    this.asking = false;
    if (!over) this.timer = setTimeout(() => this.ask(), document.hidden ? HIDDEN_MS : this.wait);
  }

  begin() {
    this.event = this.step = 0;
    this.version = null;
  }

  async take(answer) {
    if (answer.events.length) this.event = answer.events.at(-1).seq;
    this.to.run(answer);
    if (!answer.view || answer.view.version === this.version) return;
    for (let lines = null; lines === null || lines.length >= 5000;) {
      ({ steps: lines } = await get(`/api/steps?after=${this.step}`));
      if (lines.length) this.step = lines.at(-1).seq ?? lines.at(-1).step;
      this.to.steps(lines);
    }
    this.version = answer.view.version;
  }

  succeed() {
    this.answered = performance.now();
    this.wait = POLL_MS;
    this.to.silence(null);
  }

  fail(reason, who) {
    this.wait = Math.min(SLOWEST_MS, this.wait * 2);
    this.to.silence(`No answer from ${who}${reason ? `: ${reason}` : ""}`, this.answered);
  }
}
