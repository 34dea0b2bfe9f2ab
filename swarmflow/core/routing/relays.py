"""Relays around slow links: a tensor is sent through a third peer where it then arrives much sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Backward, Forward, LinkRateReport, RelayTensor
from swarmflow.core.protocol.types import Microbatch, ProcessId, Ref
from swarmflow.core.routing.link_rates import REPORTED_MAX, LinkRates, plausible_rates
from swarmflow.core.routing.prober import large
from swarmflow.core.routing.router import Router

# Peers of a stage. Relays are used only from or to a stage of so few: between larger ones the router has other paths to
# choose from, and relays take bandwidth from other transfers: with 8 peers on a stage (experiments/dtfm_cases, case 4)
# an iteration took 30 s instead of 17.5.
NARROW = 2
WORTH = 0.8  # the largest share of the direct link's time: a relayed tensor takes the bandwidth of two links
GAIN_MIN_S = 0.1  # a smaller gain may be an error of measurement
LATE_FACTOR = 3.0  # multiple of its expected time after which a tensor counts as delivered if its relay dies
NOTICED_S = 10.0  # and at least so long: a relay may die at once, and its death be noticed by its silence alone


@dataclass(frozen=True, slots=True)
class _Relay:
    """A path to one receiver through a relaying peer."""

    via: ProcessId
    first: float  # rate of the link to the relaying peer, in bytes/s
    last: float  # rate of the link from there to the receiver, in bytes/s

    @property
    def rate(self) -> float:
        """Rate of the whole path, in bytes/s: the relaying peer forwards a tensor once all of it has arrived."""
        return 1.0 / (1.0 / self.first + 1.0 / self.last)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A tensor in flight through a relay."""

    to: ProcessId  # its receiver
    message: Forward | Backward
    by_s: float  # when it counts as delivered


