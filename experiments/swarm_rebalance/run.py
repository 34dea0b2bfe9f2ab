"""One strategy on one trace: the throughput of the pipeline, minute by minute, beside the best that there could be."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from experiments.swarm_rebalance.spreading import Spreading
from experiments.swarm_rebalance.trace import Change

BIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Course:
    """What came of a run, by minute: peers that the pipeline was worth, i.e. those of its smallest stage.

    whole, fractional: of the best arrangement at each moment, with whole peers (floor(n / S)) and without (n / S).
    moves: how many peers changed their stage, in all.
    """

    throughput: list[float]
    whole: list[float]
    fractional: list[float]
    moves: int


@dataclass(slots=True)
class Pipeline:
    """Plays a trace. Who leaves is drawn as SWARM's appendix I does: a random stage first, then one of its peers.

    Of an empty stage nobody can leave; another one is drawn then. load_s: how long a peer that comes or moves works
    nowhere. Every change takes the same three numbers of `random`, so that all strategies meet the same fate.
    """

    strategy: Spreading
    random: Random
    load_s: float
    stages: list[list[int]]
    working: list[int]
    where: dict[int, int] = field(default_factory=dict)
    loading: dict[int, float] = field(default_factory=dict)
    moves: int = 0
    _due: list[tuple[float, int]] = field(default_factory=list)
    _peers: int = 0

    def come(self, now_s: float, stage: int = -1) -> None:
        """A peer comes, to a stage that is given or where the strategy places it."""
        peer, self._peers = self._peers, self._peers + 1
        stage = self.strategy.place(self.stages) if stage < 0 else stage
        self.strategy.enter(peer, stage, now_s)
        self._load(peer, stage, now_s)

    def go(self, now_s: float) -> None:
        """Somebody leaves."""
        first, second, which = self.random.random(), self.random.random(), self.random.random()
        stage = int(first * len(self.stages))
        if not self.stages[stage]:
            served = [number for number, peers in enumerate(self.stages) if peers]
            stage = served[int(second * len(served))]
        peer = self.stages[stage][int(which * len(self.stages[stage]))]
        self._take(peer)
        self.strategy.gone(peer)
        if not self.stages[stage] and self.strategy.at_once:
            self.rebalance(now_s)

    def rebalance(self, now_s: float) -> None:
        """Ask the strategy for a move."""
        found = self.strategy.move(self.stages, now_s)
        if found is not None:
            self._take(found[0])
            self._load(*found, now_s)
            self.moves += 1

    def next_loaded_s(self) -> float:
        """When the next peer is ready."""
        return self._due[0][0] if self._due else float("inf")

    def finish_loading(self, now_s: float) -> None:
        """Peers become ready."""
        while self._due and self._due[0][0] <= now_s:
            due_s, peer = heapq.heappop(self._due)
            if self.loading.get(peer) == due_s:
                del self.loading[peer]
                self._work(peer)

    def _load(self, peer: int, stage: int, now_s: float) -> None:
        self.where[peer] = stage
        self.stages[stage].append(peer)
        if self.load_s == 0:
            self._work(peer)
            return
        self.loading[peer] = now_s + self.load_s
        heapq.heappush(self._due, (now_s + self.load_s, peer))

    def _work(self, peer: int) -> None:
        self.working[self.where[peer]] += 1
        self.strategy.loaded(peer)

    def _take(self, peer: int) -> None:
        stage = self.where.pop(peer)
        self.stages[stage].remove(peer)
        if self.loading.pop(peer, None) is None:
            self.working[stage] -= 1


def play(
    changes: Sequence[Change],
    start: int,
    stages: int,
    strategy: Spreading,
    random: Random,
    end_s: float,
    load_s: float = 0.0,
) -> Course:
    """Run a strategy through a trace that begins with `start` peers, evenly spread and at work, and lasts end_s."""
    bins = int(end_s // BIN_S)
    course = Course([0.0] * bins, [0.0] * bins, [0.0] * bins, 0)
    pipeline = Pipeline(strategy, random, 0.0, [[] for _ in range(stages)], [0] * stages)
    for number in range(start):
        pipeline.come(0.0, number % stages)
    pipeline.load_s = load_s
    now_s, asked_s, lease = 0.0, strategy.period_s or float("inf"), iter(changes)
    change = next(lease, None)
    while now_s < end_s:
        change_s = change.time_s if change is not None else float("inf")
        next_s = min(change_s, asked_s, pipeline.next_loaded_s(), end_s)
        _account(course, pipeline, now_s, next_s)
        now_s = next_s
        pipeline.finish_loading(now_s)
        if change is not None and change_s <= now_s:
            (pipeline.come if change.comes else pipeline.go)(now_s)
            change = next(lease, None)
        elif asked_s <= now_s:
            pipeline.rebalance(now_s)
            asked_s += strategy.period_s
    return Course(course.throughput, course.whole, course.fractional, pipeline.moves)


def _account(course: Course, pipeline: Pipeline, from_s: float, to_s: float) -> None:
    """The time between two events, at the throughput that there is."""
    throughput, stages = min(pipeline.working), len(pipeline.stages)
    peers = sum(len(members) for members in pipeline.stages)
    while from_s < to_s:
        number = min(int(from_s // BIN_S), len(course.throughput) - 1)
        until_s = min(to_s, (number + 1) * BIN_S) if number < len(course.throughput) - 1 else to_s
        share = (until_s - from_s) / BIN_S
        course.throughput[number] += share * throughput
        course.whole[number] += share * (peers // stages)
        course.fractional[number] += share * (peers / stages)
        from_s = until_s
