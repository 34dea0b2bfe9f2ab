"""Whose work was taken over in a step, and by whom: for the timeline of those who watch the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Log
from swarmflow.core.protocol.messages import Done
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class Takeovers:
    """The repairs of one step, by the stage of the peers that died in it.

    A hop that is done in an attempt with a repair was at a dead peer of its stage: finished, under way, or on its way
    there. Several peers of one stage that die in one step are named together.
    """

    _dead: dict[int, list[ProcessId]] = field(default_factory=dict)
    _hops: dict[int, Counter[ProcessId]] = field(default_factory=dict)  # done again, by stage and by whom

    def died(self, process: ProcessId, stage: int) -> None:
        """Record the death of a peer."""
        self._dead.setdefault(stage, []).append(process)

    def done(self, process: ProcessId, message: Done) -> list[Action]:
        """Record a hop that is done; tell of the first one of a stage that is a repair."""
        stage = message.stage
        if not message.attempt.repair or stage not in self._dead:
            return []
        first = stage not in self._hops
        self._hops.setdefault(stage, Counter())[process] += 1
        if not first:
            return []
        text = f"{process} takes over from {self._names(stage)} on stage {stage}, from bytes that the neighbours kept"
        return [Log("info", text, EventKind.REPAIRED, process, stage)]

    def complete(self) -> list[Action]:
        """Tell once what was done again, when the step has all its hops, and forget it."""
        logs: list[Action] = [
            Log("info", self._text(stage, hops), EventKind.REPAIRED, stage=stage) for stage, hops in self._hops.items()
        ]
        self._dead.clear()
        self._hops.clear()
        return logs

    def _text(self, stage: int, hops: Mapping[ProcessId, int]) -> str:
        by = ", ".join(f"{count} by {process}" for process, count in sorted(hops.items()))
        count = sum(hops.values())
        what = "1 microbatch was" if count == 1 else f"{count} microbatches were"
        return f"{what} done again on stage {stage} for {self._names(stage)}: {by}"

    def _names(self, stage: int) -> str:
        return " and ".join(str(process) for process in self._dead[stage])
