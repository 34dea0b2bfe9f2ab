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
from swarmflow.planning.arrangement import Group, Problem

NEAR = 1.02  # times the least cost: of such plans the one for which the fewest peers move is taken
SEED = 0  # of the search: the same links give the same plan


def plan_stages(asked: PlanStages) -> StagesPlanned:
    """Return the stage of each peer: of the cheapest plan, or of what swaps make of the present one.

    As many peers serve each stage. Who is left over stays, or goes where few are, to the nearest ones. Where so many
    are fixed that a stage cannot have a peer, everybody stays, and newcomers go where the fewest are.
    """
    found = _Assignment(asked)
    groups = found.chosen() if found.pipelines else None
    stages = found.with_spares(groups or ())
    if groups is None:
        return StagesPlanned(asked.number, stages, 0.0, 0.0)
    return StagesPlanned(asked.number, stages, found.problem.cost_s(groups), found.current_s())


@dataclass
class _Assignment:
    asked: PlanStages
    pipelines: int = field(init=False)  # as many as the peers that are free can complete
    planned: list[int] = field(init=False)  # the peers that the plan is about; others are fixed, beside enough of them
    problem: Problem = field(init=False)  # of these, by their place in `planned`

    def __post_init__(self) -> None:
        asked = self.asked
        fixed = [[peer for peer in peers if asked.fixed[peer]] for peers in self._serving(range(len(asked.serves)))]
        free = [peer for peer, is_fixed in enumerate(asked.fixed) if not is_fixed]
        possible = range(len(asked.serves) // self.stages, 0, -1)
        self.pipelines = next((n for n in possible if sum(max(0, n - len(peers)) for peers in fixed) <= len(free)), 0)
        self.planned = sorted(free + [peer for peers in fixed for peer in peers[: self.pipelines]])
        if self.pipelines:
            self.problem = self._problem()

    @property
    def stages(self) -> int:
        """Their number."""
        return len(self.asked.gradient_bytes)

    def _serving(self, peers: Sequence[int]) -> list[list[int]]:
        """Return those of these peers that serve each stage now."""
        return [[peer for peer in peers if self.asked.serves[peer] == stage] for stage in range(self.stages)]

    def _problem(self) -> Problem:
        asked, links = self.asked, np.ix_(self.planned, self.planned)
        fixed = {place: asked.serves[peer] for place, peer in enumerate(self.planned) if asked.fixed[peer]}
        return Problem(
            latency_s=np.array(asked.latency_s)[links].tolist(),
            bytes_per_s=np.array(asked.bytes_per_s)[links].tolist(),
            pipelines=self.pipelines,
            stages=self.stages,
            activation_bytes=asked.boundary_bytes * asked.microbatches / self.pipelines,
            gradient_bytes=asked.gradient_bytes,
            pinned=fixed,
        )

    def chosen(self) -> tuple[Group, ...]:
        """Return the peers of each stage, by their place in `planned`."""
        problem, random = self.problem, Random(SEED)
        best = places.arrange(problem, random).groups
        present = self._present()
        plans = {present, places.improved(problem, random, present), best}
        if not problem.pinned:
            plans.add(best[::-1])
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
        place_of = {peer: place for place, peer in enumerate(self.planned)}
        serving = self._serving(self.planned)
        groups = [[place_of[p] for p in sorted(s, key=lambda p: not self.asked.fixed[p])] for s in serving]
        left = set(range(len(self.planned))) - {place for group in groups for place in group[: self.pipelines]}
        for stage, group in enumerate(groups):
            del group[self.pipelines :]
            exchange_s = self.problem.exchange_s(self.asked.gradient_bytes[stage])
            while len(group) < self.pipelines:
                group.append(min(left, key=lambda place: (float(exchange_s[place, group].sum()), place)))
                left.remove(group[-1])
        return tuple(tuple(sorted(group)) for group in groups)

    def with_spares(self, groups: tuple[Group, ...]) -> tuple[int, ...]:
        """Return the stage of each peer of the swarm. groups: of those that the plan is about; none: there is none."""
        asked = self.asked
        stages = [
            serves if fixed or not groups else -1 for serves, fixed in zip(asked.serves, asked.fixed, strict=True)
        ]
        for stage, group in enumerate(groups):
            for place in group:
                stages[self.planned[place]] = stage
        for peer, stage in enumerate(stages):
            if stage < 0:
                stages[peer] = self._spare(peer, stages)
        return tuple(stages)

    def _spare(self, peer: int, stages: Sequence[int]) -> int:
        """Return the stage of a peer that is left over: one with the fewest, its own of these, else the nearest."""
        rate = self.asked.bytes_per_s[peer]
        counts = [stages.count(stage) for stage in range(self.stages)]
        few = [stage for stage, count in enumerate(counts) if count == min(counts)]
        if self.asked.serves[peer] in few:
            return self.asked.serves[peer]
        near = {stage: sum(rate[other] for other, its in enumerate(stages) if its == stage) for stage in few}
        return max(few, key=lambda stage: (near[stage], -stage))

    def current_s(self) -> float:
        """Return what exchanges take in a step with the stages as they are; infinite where one has no peer.

        Where two neighbouring stages have unlike numbers of peers, those of the smaller one serve several of the other.
        """
        place_of = {peer: place for place, peer in enumerate(self.planned)}
        groups = [tuple(place_of[peer] for peer in peers) for peers in self._serving(self.planned)]
        if not all(groups):
            return math.inf
        problem, hops_s = self.problem, 0.0
        for one, other in pairwise(groups):
            size = max(len(one), len(other))
            hops_s += problem.matched_s(*((group * size)[:size] for group in (one, other)))
        return hops_s + max(problem.data_parallel_s(group, stage) for stage, group in enumerate(groups))
