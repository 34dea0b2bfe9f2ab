"""What a trainer or peer shows of itself and its run below its log: a few lines, from the first second on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from swarmflow import activity
from swarmflow.terminal.formats import duration, transfer
from swarmflow.terminal.overview import Losses, events, flow, head, line, stage_marks, waiting
from swarmflow.terminal.shown_run import ShownEvent, ShownPeer, ShownRun

ROWS_MAX = 16  # the rest of the screen is the log's
EVENT_ROWS = 4
TROUBLE_ROWS = 3
_OLD_S = 3.0  # a state that is older is not the present one
_QUIET_S = 1.0  # what takes less time is not worth a flash


@dataclass(slots=True)
class ProcessView:
    """The present picture: set by the event loop, drawn by the thread of the screen."""

    role: str
    name: str = ""  # of the process, short, once it is known
    run: ShownRun | None = None
    losses: Losses = ()
    events: Sequence[ShownEvent] = ()  # that are not in the own log
    trouble: str = ""  # why there is no newer state of the run
    own: Sequence[str] = ()  # what this process does and has done, a line each
    fresh_s: float = 0.0  # when the state was new, on the monotonic clock
    began_s: float = field(default_factory=time.monotonic)

    def draw(self, width: int, rows: int) -> RenderableType:
        """Return the picture for a terminal of this size: first what matters most, where not all of it fits."""
        run, budget = self.run, min(ROWS_MAX, max(2, rows - 2)) - 1
        lines: list[Text] = []
        if run is not None:
            lines += head(run, self.losses, width)
            if (reason := waiting(run)) is not None:
                lines.append(reason)
        own = [text for each in self.own for text in flow(map(Text, each.split(", ")), width)]
        last = [*own, *self._now()]
        if run is not None:
            rest = max(0, budget - len(lines) - len(last))
            lines += stage_marks(run.stages, width, rest)
            last = [*last, *_troubles(run), *events(self.events, EVENT_ROWS)]
        return Group(self._title(), *[*lines, *last][:budget])

    def _now(self) -> list[Text]:
        """Return the lines that say what takes long, and why nothing new is known of the run."""
        lines = []
        now = activity.current()
        old_s = time.monotonic() - self.fresh_s
        if self.run is not None and self.trouble and old_s > _OLD_S:
            since = f"no news of the run for {duration(old_s)} "
            lines.append(line(Text.assemble((since, "bold yellow"), (self.trouble, "yellow"))))
        if now is not None and now.seconds > _QUIET_S:
            lines.append(line(Text.assemble(("now ", "bold cyan"), now.line(), (f"  {duration(now.seconds)}", "dim"))))
        elif self.run is None:
            text = f"waits for the state of the run: {self.trouble}" if self.trouble else "begins"
            lines.append(line(Text(text, "dim")))
        return lines

    def _title(self) -> Rule:
        name = f" {self.name}" if self.name else ""
        title = Text.assemble(("swarmflow ", "bold"), (self.role, "bold"), name)
        title.append(f" · {duration(time.monotonic() - self.began_s)}", style="dim")
        return Rule(title, align="left", style="dim", characters="─")


def _troubles(run: ShownRun) -> list[Text]:
    """Return a line for each of the first peers that do not serve yet, or cannot."""
    found = [(stage.stage, peer) for stage in run.stages for peer in stage.peers]
    return [
        line(Text.assemble(("peer ", "dim"), f"{peer.id} {_state(stage, peer)}"))
        for stage, peer in found
        if peer.phase in ("loading", "failed", "barred")
    ][:TROUBLE_ROWS]


def _state(stage: int, peer: ShownPeer) -> str:
    summary = peer.summary
    if peer.phase == "loading" and summary is not None and summary.loading_total_bytes > 0:
        return f"loads stage {stage}: {transfer(summary.loading_bytes, summary.loading_total_bytes)}"
    words = {"loading": f"loads stage {stage}", "failed": f"could not load stage {stage}", "barred": "was put out"}
    return words[peer.phase]
