"""Relays around slow links: a tensor goes through a third peer where it arrives much sooner that way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Count, Send
from swarmflow.core.link_rates import TOLD_MAX, LinkRates, believable
from swarmflow.core.messages import Backward, Forward, LinkRateReport, RelayTensor
from swarmflow.core.prober import large
from swarmflow.core.types import ProcessId, Ref

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
    speeds: LinkRates = field(default_factory=LinkRates)
    near: dict[ProcessId, int] = field(default_factory=dict)  # peers around -> -1, 0, 1: stage before, own, next
    changed: dict[ProcessId, float] = field(default_factory=dict)  # new rates, in bytes/s, until the dispatcher asks
    _told: dict[ProcessId, dict[ProcessId, float]] = field(default_factory=dict)  # rates as reported by others
    _ways: dict[ProcessId, list[_Relay]] = field(default_factory=dict)  # relays by receiver
    _direct: dict[ProcessId, float] = field(default_factory=dict)  # rates of direct links
    _free_s: dict[tuple[ProcessId, ProcessId], float] = field(default_factory=dict)  # when a link is idle again
    _sent: dict[ProcessId, list[_Sent]] = field(default_factory=dict)  # in flight, by relay
    _tried: set[tuple[ProcessId, int, type]] = field(default_factory=set)  # relayed once: sent directly from then on

    def open(self, speeds: LinkRates, around: Mapping[int, Iterable[ProcessId]]) -> None:
        """Begin an epoch, nothing in flight. around: peers of the stage before (-1), the own one (0) and the next."""
        self.speeds = speeds
        stages = around.items() if large(self.boundary_bytes) else ()
        self.near = {process: place for place, stage in stages for process in stage}
        self._told = {process: told for process, told in self._told.items() if process in self.near}
        self._sent.clear()
        self._tried.clear()
        self._free_s.clear()
        self._look()

    def learn(self, sender: ProcessId, message: LinkRateReport) -> None:
        """Record a peer's report of its link rates."""
        if (
            sender in self._told or len(self._told) < TOLD_MAX
        ):  # its report may arrive before this process opens the epoch
            self._told[sender] = believable(message)
            self._look()

    def gone(self, process: ProcessId, now: float) -> list[tuple[ProcessId, Forward | Backward]]:
        """Forget a dead process; return the messages in flight through it, with their receivers."""
        self.near.pop(process, None)
        self._told.pop(process, None)
        self._look()
        return [(sent.to, sent.message) for sent in self._sent.pop(process, ()) if sent.by_s > now]

    def around(self, actions: list[Action], now: float) -> list[Action]:
        """Return the actions with tensors sent through relays where that is worth it."""
        if not self._ways:
            return actions
        return [other for action in actions for other in self._sent_on(action, now)]

    def _sent_on(self, action: Action, now: float) -> list[Action]:
        if not isinstance(action, Send) or not action.bodies or not isinstance(action.message, Forward | Backward):
            return [action]
        to, message = action.to, action.message
        size_bytes = sum(body.size_bytes for body in action.bodies if isinstance(body, Ref))
        this = (to, message.microbatch.index, type(message))
        detour = None if this in self._tried else self._best(to, size_bytes, now)
        if isinstance(message, Forward):
            self.speeds.sent(message.microbatch.index, direct=detour is None)
        if detour is None:
            return [action]
        self._tried.add(this)
        by_s = now + LATE_FACTOR * (self._free_s[detour.via, to] - now)
        self._sent.setdefault(detour.via, []).append(_Sent(to, message, by_s))
        forward = message if isinstance(message, Forward) else None
        backward = message if isinstance(message, Backward) else None
        return [Count("detours"), Send(detour.via, RelayTensor(to, forward, backward), action.bodies)]

    def _best(self, to: ProcessId, size_bytes: int, now: float) -> _Relay | None:
        """Choose the path on which a tensor arrives first, and book its links; None: the direct link."""
        rate = self._direct.get(to)
        if rate is None:
            return None
        direct_s = self._through_s(self.me, to, now, size_bytes / rate)
        best, best_s = None, self._worth_s(now, direct_s)
        for detour in self._ways.get(to, ()):
            first_s = self._through_s(self.me, detour.via, now, size_bytes / detour.first)
            last_s = self._through_s(detour.via, to, first_s, size_bytes / detour.last)
            if last_s < best_s:
                best, best_s = detour, last_s
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
        told = self.speeds.rates if one == self.me else self._told.get(one)
        return 0.0 if told is None else told.get(other, 0.0)

    def _look(self) -> None:
        """Find the relays to each peer around."""
        before, self._ways = {to: self._idle(to) for to in self._direct}, {}
        self._direct = {to: rate for to in self.near if (rate := self._rate(self.me, to)) > 0.0}
        sizes = Counter(self.near.values())
        for to in self._direct:
            if min(1 + sizes[0], sizes[self.near[to]]) <= NARROW:
                legs = [(via, first, self._leg(via, to)) for via, first in self._direct.items() if via != to]
                self._ways[to] = [_Relay(via, first, last) for via, first, last in legs if last > 0.0]
            if (rate := self._idle(to)) != before.get(to):
                self.changed[to] = rate

    def _idle(self, to: ProcessId) -> float:
        """Return the rate to a peer, in bytes/s, when nothing else is in flight."""
        direct_s = self.boundary_bytes / self._direct[to]
        least_s = min((self.boundary_bytes / way.rate for way in self._ways.get(to, ())), default=direct_s)
        return self.boundary_bytes / (least_s if least_s < self._worth_s(0.0, direct_s) else direct_s)
