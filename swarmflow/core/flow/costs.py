"""What the links of one process cost: measured at both of their ends, and told from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from swarmflow.core.flow.messages import Times
from swarmflow.core.flow.node_types import FlowSend, View
from swarmflow.core.types import ProcessId

UNKNOWN_S = -1.0
PRIOR_S = 1e-3  # of a link of which nothing is known, nor of any other one
CHANGED = 0.1  # of a time that was told, or of a cost that was reckoned with, before it is told or reckoned anew
NOTEWORTHY_S = 1e-4  # a shorter time is as good as none


@dataclass(slots=True)
class FlowCosts:
    """compute_s: of a microbatch here; tensor_s: of a boundary tensor's way to one of the next stage; None: unknown.

    A link costs what GWTF's equation 1 says: half of the computing at either end, and a tensor's way between them,
    latency and transmission. It is measured where it is sent, forward: the way back is taken for as long.
    """

    compute_s: Callable[[], float | None]
    tensor_s: Callable[[ProcessId], float | None]
    reported: dict[ProcessId, Times] = field(default_factory=dict)
    _announced: dict[ProcessId, Times] = field(default_factory=dict)

    def learn(self, sender: ProcessId, times: Times) -> None:
        """What a neighbour has measured."""
        self.reported[sender] = times

    def forget(self, process: ProcessId) -> None:
        """It is dead, or in another place."""
        self.reported.pop(process, None)
        self._announced.pop(process, None)

    def tell(self, view: View) -> list[FlowSend]:
        """What has changed by a tenth, to those whom it concerns."""
        compute_s = self.compute_s()
        own_s = UNKNOWN_S if compute_s is None else compute_s
        sends = []
        after = dict.fromkeys(view.after)
        for node in dict.fromkeys((*view.before, *view.beside, *view.after)):
            transfer_s = self.tensor_s(node) if node in after and view.stage < view.stages - 1 else None
            times = Times(own_s, UNKNOWN_S if transfer_s is None else transfer_s)
            announced = self._announced.get(node, Times(UNKNOWN_S, UNKNOWN_S))
            if _differ(announced.compute_s, times.compute_s) or _differ(announced.tensor_s, times.tensor_s):
                self._announced[node] = times
                sends.append(FlowSend(node, times, "it has changed"))
        return sends

    def of(self, view: View) -> dict[ProcessId, float]:
        """The cost of each link, in seconds."""
        last = view.stage == view.stages - 1
        costs: dict[ProcessId, float] = {}
        for outward, nodes in ((False, view.before), (True, view.after)):
            free = last if outward else view.stage < 0  # what returns to a trainer is a word
            transfers_s = {node: 0.0 if free else self._transfer_s(node, outward) for node in nodes}
            trainers = view.stage == 0 if not outward else last
            computing = {node: 0.0 if trainers else self._computing_s(node) for node in nodes}
            own_s = 0.0 if view.stage < 0 else self.compute_s()
            transfer_s, other_s = _mean(transfers_s.values()), _mean(computing.values())
            for node in nodes:
                link_s, other = transfers_s[node], computing[node]
                halves = (own_s if own_s is not None else other_s) + (other if other is not None else other_s)
                cost_s = halves / 2 + (link_s if link_s is not None else transfer_s)
                costs[node] = max(PRIOR_S, costs.get(node, 0.0), cost_s)
        return costs

    def rates(self, view: View) -> dict[ProcessId, float]:
        """Microbatches a second of this peer and of those beside it, by their computing and the usual way to here."""
        computing = {node: self._computing_s(node) for node in view.beside}
        computing[view.me] = self.compute_s()
        usual_s = _mean(computing.values())
        transfers_s = [self._transfer_s(node, outward=False) for node in view.before] if view.stage > 0 else []
        transfer_s = _mean(transfers_s)
        return {
            node: 1.0 / max(PRIOR_S, transfer_s + (usual_s if compute_s is None else compute_s))
            for node, compute_s in computing.items()
        }

    def _transfer_s(self, node: ProcessId, outward: bool) -> float | None:
        if outward:
            return self.tensor_s(node)
        times = self.reported.get(node)
        return None if times is None or times.tensor_s < 0 else times.tensor_s

    def _computing_s(self, node: ProcessId) -> float | None:
        times = self.reported.get(node)
        return None if times is None or times.compute_s < 0 else times.compute_s


def changed(former: Mapping[ProcessId, float], costs: Mapping[ProcessId, float]) -> bool:
    """Whether any link costs another tenth of what links cost."""
    least_s = CHANGED * fmean(former.values()) if former else 0.0
    return any(abs(cost - former[node]) > max(least_s, CHANGED * former[node]) for node, cost in costs.items())


def _differ(announced_s: float, now_s: float) -> bool:
    return abs(now_s - announced_s) > max(NOTEWORTHY_S, CHANGED * announced_s)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0
