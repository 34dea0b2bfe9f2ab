"""The head of every view of a run: its phase, progress and speed, and the reason for waiting, at any width.

All texts of a ShownRun are printable already; they become rich Text objects, in which markup means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from swarmflow.terminal.formats import bar, clock, count, duration, sparkline
from swarmflow.terminal.shown_run import ShownEvent, ShownRun, ShownStage

Losses = Sequence[float | None]

GAP = "   "
BAR_CELLS = 24
SPARK_CELLS = 24
MARKS = {
    "serving": ("●", "green"),
    "ready": ("●", "cyan"),
    "draining": ("◑", "yellow"),
    "loading": ("◔", "cyan"),
    "waiting": ("○", "yellow"),
    "failed": ("✗", "red"),
    "barred": ("✗", "red"),
}
UNKNOWN_MARK = ("?", "")
_PHASE_STYLES = {"running": "green", "gathering": "yellow", "saving": "cyan", "validating": "cyan", "finished": "green"}


def line(*parts: Text | str) -> Text:
    """Return one line, which is cut where it does not fit."""
    return Text("", no_wrap=True, overflow="ellipsis").append_text(Text.assemble(*parts))


def flow(parts: Iterable[Text], width: int, gap: str = GAP) -> list[Text]:
    """Return the parts in as few lines as they fit into, in their order."""
    lines: list[Text] = []
    used = 0
    for part in parts:
        needed = cell_len(part.plain)
        if lines and used + len(gap) + needed <= width:
            lines[-1].append(gap).append_text(part)
            used += len(gap) + needed
        else:
            lines.append(line(part))
            used = needed
    return lines


def head(run: ShownRun, losses: Losses, width: int) -> list[Text]:
    """Return the lines that say how the run is."""
    total = max(run.steps, 0)
    what = [
        Text(run.run, style="bold"),
        Text(run.phase, style=_PHASE_STYLES.get(run.phase, "bold")),
        Text(f"step {count(run.step)} of {count(total)}"),
        Text(f"{bar(run.step, total, min(BAR_CELLS, max(8, width // 4)))} {_percent(run.step, total)}", style="cyan"),
    ]
    if run.left_s is not None:
        what.append(Text(f"{duration(run.left_s)} left"))
    return [*flow(what, width), *flow(_figures(run, losses, width), width)]


def _figures(run: ShownRun, losses: Losses, width: int) -> list[Text]:
    figures: list[Text] = []
    if run.loss is not None:
        loss = Text.assemble("loss ", (f"{run.loss:.4f}", "bold"))
        if curve := sparkline(losses, min(SPARK_CELLS, max(8, width // 4))):
            loss.append(f" {curve}", style="magenta")
        figures.append(loss)
    if run.tokens_per_s is not None:
        figures.append(Text(f"{count(run.tokens_per_s)} tokens/s"))
    if run.step_seconds is not None:
        figures.append(Text(f"{run.step_seconds:.2f} s a step" if run.step_seconds < 100 else _step(run.step_seconds)))
    if run.trainers:
        figures.append(Text(f"{plural(len(run.trainers), 'trainer')}, {plural(run.peers, 'peer')}"))
    if run.durable_version:
        figures.append(Text(f"version {count(run.durable_version)} on disk", style="dim"))
    return figures


def _step(step_s: float) -> str:
    return f"{duration(step_s)} a step"


def waiting(run: ShownRun) -> Text | None:
    """Return the reason for which the run stands still, and since when; None: it does not."""
    if not run.waiting_for or run.phase == "running":
        return None
    since = f"  {duration(run.waiting_s)}" if run.waiting_s >= 1 else ""
    return line(Text.assemble(("waits ", "bold yellow"), (f"for {run.waiting_for}", "yellow"), (since, "dim")))


def stage_marks(stages: Sequence[ShownStage], width: int, rows: int) -> list[Text]:
    """Return the stages with a mark for each peer, or with numbers where there are too many, in so many lines."""
    marks = sum(sum(stage.counts().values()) for stage in stages) <= max(16, width // 2)
    lines = flow([_stage(stage, marks=marks) for stage in stages], width)
    if len(lines) > rows:
        lines[max(0, rows - 1) :] = [line(Text(f"and more: {len(stages)} stages in all", style="dim"))]
    return lines[:rows]


def _stage(stage: ShownStage, *, marks: bool) -> Text:
    text = Text.assemble((f"stage {stage.stage} ", "dim"))
    counts = sorted_counts(stage)
    if not counts:
        return text.append("nobody", style="bold red")
    if not marks:
        idle = sum(number for _, number in counts) - stage.working
        return text.append(plural(stage.working, "peer")).append(f" and {count(idle)} not serving" if idle else "")
    for phase, number in counts:
        mark, style = MARKS.get(phase, UNKNOWN_MARK)
        text.append(mark * number, style=style)
    idle_words = [f"{count(number)} {phase}" for phase, number in counts if phase not in ("serving", "ready")]
    return text.append(f" {', '.join(idle_words)}" if idle_words else "")


def sorted_counts(stage: ShownStage) -> list[tuple[str, int]]:
    """Return phase and number of peers, in the order of the marks."""
    order = {phase: place for place, phase in enumerate(MARKS)}
    return sorted(stage.counts().items(), key=lambda item: order.get(item[0], len(order)))


def events(recent: Sequence[ShownEvent], rows: int) -> list[Text]:
    """Return the last events, the newest at the end, one line each."""
    return [event_line(event) for event in recent[-rows:]] if rows > 0 else []


def event_line(event: ShownEvent) -> Text:
    """Return an event with the local time at which it happened."""
    style = "yellow" if event.level == "warning" else ""
    return line(Text.assemble((f"{clock(event.time)} ", "dim"), (event.text, style)))


def plural(number: int, word: str) -> str:
    """Return `1 peer`, `2 peers`."""
    return f"{count(number)} {word}{'' if number == 1 else 's'}"


def _percent(done: int, total: int) -> str:
    return f"{100 * min(1.0, done / total):.0f}%" if total > 0 else ""
