"""Reports of link rates: what a process tells of its own, and the table that a leader makes of the reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from swarmflow.core.protocol.messages import LinkRateReport
from swarmflow.core.protocol.messages.checks import FASTEST, SLOWEST
from swarmflow.core.protocol.types import Microbatch, ProcessId
from swarmflow.core.routing.link_estimates import LinkEstimates

NEAR_MAX = 16  # peers of a stage: the rates of links between two peers of a larger one are not needed
AFTER_MAX = 32  # peers of the next stage: the rates of links to those of a larger one are not needed
DOUBTFUL = 0.5  # of the fastest link's rate: a slower one is probed in each step, when nothing else is sent yet
CHANGED = 0.25  # relative change of a rate before it is reported again
REPORTED_MAX = 64  # links in a report: a peer has no more to its own and the neighbouring stages

LinkEnds = tuple[ProcessId, ProcessId]


def plausible_rates(report: LinkRateReport) -> dict[ProcessId, float]:
    """Return the rates of a report that are within bounds, in bytes/s."""
    return {process: rate for process, rate in report.rates[:REPORTED_MAX] if SLOWEST <= rate <= FASTEST}


@dataclass(slots=True)
class LinkRates:
    """The rates of the direct links to the peers of the own stage and of the next one, and their reports."""

    links: LinkEstimates = field(default_factory=LinkEstimates)
    relayed: set[Microbatch] = field(default_factory=set, init=False)  # those sent on another path, through a relay
    _reported: dict[ProcessId, float] = field(default_factory=dict, init=False)  # bytes/s, as last reported
    _near: dict[ProcessId, None] = field(default_factory=dict, init=False)  # the peers whose links are measured

    def open(self, mates: tuple[ProcessId, ...], after: tuple[ProcessId, ...]) -> list[ProcessId]:
        """Begin an epoch with these peers of the own stage and the next; return the mates whose links are to be probed.

        Those without a known rate; and those whose probe met other traffic, as far as can be told: it was less than
        DOUBTFUL of the fastest link.
        """
        near = [*(mates if len(mates) < NEAR_MAX else ()), *(after if len(after) <= AFTER_MAX else ())]
        if any(process not in self._near for process in near):
            self._reported.clear()  # a new peer has received no report
        self._near = dict.fromkeys(near)
        self.relayed.clear()
        self.links.keep(frozenset((*mates, *after)))
        fastest = max((self.rate(process) for process in near), default=0.0)
        doubtful = (process for process in mates if self.links.is_probed(process))
        slow = {process for process in doubtful if self.rate(process) < DOUBTFUL * fastest}
        known = {process for process in mates if self.links.is_fresh(process)} - slow
        return [process for process in mates if process in self._near and process not in known]

    def rate(self, process: ProcessId) -> float:
        """Return the rate of a link, in bytes/s; 0: it is not known."""
        return self.links.rate(process) or 0.0 if process in self._near else 0.0

    def sent(self, microbatch: Microbatch, *, direct: bool) -> None:
        """Record whether a microbatch is sent directly: a relayed one does not measure the link to its receiver."""
        if direct:
            self.relayed.discard(microbatch)
        else:
            self.relayed.add(microbatch)

    def forget_reports(self) -> None:
        """Report everything again, to a new leader."""
        self._reported.clear()

    def report(self, elements: dict[str, int]) -> LinkRateReport | None:
        """Return a report if a rate has changed enough, else None. elements: length of the own gradients by group."""
        rates = {process: rate for process in self._near if (rate := self.rate(process))}
        if all(abs(rate - self._reported.get(process, 0.0)) <= CHANGED * rate for process, rate in rates.items()):
            return None
        self._reported = rates
        return LinkRateReport(tuple(sorted(elements.items())), tuple(rates.items()))


@dataclass
class LinkTable:
    """The link rates that processes have reported."""

    rates: dict[LinkEnds, float] = field(default_factory=dict)  # bytes/s, by (reporter, other end)
    elements: dict[str, int] = field(default_factory=dict)  # length of a gradient, by group; 0: its peers disagree
    _fastest: dict[ProcessId, float] = field(default_factory=dict)  # of all links of a process, in bytes/s

    def learn(self, process: ProcessId, stage: int, report: LinkRateReport) -> None:
        """Record a report: the rates, and the gradient length of the reporter's own stage.

        The length of another stage is ignored, and all peers of a stage must agree: with a wrong one the parts of
        honest peers would not fit.
        """
        name = f"stage-{stage}"
        for group, elements in report.elements:
            if group == name:
                self.elements[name] = elements if self.elements.get(name, elements) == elements else 0
        for other, rate in plausible_rates(report).items():
            self.rates[process, other] = rate
            for end in (process, other):
                self._fastest[end] = max(self._fastest.get(end, 0.0), rate)

    @cached_property
    def median_rate(self) -> float:
        """The median rate of the measured links, which is assumed for the others, in bytes/s."""
        return median(self.rates.values())

    def is_measured(self, one: ProcessId, other: ProcessId) -> bool:
        """Return whether either end has reported the rate of this link."""
        return (one, other) in self.rates or (other, one) in self.rates

    def rate(self, one: ProcessId, other: ProcessId) -> float:
        """Return the rate of a link, else that of the reverse direction, else the median rate, in bytes/s."""
        return self.rates.get((one, other)) or self.rates.get((other, one)) or self.median_rate

    def connection_rate(self, process: ProcessId) -> float:
        """Return the rate of the fastest link of a process, which is taken for that of its connection, in bytes/s."""
        return self._fastest.get(process) or self.median_rate
