"""The costs of one process' links, from times that both ends measure and exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from swarmflow.core.protocol.messages.negotiation import Times
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import COST_MAX_S, FlowSend, View

UNKNOWN_S = -1.0  # stands for a time that is not measured, in messages
PRIOR_S = 1e-3  # the least cost of a link, and its cost before any measurement
CHANGED = 0.1  # relative change of a time before it is sent again, and of a cost before it is used
NOTEWORTHY_S = 1e-4  # a smaller change of a time is never sent
REPEAT_S = 240.0  # after which all times are sent again: a receiver may not have known the sender yet


@dataclass(slots=True)
class FlowCosts:
    """Link costs after GWTF's equation 1: half of the compute time of either end, plus the transfer time of a tensor.

    The transfer time is latency and transmission. The sender of activations measures it; gradients on their way back
    are taken to need as long.
    """

    compute_s: Callable[[], float | None]  # compute time of a microbatch here; None: not measured
    tensor_s: Callable[[ProcessId], float | None]  # transfer time to a peer of the next stage; None: not measured
    reported: dict[ProcessId, Times] = field(init=False, default_factory=dict)  # latest times from each neighbour
    _announced: dict[ProcessId, Times] = field(init=False, default_factory=dict)  # latest times sent to each neighbour
    _repeat_s: float = field(init=False, default=REPEAT_S)  # when all times are sent again

    def learn(self, sender: ProcessId, times: Times) -> None:
        """Store the times that a neighbour has measured."""
        self.reported[sender] = times

    def forget(self, process: ProcessId) -> None:
        """Drop the times of a process that is dead or serves another stage."""
        self.reported.pop(process, None)
        self._announced.pop(process, None)

    def announce(self, view: View, now: float) -> list[FlowSend]:
        """Return messages with own times that have changed by a tenth, to the neighbours whose costs depend on them.

        After REPEAT_S all are sent again.
        """
        if now >= self._repeat_s:
            self._announced.clear()
            self._repeat_s = now + REPEAT_S
        compute_s = self.compute_s()
        own_s = UNKNOWN_S if compute_s is None else compute_s
        sends = []
        after, beside = dict.fromkeys(view.after), dict.fromkeys(view.beside)
        link_s = self._link_s(view)
        for node in view.linked:
            transfer_s = link_s if node in beside else None
            if node in after and view.stage < view.stages - 1:
                transfer_s = self.tensor_s(node)
            times = Times(own_s, UNKNOWN_S if transfer_s is None else transfer_s)
            announced = self._announced.get(node, Times(UNKNOWN_S, UNKNOWN_S))
            if _differ(announced.compute_s, times.compute_s) or _differ(announced.tensor_s, times.tensor_s):
                self._announced[node] = times
                sends.append(FlowSend(node, times, "it has changed, or may have been lost"))
        return sends

    def of(self, view: View) -> dict[ProcessId, float]:
        """Return the cost of each link, in seconds. The mean of the measured times stands for those not measured.

        Whatever times its neighbours report, other nodes accept the costs that this one sends.
        """
        last = view.stage == view.stages - 1
        costs: dict[ProcessId, float] = {}
        for outward, nodes in ((False, view.before), (True, view.after)):
            free = last if outward else view.stage < 0  # only a short message returns to a trainer
            transfers_s = {node: 0.0 if free else self._transfer_s(node, outward) for node in nodes}
            to_trainers = view.stage == 0 if not outward else last  # trainers compute nothing
            computations_s = {node: 0.0 if to_trainers else self._compute_time_s(node) for node in nodes}
            own_s = 0.0 if view.stage < 0 else self.compute_s()
            mean_transfer_s, mean_s = _mean(transfers_s.values()), _mean(computations_s.values())
            for node in nodes:
                transfer_s, other_s = transfers_s[node], computations_s[node]
                both_s = (own_s if own_s is not None else mean_s) + (other_s if other_s is not None else mean_s)
                cost_s = both_s / 2 + (transfer_s if transfer_s is not None else mean_transfer_s)
                costs[node] = min(COST_MAX_S, max(PRIOR_S, costs.get(node, 0.0), cost_s))
        return costs

    def rates(self, view: View, peers: Iterable[ProcessId]) -> dict[ProcessId, float]:
        """Return the microbatches/s that each peer of the own stage can serve: compute, or its link, is the limit.

        Activations and gradients go both ways at once: a tensor enters the first stage and the last one for each
        microbatch, two any other. The mean of the measured times stands for those not measured.
        """
        tensors = 1 if view.stage in (0, view.stages - 1) else 2
        computations_s = {node: self._compute_time_s(node) for node in peers} | {view.me: self.compute_s()}
        links_s = {node: self._reported_s(node) for node in peers} | {view.me: self._link_s(view)}
        mean_s, mean_link_s = _mean(computations_s.values()), _mean(links_s.values())
        rates: dict[ProcessId, float] = {}
        for node, compute_s in computations_s.items():
            link_s = links_s[node]
            passes_s = tensors * (mean_link_s if link_s is None else link_s)
            rates[node] = 1.0 / max(PRIOR_S, mean_s if compute_s is None else compute_s, passes_s)
        return rates

    def _link_s(self, view: View) -> float | None:
        """Return the time of a tensor at the mean rate of the links to the stages before and after; None: unknown."""
        before = view.before if view.stage > 0 else ()
        after = view.after if view.stage < view.stages - 1 else ()
        times_s = [self._reported_s(node) for node in before] + [self.tensor_s(node) for node in after]
        known_s = [max(PRIOR_S, time_s) for time_s in times_s if time_s is not None]
        return 1.0 / fmean(1.0 / time_s for time_s in known_s) if known_s else None

    def _transfer_s(self, node: ProcessId, outward: bool) -> float | None:
        """Return the transfer time of a tensor to (outward) or from a node; None: not measured."""
        return self.tensor_s(node) if outward else self._reported_s(node)

    def _reported_s(self, node: ProcessId) -> float | None:
        """Return the transfer time that a node reports: to this one, or of a mate in the mean; None: not measured."""
        times = self.reported.get(node)
        return None if times is None or times.tensor_s < 0 else times.tensor_s

    def _compute_time_s(self, node: ProcessId) -> float | None:
        """Return the compute time of a microbatch at a node; None: not measured."""
        times = self.reported.get(node)
        return None if times is None or times.compute_s < 0 else times.compute_s


def changed(former: Mapping[ProcessId, float], costs: Mapping[ProcessId, float]) -> bool:
    """Return whether the cost of any link has changed by a tenth, of its own and of the mean cost."""
    least_s = CHANGED * fmean(former.values()) if former else 0.0
    return any(abs(cost - former[node]) > max(least_s, CHANGED * former[node]) for node, cost in costs.items())


def _differ(announced_s: float, measured_s: float) -> bool:
    return abs(measured_s - announced_s) > max(NOTEWORTHY_S, CHANGED * announced_s)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0
