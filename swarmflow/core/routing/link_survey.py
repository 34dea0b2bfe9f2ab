"""A survey of links: a newcomer measures its links to peers of all stages, and what each stage would gain by them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import LinkGains, MeasureLinks
from swarmflow.core.protocol.messages.checks import FASTEST, SECONDS_MAX, SLOWEST
from swarmflow.core.protocol.types import Member, Plan, ProcessId
from swarmflow.core.routing.flow.joining import LinkSavings, StageLinks, saved_by_stage
from swarmflow.core.routing.prober import ProbedLink, Prober

LONGEST = 16.0  # a link counts as at most so many times as long as the median one of its kind: its sender may lie
MEASURED_MIN = 0.25  # share of the peers of each stage, a random one, to which the link has to be measured
BODY_SHARE = 0.125  # of the way there and back: a body that took less is not told from one that took none
SLICES = 16  # of the computation at a time: a few milliseconds


@dataclass(slots=True)
class LinkSurvey:
    """A survey of one process: first it measures, one peer after the other, then it computes, in slices."""

    asked: MeasureLinks
    plan: Plan
    prober: Prober
    capacity: int  # microbatches that this process holds at a time; 0: not known
    until_s: float  # when the measuring ends at the latest
    links: dict[ProcessId, ProbedLink] = field(default_factory=dict, init=False)  # by the peer at the other end
    _solving: Generator[None, None, LinkSavings] | None = field(default=None, init=False)

    def next_deadline(self) -> float:
        """Return when `tick` is due."""
        due_s = self.prober.next_deadline()
        return 0.0 if self._solving is not None or due_s is None else min(due_s, self.until_s)

    def tick(self, now: float) -> tuple[list[Action], LinkGains | None]:
        """Go on; return what to send, and the report once it is known."""
        if self._solving is None:
            if now < self.until_s and self.prober.next_deadline() is not None:
                return self.prober.tick(now), None
            given = self._links()
            if given is None:
                return [], self._report(())
            self._solving = saved_by_stage(given, self.plan.microbatches)
        try:
            for _ in range(SLICES):
                next(self._solving)
        except StopIteration as solved:
            return [], self._report(self._gains(solved.value))
        return [], None

    @property
    def own_s(self) -> dict[ProcessId, float]:
        """What a boundary tensor takes on the measured links, by peer."""
        each_s = {process: link.tensor_s(self.plan.boundary_bytes) for process, link in self.links.items()}
        return {process: seconds for process, seconds in each_s.items() if seconds > 0.0}

    def _report(self, gains: tuple[float, ...]) -> LinkGains:
        fastest_s = min(self.own_s.values(), default=0.0)
        rate = min(FASTEST, self.plan.boundary_bytes / fastest_s) if fastest_s > 0 else 0.0
        alone = self.links if not self.asked.links else {}
        size_bytes = self.prober.body_bytes
        links = ((process, link.latency_s, _rate(link, size_bytes)) for process, link in alone.items())
        return LinkGains(self.asked.survey, rate, gains, tuple(links))

    def _links(self) -> StageLinks | None:
        """Return all links; those that are not known take the median of their two stages. None: too few are known."""
        stages: list[list[Member]] = [[] for _ in range(self.plan.stages)]
        places: list[int] = []
        for member in self.asked.members:
            places.append(len(stages[member.stage]))
            stages[member.stage].append(member)
        own = self.own_s
        measured = [[own[m.process] for m in stage if m.process in own] for stage in stages]
        if not self.asked.links or not all(stages):
            return None
        if any(len(known) < MEASURED_MIN * len(stage) for known, stage in zip(measured, stages, strict=True)):
            return None
        links_s = [np.full((len(here), len(there)), np.nan) for here, there in pairwise(stages)]
        for sender, receiver, seconds in self.asked.links:
            links_s[self.asked.members[sender].stage][places[sender], places[receiver]] = seconds
        usual_s = median(link[2] for link in self.asked.links)
        capacity = [[member.capacity for member in stage] for stage in stages]
        own_s = [np.array([own.get(member.process, np.nan) for member in stage]) for stage in stages]
        own_usual_s = median(own.values())
        usual = int(median(member.capacity for member in self.asked.members))
        return StageLinks(
            capacity,
            [_bounded(each, usual_s) for each in links_s],
            [_bounded(each, own_usual_s).tolist() for each in own_s],
            self.capacity or usual,
        )

    def _gains(self, saved: LinkSavings) -> tuple[float, ...]:
        """Return what each stage gains, in seconds a step.

        A step takes the way of a microbatch on all links there and back at least, and once more each time that memory
        makes microbatches wait for those before them. Where it does, a peer at the narrowest stage also lets more of
        them under way.
        """
        in_flight = saved.flows * (1 + self.plan.without_graph)
        times = max(1.0, self.plan.microbatches / in_flight)
        gains = [2 * times * saved_s for saved_s in saved.saved_s]
        if times > 1.0:
            held = [0] * self.plan.stages
            for member in self.asked.members:
                held[member.stage] += member.capacity
            narrowest = held.index(min(held))
            held[narrowest] += self.capacity or 1
            gains[narrowest] += 2 * times * saved.path_s * (1.0 - saved.flows / max(saved.flows, min(held)))
        return tuple(min(max(0.0, gain), SECONDS_MAX) for gain in gains)


def _rate(link: ProbedLink, size_bytes: int) -> float:
    """Return the rate that a probe of this size has found, within bounds, in bytes/s.

    A body that took less than a share of the way there and back says nothing: a busy peer answers both at once.
    """
    body_s = max(link.byte_s * size_bytes, 2 * link.latency_s * BODY_SHARE)
    return min(FASTEST, max(SLOWEST, size_bytes / body_s)) if body_s > 0.0 else FASTEST


def _bounded(seconds: NDArray[np.float64], usual_s: float) -> NDArray[np.float64]:
    """Replace what is not known (not a number) by the median, usual_s where nothing is known, and bound the others."""
    unknown = np.isnan(seconds)
    if not unknown.all():
        usual_s = float(np.median(seconds[~unknown]))
    bounded: NDArray[np.float64] = np.minimum(np.where(unknown, usual_s, seconds), LONGEST * usual_s)
    return bounded
