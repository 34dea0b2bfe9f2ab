"""Fixed pipelines: which peers each consists of, and which microbatches it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId

Pipeline = tuple[ProcessId | None, ...]
Stages = tuple[tuple[ProcessId, ...], ...]


class PipelineLayout(Protocol):
    """Arranges the peers of a baseline in pipelines, and shares out microbatches among them."""

    def place(self, name: str) -> int | None:
        """Return the stage planned for a newcomer of this name; None: the one that needs it most."""
        ...

    def form(self, stages: Stages, begins: bool) -> tuple[Pipeline, ...]:
        """Return the pipelines, of the peers that serve each stage. begins: an iteration begins."""
        ...

    def give(self, microbatches: int) -> tuple[int, ...]:
        """Return the pipeline of each microbatch; empty where they are routed one by one."""
        ...

    def learnt(self, pipeline: int, seconds: float) -> None:
        """Record a microbatch that a pipeline finished so many seconds after the iteration began."""
        ...


class NoPipelines:
    """No pipelines: microbatches are routed one by one."""

    def place(self, name: str) -> int | None:
        """Plan nothing: a newcomer goes to the stage that needs it most."""
        return None

    def form(self, stages: Stages, begins: bool) -> tuple[Pipeline, ...]:
        """Form none."""
        return ()

    def give(self, microbatches: int) -> tuple[int, ...]:
        """Share out none."""
        return ()

    def learnt(self, pipeline: int, seconds: float) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Pipelines:
    """GPipe's pipelines: one peer a stage, formed at the start; a spare peer of the stage fills a hole.

    Between two iterations, or when none is whole, broken pipelines give their peers to complete others.
    """

    # Pipeline and stage of each peer by name, where they were planned; else they are formed in the order of ids.
    plan: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _pipelines: list[list[ProcessId | None]] = field(init=False, default_factory=list)
    # Seconds from the begin of the iteration to each finished microbatch, by pipeline.
    _finished_s: dict[int, list[float]] = field(init=False, default_factory=dict)
    _rates: dict[int, float] = field(init=False, default_factory=dict)  # microbatches a second, by pipeline

    def place(self, name: str) -> int | None:
        """Return the stage that was planned for it."""
        planned = self.plan.get(name)
        return None if planned is None else planned[1]

    def form(self, stages: Stages, begins: bool) -> tuple[Pipeline, ...]:
        """Keep living peers, fill holes, and form a further pipeline where every stage has a spare peer."""
        pipelines = [[p if p in stages[s] else None for s, p in enumerate(pipeline)] for pipeline in self._pipelines]
        spare = [
            [p for p in stage if all(pipeline[s] != p for pipeline in pipelines)] for s, stage in enumerate(stages)
        ]
        self._pipelines = pipelines
        self._as_planned(spare)
        for pipeline in pipelines:
            self._fill(pipeline, spare)
        if begins or all(None in pipeline for pipeline in pipelines):
            for number, pipeline in enumerate(pipelines):
                if None in pipeline:
                    self._complete(pipeline, pipelines[number + 1 :])
            while begins and all(spare):
                pipelines.append([waiting.pop(0) for waiting in spare])
        return tuple(tuple(pipeline) for pipeline in pipelines)

    def _as_planned(self, spare: list[list[ProcessId]]) -> None:
        for stage, waiting in enumerate(spare):
            for process in list(waiting):
                number, planned = self.plan.get(process.name, (-1, -1))
                while number >= len(self._pipelines):
                    self._pipelines.append([None] * len(spare))
                if planned == stage and self._pipelines[number][stage] is None:
                    self._pipelines[number][stage] = process
                    waiting.remove(process)

    def _fill(self, pipeline: list[ProcessId | None], spare: list[list[ProcessId]]) -> None:
        for stage, process in enumerate(pipeline):
            if process is None and spare[stage]:
                pipeline[stage] = spare[stage].pop(0)

    def _complete(self, pipeline: list[ProcessId | None], others: list[list[ProcessId | None]]) -> None:
        """Take the missing peers from broken pipelines, if they have all of them."""
        broken = [other for other in reversed(others) if None in other]
        missing = [stage for stage, process in enumerate(pipeline) if process is None]
        found = {s: next((other for other in broken if other[s] is not None), None) for s in missing}
        for stage, other in found.items():
            if other is not None and None not in found.values():
                pipeline[stage], other[stage] = other[stage], None

    def give(self, microbatches: int) -> tuple[int, ...]:
        """Share out microbatches in proportion to the rates of the last iteration; evenly at first."""
        for number, times_s in self._finished_s.items():
            self._rates[number] = len(times_s) / max(times_s)
        self._finished_s.clear()
        usual = sum(self._rates.values()) / len(self._rates) if self._rates else 1.0
        whole = {n: self._rates.get(n, usual) for n, pipeline in enumerate(self._pipelines) if None not in pipeline}
        if not whole:
            return (-1,) * microbatches
        given = dict.fromkeys(whole, 0)
        order: list[int] = []
        for _ in range(microbatches):
            number = min(whole, key=lambda n: ((given[n] + 1) / whole[n], n))
            given[number] += 1
            order.append(number)
        return tuple(order)

    def learnt(self, pipeline: int, seconds: float) -> None:
        """Record a finished microbatch, for the shares of the next iteration."""
        self._finished_s.setdefault(pipeline, []).append(max(seconds, 1e-9))
