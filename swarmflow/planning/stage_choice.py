"""The stages of a running swarm's peers by their links: a cheap plan, for which few of them have to move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np

from swarmflow.core.protocol.actions import PlanStages
from swarmflow.core.protocol.events import StagesPlanned
from swarmflow.planning import places
from swarmflow.planning.arrangement import Group, Matrix, Problem
from swarmflow.planning.link_tables import link_tables

NEAR = 1.02  # times the least cost: of such plans the one for which the fewest peers move is taken
SEED = 0  # of the search: the same links give the same plan


def plan_stages(asked: PlanStages) -> StagesPlanned:
    """Return the stage of each peer: of the cheapest plan, or of what swaps make of the present one.

    As many peers serve each stage. Who is left over stays, or goes where few are, to the nearest ones. Where so many
    are fixed that a stage cannot have a peer, everybody stays, and newcomers go where the fewest are.
    """
    found = StageChoice(asked)
    staying = found.with_spares(asked.serves)
    if not found.pipelines:
        return StagesPlanned(asked.number, staying, staying)
    groups = found.chosen()
    stages = found.with_spares(found.stages_of(groups))
    costs_s = found.problem.cost_s(groups), found.cost_s(staying)
    return StagesPlanned(asked.number, stages, staying, *costs_s)


@dataclass
class StageChoice:
    """The choice of a stage for each peer of a swarm."""

    asked: PlanStages
    pipelines: int = field(init=False)  # as many as the peers that are free can complete
    planned: list[int] = field(init=False)  # the peers that the plan is about; others are fixed, beside enough of them
    problem: Problem = field(init=False)  # of these, by their place in `planned`; only where there is a pipeline
    _bytes_per_s: Matrix = field(init=False)  # between all peers

    def __post_init__(self) -> None:
        asked = self.asked
        latency_s, self._bytes_per_s = link_tables(len(asked.serves), asked.links)
        fixed = [[peer for peer in peers if asked.fixed[peer]] for peers in self._serving(asked.serves)]
        free = [peer for peer, is_fixed in enumerate(asked.fixed) if not is_fixed]
        possible = range(len(asked.serves) // self.stages, 0, -1)
        self.pipelines = next((n for n in possible if sum(max(0, n - len(peers)) for peers in fixed) <= len(free)), 0)
        self.planned = sorted(free + [peer for peers in fixed for peer in peers[: self.pipelines]])
        if self.pipelines:
            self.problem = self._problem(latency_s)

    @property
    def stages(self) -> int:
        """Their number."""
        return len(self.asked.gradient_bytes)

    def _serving(self, stages: Sequence[int]) -> list[list[int]]:
        """Return the peers of each stage."""
        return [[peer for peer, its in enumerate(stages) if its == stage] for stage in range(self.stages)]

    def _problem(self, latency_s: Matrix) -> Problem:
        asked, links = self.asked, np.ix_(self.planned, self.planned)
        return Problem(
            latency_s=latency_s[links].tolist(),
            bytes_per_s=self._bytes_per_s[links].tolist(),
            pipelines=self.pipelines,
            stages=self.stages,
            activation_bytes=asked.boundary_bytes * asked.microbatches / self.pipelines,
            gradient_bytes=asked.gradient_bytes,
            pinned={place: asked.serves[peer] for place, peer in enumerate(self.planned) if asked.fixed[peer]},
        )

    def chosen(self) -> tuple[Group, ...]:
        """Return the peers of each stage, by their place in `planned`."""
        problem, random = self.problem, Random(SEED)
        present = self._present()
        plans = {present, places.improved(problem, random, present), places.arrange(problem, random).groups}
        if not problem.pinned:
            plans |= {plan[::-1] for plan in plans}
        costs_s = {plan: problem.cost_s(plan) for plan in plans}
        least_s = min(costs_s.values())
        near = [plan for plan in plans if costs_s[plan] <= NEAR * least_s]
        return min(near, key=lambda plan: (self._moves(plan), costs_s[plan], plan))

    def _moves(self, groups: tuple[Group, ...]) -> int:
        """Return how many peers would leave the stage that they serve."""
        now = [self.asked.serves[peer] for peer in self.planned]
        return sum(now[place] not in (-1, stage) for stage, group in enumerate(groups) for place in group)

    def _present(self) -> tuple[Group, ...]:
        """Return the stages as they are, with as many peers each: who is too many goes where one lacks, the nearest."""
        now = [self.asked.serves[peer] for peer in self.planned]
        groups = [
            sorted((place for place, its in enumerate(now) if its == stage), key=lambda p: p not in self.problem.pinned)
            for stage in range(self.stages)
        ]
        left = set(range(len(now))) - {place for group in groups for place in group[: self.pipelines]}
        for stage, group in enumerate(groups):
            del group[self.pipelines :]
            exchange_s = self.problem.exchange_s(self.asked.gradient_bytes[stage])
            while len(group) < self.pipelines:
                group.append(min(left, key=lambda place: (float(exchange_s[place, group].sum()), place)))
                left.remove(group[-1])
        return tuple(tuple(sorted(group)) for group in groups)

    def stages_of(self, groups: tuple[Group, ...]) -> list[int]:
        """Return the stage of each peer of the swarm, -1: none. groups: of those that the plan is about."""
        asked = self.asked
        stages = [serves if fixed else -1 for serves, fixed in zip(asked.serves, asked.fixed, strict=True)]
        for stage, group in enumerate(groups):
            for place in group:
                stages[self.planned[place]] = stage
        return stages

    def with_spares(self, stages: Sequence[int]) -> tuple[int, ...]:
        """Return the stages, with one for each peer that had none."""
        full = list(stages)
        for peer, stage in enumerate(stages):
            if stage < 0:
                full[peer] = self._spare(peer, full)
        return tuple(full)

    def _spare(self, peer: int, stages: Sequence[int]) -> int:
        """Return the stage of a peer that is left over: one with the fewest, its own of these, else the nearest."""
        counts = [stages.count(stage) for stage in range(self.stages)]
        few = [stage for stage, count in enumerate(counts) if count == min(counts)]
        if self.asked.serves[peer] in few:
            return self.asked.serves[peer]
        rate = self._bytes_per_s[peer]
        near = {stage: sum(rate[other] for other, its in enumerate(stages) if its == stage) for stage in few}
        return max(few, key=lambda stage: (near[stage], -stage))

    def cost_s(self, stages: Sequence[int]) -> float:
        """Return what exchanges take in a step with any stages of the peers; infinite where one has no peer.

        Where two neighbouring stages have unlike numbers of peers, those of the smaller one serve several of the other.
        """
        place_of = {peer: place for place, peer in enumerate(self.planned)}
        groups = [tuple(place_of[peer] for peer in peers if peer in place_of) for peers in self._serving(stages)]
        if not all(groups):
            return math.inf
        problem, hops_s = self.problem, 0.0
        for one, other in pairwise(groups):
            size = max(len(one), len(other))
            hops_s += problem.matched_s(*((group * size)[:size] for group in (one, other)))
        return hops_s + max(problem.data_parallel_s(group, stage) for stage, group in enumerate(groups))
