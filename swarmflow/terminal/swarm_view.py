"""The whole swarm on a terminal: what `swarmflow status --watch` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from swarmflow.terminal.formats import clock
from swarmflow.terminal.overview import Losses, events, head, line, waiting
from swarmflow.terminal.peers_table import peers_table
from swarmflow.terminal.shown_run import ShownEvent, ShownRun

EVENT_ROWS = 8
_STAGE_ROWS_MIN = 4


@dataclass(slots=True)
class SwarmView:
    """The present picture of a run."""

    run: ShownRun | None = None
    losses: Losses = ()
    events: Sequence[ShownEvent] = ()
    trouble: str = ""  # why there is no newer state
    shown_s: float = 0.0  # when the state was received, since 1970
    hint: str = "Ctrl-C ends this"

    def draw(self, width: int, rows: int) -> RenderableType:
        """Return the picture for a terminal of this size."""
        if self.run is None:
            return Group(*self._notes(), line(Text(self.hint, style="dim")))
        top = head(self.run, self.losses, width)
        if (reason := waiting(self.run)) is not None:
            top.append(reason)
        top += self._notes()
        trainers = line(Text.assemble(("trainers ", "dim"), self._trainers(self.run)))
        rest = rows - len(top) - 3  # the trainers' line, and a rule above the stages and above the events
        event_rows = min(EVENT_ROWS, len(self.events), max(0, rest - self._stage_rows(self.run)))
        table = peers_table(self.run, width, max(1, rest - event_rows))
        shown = [*top, trainers, Rule(style="dim"), *table]
        if event_rows:
            shown += [Rule(style="dim"), *events(self.events, event_rows)]
        return Group(*shown)

    def _stage_rows(self, run: ShownRun) -> int:
        """Return the rows that the stages are worth, if there is room for few events beside them."""
        needed = sum(max(1, len(stage.peers)) for stage in run.stages) + 1
        return max(_STAGE_ROWS_MIN, min(needed, len(run.stages) + 8))

    def _notes(self) -> list[Text]:
        if not self.trouble:
            return []
        since = f" (what is shown is of {clock(self.shown_s)})" if self.run is not None else ""
        text = f"{self.trouble}{since}; it is asked again"
        return [line(Text.assemble(("no answer ", "bold red"), (text, "yellow")))]

    def _trainers(self, run: ShownRun) -> str:
        texts = []
        for trainer in run.trainers:
            where = f" at {trainer.address}" if trainer.address else ""
            texts.append(f"{trainer.id}{where}{' (leads)' if trainer.leads else ''}")
        return ", ".join(texts) or "none"
