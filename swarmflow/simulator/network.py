"""Pretended networks: when a message that is sent now arrives, beside all others that are in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from swarmflow.core.types import ProcessId
from swarmflow.simulator.drawn import Drawn, share_of

INFINITE = float("inf")
DRAWN_KEPT = 1 << 18  # pairs whose numbers are kept; those of the others are made again when they are asked for
PAIRS_KEPT = 4096  # below which the table of pairs is not searched for those that are idle again


class Flight(NamedTuple):
    """A message on its way. due_s: when to ask what the receiver makes of it. last_s: of its last byte, if it may."""

    receiver: ProcessId
    size_bytes: int
    bulk: bool
    due_s: float
    last_s: float


class Network(Protocol):
    """Says when messages arrive. It is asked twice: when a message is sent, and when it gets to the receiver's link."""

    def send(self, sender: ProcessId, receiver: ProcessId, size_bytes: int, bulk: bool, now_s: float) -> Flight:
        """A message to another machine sets out."""
        ...

    def had_s(self, flight: Flight, now_s: float) -> float:
        """When the receiver has the whole message. now_s: the moment at which it is due."""
        ...


@dataclass(slots=True)
class Jittery:
    """A network for the hunt for faults: any delay between two bounds, no limit of bandwidth, two lanes a pair."""

    random: Random
    latency_s: tuple[float, float]
    _lanes: dict[tuple[ProcessId, ProcessId, bool], float] = field(default_factory=dict)

    def send(self, sender: ProcessId, receiver: ProcessId, size_bytes: int, bulk: bool, now_s: float) -> Flight:
        """After a random delay, but not before what was sent earlier on this lane."""
        delay_s = self.random.uniform(*self.latency_s)
        # Two lanes, as in the runtime: what was sent first on a lane arrives first, but tensors do not hold up words.
        lane = (sender, receiver, bulk)
        arrival_s = max(now_s + delay_s, self._lanes.get(lane, 0.0))
        self._lanes[lane] = arrival_s
        return Flight(receiver, size_bytes, bulk, arrival_s, arrival_s)

    def had_s(self, flight: Flight, now_s: float) -> float:
        """At once."""
        return now_s


class Links(Protocol):
    """The ways between places. A place is a machine or a region."""

    def between(self, sender: int, receiver: int) -> tuple[float, float]:
        """Latency in seconds and bandwidth in bytes a second of the way from one place to another."""
        ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """Latencies and bandwidths (bytes/s) by [from][to], not necessarily symmetric."""

    latency_s: tuple[tuple[float, ...], ...]
    bytes_per_s: tuple[tuple[float, ...], ...]

    def between(self, sender: int, receiver: int) -> tuple[float, float]:
        """What the tables say."""
        return self.latency_s[sender][receiver], self.bytes_per_s[sender][receiver]


@dataclass(frozen=True, slots=True)
class Spread:
    """Latency and bandwidth (bytes/s) of each ordered pair drawn from distributions, the same at each question."""

    latency_s: Drawn
    bytes_per_s: Drawn
    seed: int
    symmetric: bool = False
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)

    def between(self, sender: int, receiver: int) -> tuple[float, float]:
        """What the pair's own two random numbers give."""
        pair = sender << 32 | receiver
        if (known := self._known.get(pair)) is not None:
            return known
        if self.symmetric and sender > receiver:
            sender, receiver = receiver, sender
        latency_s = self.latency_s.at(share_of(self.seed, sender, receiver))
        found = latency_s, self.bytes_per_s.at(share_of(self.seed + 1, sender, receiver))
        if len(self._known) >= DRAWN_KEPT:
            self._known.clear()
        self._known[pair] = found
        return found


@dataclass(slots=True)
class Port:
    """A machine's connection. place: for Links. up, down: bytes a second.

    The others say until when each direction is taken, [control, bulk].
    """

    place: int
    up: float = INFINITE
    down: float = INFINITE
    up_free_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    down_free_s: list[float] = field(default_factory=lambda: [0.0, 0.0])


@dataclass(slots=True)
class Shared:
    """A network whose messages take latency + bytes / bandwidth, on uplinks and downlinks that are shared.

    Each uplink and each downlink serves what is in flight one message after the other, in the order of sending and of
    arriving, at its full rate; so does the way between two machines, at its own rate. A message may be on all three
    at a time, as its bytes flow through: alone it takes latency + bytes over the narrowest of them. Whatever is in
    flight together is through a link at the moment at which it would be if the link were shared evenly among all of
    it, since neither ever idles; only the order within the burst differs, and it is the order that the runtime's
    streams keep. Even (max-min) sharing would have to recompute every flow at each start and end of another one,
    which 10,000 peers cannot afford; this is a few additions a message.

    Two lanes, as in the runtime: the few bytes of control messages go before tensors, and take their share of the
    link from them; within a lane between two machines the order is kept.
    """

    links: Links
    ports: dict[str, Port] = field(default_factory=dict)
    _pairs: dict[tuple[str, str, bool], float] = field(default_factory=dict)
    _keep: int = PAIRS_KEPT

    def send(self, sender: ProcessId, receiver: ProcessId, size_bytes: int, bulk: bool, now_s: float) -> Flight:
        """Queue on the uplink, then on the way between the two."""
        here, there = self.ports[sender.name], self.ports[receiver.name]
        latency_s, rate = self.links.between(here.place, there.place)
        free, needs_s = here.up_free_s, size_bytes / here.up
        start_s = free[bulk] if free[bulk] > now_s else now_s
        end_s = free[bulk] = start_s + needs_s
        if not bulk and free[1] > now_s:
            free[1] += needs_s
        narrowest = rate if rate < there.down else there.down
        if narrowest < here.up:  # else whatever the uplink has let through is through there at the same time
            pair = (sender.name, receiver.name, bulk)
            if (busy_s := self._pairs.get(pair, 0.0)) > start_s:
                start_s = busy_s
            end_s = self._pairs[pair] = max(end_s, start_s + size_bytes / narrowest)
            if len(self._pairs) > self._keep:
                self._tidy(now_s)
        last_s = end_s + latency_s
        # A tensor queues for the downlink with its first byte. So few bytes are in a word that it can with its last.
        return Flight(receiver, size_bytes, bulk, start_s + latency_s if bulk else last_s, last_s)

    def had_s(self, flight: Flight, now_s: float) -> float:
        """Queue on the downlink."""
        receiver, size_bytes, bulk, _, last_s = flight
        there = self.ports[receiver.name]
        free, needs_s = there.down_free_s, size_bytes / there.down
        if bulk:
            free[1] = max(free[1], now_s) + needs_s
            return max(last_s, free[1])
        free[0] = max(free[0] + needs_s, now_s)
        if free[1] > now_s:
            free[1] += needs_s
        return free[0]

    def _tidy(self, now_s: float) -> None:
        """Forget pairs that are idle: they hold nothing up."""
        self._pairs = {pair: free_s for pair, free_s in self._pairs.items() if free_s > now_s}
        self._keep = max(PAIRS_KEPT, 2 * len(self._pairs))
