"""Fixed pipelines: who is put together with whom, and which microbatches each gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swarmflow.core.types import ProcessId

Line = tuple[ProcessId | None, ...]
Stages = tuple[tuple[ProcessId, ...], ...]


class Lines(Protocol):
    """What the leader of a baseline goes by where pipelines are fixed."""

    def place(self, name: str) -> int | None:
        """The stage that a newcomer of this name is meant for; None: the one that needs it most."""
        ...

    def form(self, stages: Stages, begins: bool) -> tuple[Line, ...]:
        """The pipelines, from those who are ready at each stage. begins: an iteration does."""
        ...

    def give(self, microbatches: int) -> tuple[int, ...]:
        """The pipeline of each microbatch; nothing where they are routed one by one."""
        ...

    def learnt(self, line: int, seconds: float) -> None:
        """A microbatch of a pipeline was through, so many seconds after the iteration began."""
        ...


class Unlined:
    """No pipelines: microbatches are routed one by one."""

    def place(self, name: str) -> int | None:
        """The stage that needs it most."""
        return None

    def form(self, stages: Stages, begins: bool) -> tuple[Line, ...]:
        """None."""
        return ()

    def give(self, microbatches: int) -> tuple[int, ...]:
        """None."""
        return ()

    def learnt(self, line: int, seconds: float) -> None:
        """There is no line."""


@dataclass(slots=True)
class Pipelines:
    """GPipe's: one peer a stage, formed at the start, a hole filled by whoever is there for the stage.

    plan: pipeline and stage of each peer by name, where they were planned; else they are formed in the order of ids.
    Between two iterations, or when none is whole, broken pipelines give their peers to complete others.
    """

    plan: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _lines: list[list[ProcessId | None]] = field(default_factory=list)
    _through: dict[int, list[float]] = field(default_factory=dict)
    _rates: dict[int, float] = field(default_factory=dict)

    def place(self, name: str) -> int | None:
        """As planned."""
        planned = self.plan.get(name)
        return None if planned is None else planned[1]

    def form(self, stages: Stages, begins: bool) -> tuple[Line, ...]:
        """Keep what lives, fill holes, and form a further pipeline where every stage has somebody to spare."""
        lines = [[p if p in stages[s] else None for s, p in enumerate(line)] for line in self._lines]
        spare = [[p for p in stage if all(line[s] != p for line in lines)] for s, stage in enumerate(stages)]
        self._lines = lines
        self._as_planned(spare)
        for line in lines:
            self._fill(line, spare)
        if begins or all(None in line for line in lines):
            for number, line in enumerate(lines):
                if None in line:
                    self._complete(line, lines[number + 1 :])
            while begins and all(spare):
                lines.append([waiting.pop(0) for waiting in spare])
        return tuple(tuple(line) for line in lines)

    def _as_planned(self, spare: list[list[ProcessId]]) -> None:
        for stage, waiting in enumerate(spare):
            for process in list(waiting):
                number, planned = self.plan.get(process.name, (-1, -1))
                while number >= len(self._lines):
                    self._lines.append([None] * len(spare))
                if planned == stage and self._lines[number][stage] is None:
                    self._lines[number][stage] = process
                    waiting.remove(process)

    def _fill(self, line: list[ProcessId | None], spare: list[list[ProcessId]]) -> None:
        for stage, process in enumerate(line):
            if process is None and spare[stage]:
                line[stage] = spare[stage].pop(0)

    def _complete(self, line: list[ProcessId | None], others: list[list[ProcessId | None]]) -> None:
        """Take what is missing from broken pipelines, if all of it is there."""
        broken = [other for other in reversed(others) if None in other]
        missing = [stage for stage, process in enumerate(line) if process is None]
        found = {s: next((other for other in broken if other[s] is not None), None) for s in missing}
        for stage, other in found.items():
            if other is not None and None not in found.values():
                line[stage], other[stage] = other[stage], None

    def give(self, microbatches: int) -> tuple[int, ...]:
        """In proportion to the microbatches a second of the last iteration; evenly at first."""
        for number, times_s in self._through.items():
            self._rates[number] = len(times_s) / max(times_s)
        self._through.clear()
        usual = sum(self._rates.values()) / len(self._rates) if self._rates else 1.0
        whole = {n: self._rates.get(n, usual) for n, line in enumerate(self._lines) if None not in line}
        if not whole:
            return (-1,) * microbatches
        given = dict.fromkeys(whole, 0)
        order: list[int] = []
        for _ in range(microbatches):
            number = min(whole, key=lambda n: ((given[n] + 1) / whole[n], n))
            given[number] += 1
            order.append(number)
        return tuple(order)

    def learnt(self, line: int, seconds: float) -> None:
        """For the shares of the next iteration."""
        self._through.setdefault(line, []).append(max(seconds, 1e-9))