@dataclass(slots=True)
class Relays:
    """Chooses for each tensor the direct link or a path through one relay.

    The relay is a peer of the own stage, the one before or the next, and at most one stage away from the receiver:
    peers further away do not have the receiver in their roster and would not forward the tensor. A relay does not
    decode the tensor. A tensor that is lost with its relay is sent again, then directly. Each tensor takes the path on
    which it arrives first, queued behind those sent before it, so several tensors to one peer take several paths. Small
    tensors are always sent directly, and so are those between two stages of many peers.
    """

    me: ProcessId
    boundary_bytes: int = 0  # size of a boundary tensor
    link_rates: LinkRates = field(default_factory=LinkRates, init=False)  # own measurements
    near: dict[ProcessId, int] = field(default_factory=dict, init=False)  # peer -> stage: -1 before, 0 own, 1 next
    changed: dict[ProcessId, float] = field(default_factory=dict, init=False)  # new rates in bytes/s, by receiver
    _reported: dict[ProcessId, dict[ProcessId, float]] = field(default_factory=dict, init=False)  # rates by reporter
    _paths: dict[ProcessId, list[_Relay]] = field(default_factory=dict, init=False)  # relayed paths, by receiver
    _direct: dict[ProcessId, float] = field(default_factory=dict, init=False)  # rates of direct links, in bytes/s
    _idle: dict[ProcessId, float] = field(default_factory=dict, init=False)  # rates of the best paths, of `_idle_rate`
    _free_s: dict[tuple[ProcessId, ProcessId], float] = field(default_factory=dict, init=False)  # when a link is idle
    _in_flight: dict[ProcessId, list[_Sent]] = field(default_factory=dict, init=False)  # relayed tensors, by relay
    _relayed: set[tuple[ProcessId, Microbatch, type]] = field(default_factory=set, init=False)  # sent so before

    def open(self, link_rates: LinkRates, around: Mapping[int, Iterable[ProcessId]]) -> None:
        """Begin an epoch, nothing in flight. around: peers of the stage before (-1), the own (0) and the next (1)."""
        self.link_rates = link_rates
        stages = around.items() if large(self.boundary_bytes) else ()
        self.near = {process: place for place, stage in stages for process in stage}
        self._reported = {process: rates for process, rates in self._reported.items() if process in self.near}
        self._in_flight.clear()
        self._relayed.clear()
        self._free_s.clear()
        self._find_paths()

    def learn(self, sender: ProcessId, message: LinkRateReport) -> None:
        """Record a peer's report of its link rates."""
        # The report may arrive before this process opens the epoch, when its sender is not yet a near peer.
        if sender in self._reported or len(self._reported) < REPORTED_MAX:
            self._reported[sender] = plausible_rates(message)
            self._find_paths()

    def gone(self, process: ProcessId, now: float) -> list[tuple[ProcessId, Forward | Backward]]:
        """Forget a dead process; return the messages in flight through it, with their receivers."""
        self.near.pop(process, None)
        self._reported.pop(process, None)
        self._find_paths()
        return [(sent.to, sent.message) for sent in self._in_flight.pop(process, ()) if sent.by_s > now]

    def report_changes(self, router: Router) -> None:
        """Report new transfer times to the router of this process, where the best path to a peer has changed."""
        for process, rate in self.changed.items():
            router.links.record_path(process, self.boundary_bytes / rate)
            router.refresh(process)
        self.changed.clear()

    def around(self, actions: list[Action], now: float) -> list[Action]:
        """Return these actions, with tensors sent through relays where that is worth it."""
        if not self._paths:
            return actions
        return [other for action in actions for other in self._rerouted(action, now)]

    def _rerouted(self, action: Action, now: float) -> list[Action]:
        """Return the actions that replace this one: a tensor that was not relayed before may take a relay."""
        if not isinstance(action, Send) or not action.bodies or not isinstance(action.message, Forward | Backward):
            return [action]
        to, message = action.to, action.message
        size_bytes = sum(body.size_bytes for body in action.bodies if isinstance(body, Ref))
        key = (to, message.microbatch, type(message))
        relay = None if key in self._relayed else self._choose_path(to, size_bytes, now)
        if isinstance(message, Forward):
            self.link_rates.sent(message.microbatch, direct=relay is None)
        if relay is None:
            return [action]
        self._relayed.add(key)
        by_s = now + max(NOTICED_S, LATE_FACTOR * (self._free_s[relay.via, to] - now))
        self._in_flight.setdefault(relay.via, []).append(_Sent(to, message, by_s))
        forward = message if isinstance(message, Forward) else None
        backward = message if isinstance(message, Backward) else None
        return [Count("detours"), Send(relay.via, RelayTensor(to, forward, backward), action.bodies)]

    def _choose_path(self, to: ProcessId, size_bytes: int, now: float) -> _Relay | None:
        """Choose the path on which a tensor arrives first, and reserve its links; None: the direct link."""
        rate = self._direct.get(to)
        if rate is None:
            return None
        direct_s = self._crossed_s(self.me, to, now, size_bytes / rate)
        best, best_s = None, self._latest_s(now, direct_s)
        for relay in self._paths.get(to, ()):
            first_s = self._crossed_s(self.me, relay.via, now, size_bytes / relay.first)
            last_s = self._crossed_s(relay.via, to, first_s, size_bytes / relay.last)
            if last_s < best_s:
                best, best_s = relay, last_s
        if best is None:
            self._free_s[self.me, to] = direct_s
        else:
            self._free_s[self.me, best.via] = self._crossed_s(self.me, best.via, now, size_bytes / best.first)
            self._free_s[best.via, to] = best_s
        return best

    @staticmethod
    def _latest_s(now: float, direct_s: float) -> float:
        """Return the latest time of arrival that makes a relay worth it. direct_s: when the tensor arrives directly."""
        return min(now + WORTH * (direct_s - now), direct_s - GAIN_MIN_S)

    def _crossed_s(self, one: ProcessId, other: ProcessId, from_s: float, transfer_s: float) -> float:
        """Return when a tensor that is ready at from_s has crossed a link, behind those sent before it."""
        return max(from_s, self._free_s.get((one, other), 0.0)) + transfer_s

    def _rate(self, one: ProcessId, other: ProcessId) -> float:
        """Return the link rate as reported by either end, in bytes/s; 0 if neither has reported."""
        return self._rate_from(one, other) or self._rate_from(other, one)

    def _rate_onward(self, via: ProcessId, to: ProcessId) -> float:
        """Return the rate of a relay's second link, in bytes/s; 0 if its ends are two stages apart."""
        return self._rate(via, to) if abs(self.near[via] - self.near[to]) <= 1 else 0.0

    def _rate_from(self, one: ProcessId, other: ProcessId) -> float:
        """Return the link rate as reported by its first end, in bytes/s; 0 if it has not reported."""
        return self.link_rates.rate(other) if one == self.me else self._reported.get(one, {}).get(other, 0.0)

    def _find_paths(self) -> None:
        """Find the relayed paths to each near peer, and record the best rates that have changed."""
        former, self._idle, self._paths = self._idle, {}, {}
        self._direct = {to: rate for to in self.near if (rate := self._rate(self.me, to)) > 0.0}
        sizes = Counter(self.near.values())
        for to in self._direct:
            if min(1 + sizes[0], sizes[self.near[to]]) <= NARROW:
                paths = [(via, first, self._rate_onward(via, to)) for via, first in self._direct.items() if via != to]
                self._paths[to] = [_Relay(via, first, last) for via, first, last in paths if last > 0.0]
            rate = self._idle[to] = self._idle_rate(to)
            if rate != former.get(to):
                self.changed[to] = rate

    def _idle_rate(self, to: ProcessId) -> float:
        """Return the rate of the best path to a peer, in bytes/s, when nothing else is in flight."""
        direct_s, paths = self.boundary_bytes / self._direct[to], self._paths.get(to)
        if not paths:  # of most peers, and each report of a neighbour asks for all
            return self.boundary_bytes / direct_s
        least_s = min(self.boundary_bytes / path.rate for path in paths)
        return self.boundary_bytes / (least_s if least_s < self._latest_s(0.0, direct_s) else direct_s)
