"""Relays around slow links: a tensor goes through a third peer where it arrives much sooner that way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Backward, Forward, LinkRateReport, RelayTensor
from swarmflow.core.protocol.types import ProcessId, Ref
from swarmflow.core.routing.link_rates import REPORTED_MAX, LinkRates, believable
from swarmflow.core.routing.prober import large
from swarmflow.core.routing.router import Router

# Peers of a stage. Where both ends have more, the router has other paths to choose from, and relays take bandwidth from
# others: with 8 peers on a stage (experiments/dtfm_cases, case 4) an iteration took 30 s instead of 17.5.
NARROW = 2
WORTH = 0.8  # of the direct link's time, at most: a relay takes the bandwidth of two links
GAIN_MIN_S = 0.1  # a smaller gain may be an error of measurement
LATE_FACTOR = 3.0  # times the expected time: after it a tensor counts as delivered should its relay die


@dataclass(frozen=True, slots=True)
class _Relay:
    """A relaying peer and the rates of its two links, in bytes/s."""

    via: ProcessId
    first: float
    last: float

    @property
    def rate(self) -> float:
        """Rate of the whole path, in bytes/s: the relay passes a tensor on when all of it has arrived."""
        return 1.0 / (1.0 / self.first + 1.0 / self.last)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A tensor in flight through a relay. by_s: from then on it counts as delivered."""

    to: ProcessId
    message: Forward | Backward
    by_s: float


@dataclass(slots=True)
class Relays:
    """Chooses for each tensor the direct link or a path through one relay.

    The relay is a peer of the own stage, the one before or the next, and of a stage beside the receiver's: others do
    not know the receiver in this epoch and would not pass the tensor on. It need not understand what it carries. What
    is lost with it is sent again, then directly. Each tensor takes the path on which it arrives first, behind those
    sent before it, so several tensors to one peer take several paths. Small tensors take no relay, nor do those between
    two stages of many peers.
    """

    me: ProcessId
    boundary_bytes: int = 0
    speeds: LinkRates = field(default_factory=LinkRates, init=False)
    near: dict[ProcessId, int] = field(default_factory=dict, init=False)  # peers around -> -1, 0, 1: before, own, next
    changed: dict[ProcessId, float] = field(default_factory=dict, init=False)  # new rates in bytes/s, until reported
    _reported: dict[ProcessId, dict[ProcessId, float]] = field(default_factory=dict, init=False)  # rates, by reporter
    _paths: dict[ProcessId, list[_Relay]] = field(default_factory=dict, init=False)  # relays by receiver
    _direct: dict[ProcessId, float] = field(default_factory=dict, init=False)  # rates of direct links
    _free_s: dict[tuple[ProcessId, ProcessId], float] = field(default_factory=dict, init=False)  # when a link is idle
    _sent: dict[ProcessId, list[_Sent]] = field(default_factory=dict, init=False)  # in flight, by relay
    _tried: set[tuple[ProcessId, int, type]] = field(default_factory=set, init=False)  # relayed once: direct then on

    def open(self, speeds: LinkRates, around: Mapping[int, Iterable[ProcessId]]) -> None:
        """Begin an epoch, nothing in flight. around: peers of the stage before (-1), the own one (0) and the next."""
        self.speeds = speeds
        stages = around.items() if large(self.boundary_bytes) else ()
        self.near = {process: place for place, stage in stages for process in stage}
        self._reported = {process: rates for process, rates in self._reported.items() if process in self.near}
        self._sent.clear()
        self._tried.clear()
        self._free_s.clear()
        self._find_paths()

    def learn(self, sender: ProcessId, message: LinkRateReport) -> None:
        """Record a peer's report of its link rates."""
        # The report may arrive before this process opens the epoch, so that its sender need not be near yet.
        if sender in self._reported or len(self._reported) < REPORTED_MAX:
            self._reported[sender] = believable(message)
            self._find_paths()

    def gone(self, process: ProcessId, now: float) -> list[tuple[ProcessId, Forward | Backward]]:
        """Forget a dead process; return the messages in flight through it, with their receivers."""
        self.near.pop(process, None)
        self._reported.pop(process, None)
        self._find_paths()
        return [(sent.to, sent.message) for sent in self._sent.pop(process, ()) if sent.by_s > now]

    def report_changes(self, router: Router) -> None:
        """Tell the router of this process that tensors to some peers take other paths now."""
        for process, rate in self.changed.items():
            router.rerouted(process, self.boundary_bytes / rate)
        self.changed.clear()

    def around(self, actions: list[Action], now: float) -> list[Action]:
        """Return the actions with tensors sent through relays where that is worth it."""
        if not self._paths:
            return actions
        return [other for action in actions for other in self._sent_on(action, now)]

    def _sent_on(self, action: Action, now: float) -> list[Action]:
        if not isinstance(action, Send) or not action.bodies or not isinstance(action.message, Forward | Backward):
            return [action]
        to, message = action.to, action.message
        size_bytes = sum(body.size_bytes for body in action.bodies if isinstance(body, Ref))
        this = (to, message.microbatch.index, type(message))
        relay = None if this in self._tried else self._best(to, size_bytes, now)
        if isinstance(message, Forward):
            self.speeds.sent(message.microbatch.index, direct=relay is None)
        if relay is None:
            return [action]
        self._tried.add(this)
        by_s = now + LATE_FACTOR * (self._free_s[relay.via, to] - now)
        self._sent.setdefault(relay.via, []).append(_Sent(to, message, by_s))
        forward = message if isinstance(message, Forward) else None
        backward = message if isinstance(message, Backward) else None
        return [Count("detours"), Send(relay.via, RelayTensor(to, forward, backward), action.bodies)]

    def _best(self, to: ProcessId, size_bytes: int, now: float) -> _Relay | None:
        """Choose the path on which a tensor arrives first, and book its links; None: the direct link."""
        rate = self._direct.get(to)
        if rate is None:
            return None
        direct_s = self._through_s(self.me, to, now, size_bytes / rate)
        best, best_s = None, self._worth_s(now, direct_s)
        for relay in self._paths.get(to, ()):
            first_s = self._through_s(self.me, relay.via, now, size_bytes / relay.first)
            last_s = self._through_s(relay.via, to, first_s, size_bytes / relay.last)
            if last_s < best_s:
                best, best_s = relay, last_s
        if best is None:
            self._free_s[self.me, to] = direct_s
        else:
            self._free_s[self.me, best.via] = self._through_s(self.me, best.via, now, size_bytes / best.first)
            self._free_s[best.via, to] = best_s
        return best

    @staticmethod
    def _worth_s(now: float, direct_s: float) -> float:
        """Return when a relayed tensor must arrive to be worth it. direct_s: when it arrives directly."""
        return min(now + WORTH * (direct_s - now), direct_s - GAIN_MIN_S)

    def _through_s(self, one: ProcessId, other: ProcessId, from_s: float, takes_s: float) -> float:
        """Return when a tensor has crossed a link, behind those sent before it."""
        return max(from_s, self._free_s.get((one, other), 0.0)) + takes_s

    def _rate(self, one: ProcessId, other: ProcessId) -> float:
        """Return the link speed as reported by either end, in bytes/s; 0 if neither has reported."""
        return self._own(one, other) or self._own(other, one)

    def _leg(self, via: ProcessId, to: ProcessId) -> float:
        """Return the link speed between two peers around, 0 if they do not know each other."""
        return self._rate(via, to) if abs(self.near[via] - self.near[to]) <= 1 else 0.0

    def _own(self, one: ProcessId, other: ProcessId) -> float:
        reported = self.speeds.rates if one == self.me else self._reported.get(one)
        return 0.0 if reported is None else reported.get(other, 0.0)

    def _find_paths(self) -> None:
        """Find the relays to each peer around."""
        before, self._paths = {to: self._idle(to) for to in self._direct}, {}
        self._direct = {to: rate for to in self.near if (rate := self._rate(self.me, to)) > 0.0}
        sizes = Counter(self.near.values())
        for to in self._direct:
            if min(1 + sizes[0], sizes[self.near[to]]) <= NARROW:
                legs = [(via, first, self._leg(via, to)) for via, first in self._direct.items() if via != to]
                self._paths[to] = [_Relay(via, first, last) for via, first, last in legs if last > 0.0]
            if (rate := self._idle(to)) != before.get(to):
                self.changed[to] = rate

    def _idle(self, to: ProcessId) -> float:
        """Return the rate to a peer, in bytes/s, when nothing else is in flight."""
        direct_s = self.boundary_bytes / self._direct[to]
        least_s = min((self.boundary_bytes / path.rate for path in self._paths.get(to, ())), default=direct_s)
        return self.boundary_bytes / (least_s if least_s < self._worth_s(0.0, direct_s) else direct_s)
