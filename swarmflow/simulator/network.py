"""Pretended networks: when a message that is sent now arrives, beside all others in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.background import EVEN_SHARE, Background, LinkIdleness, Undelayed
from swarmflow.simulator.distributions import Distribution, share_of

INFINITE = float("inf")
DRAWN_KEPT = 1 << 18  # pairs whose random numbers are cached; those of the others are computed again on demand
PAIRS_KEPT = 4096  # up to so many pairs the table is not searched for idle ones


class Flight(NamedTuple):
    """A message in flight."""

    path: NetworkPath
    size_bytes: int
    bulk: bool  # a tensor, not a control message
    due_s: float  # when to ask for received_s
    last_s: float  # when its last byte gets to the receiver's link, at the earliest
    # Of a message that gives way, as long as it is in the sender's uplink: `Port.preceding_s` as counted for it so far.
    uplink_s: float | None = None

    def delayed(self, now_s: float) -> Flight:
        """Return the flight as it is when it is due, later where other messages have gone before it meanwhile."""
        return self if self.uplink_s is None else self.path.delayed(self, now_s)

    def received_s(self, now_s: float) -> float:
        """Return when the receiver has the whole message. now_s: the moment at which it is due."""
        return self.path.received_s(self, now_s)


class NetworkPath(Protocol):
    """The path from one machine to another; called when a message is sent, and when it gets to the receiver's link."""

    def send(self, size_bytes: int, bulk: bool, now_s: float, yields: bool = False) -> Flight:
        """Send a message. yields: after all tensors that do not, those that are sent later too."""
        ...

    def delayed(self, flight: Flight, now_s: float) -> Flight:
        """Return a flight that is due in the sender's uplink, as it goes on."""
        ...

    def received_s(self, flight: Flight, now_s: float) -> float:
        """Return when the receiver has the whole message. now_s: the moment at which it is due."""
        ...

    def background(self, size_bytes: int, now_s: float, share: float | None = None) -> Background:
        """Send a message that gives way to all others. share: of the uplink, for a load."""
        ...


class Network(Protocol):
    """Makes the paths between processes."""

    def path(self, sender: ProcessId, receiver: ProcessId) -> NetworkPath:
        """Return the path between two processes; a sender may keep it."""
        ...


@dataclass(slots=True)
class Jittery:
    """A network for the hunt for faults: random delays, unlimited bandwidth, two lanes a pair."""

    random: Random
    latency_s: tuple[float, float]  # (least, most)
    # By name, in seconds: what is added to each delay from and to it, and the gap between two of its tensors.
    slowed: dict[str, tuple[float, float]] = field(init=False, default_factory=dict)
    # (sender, receiver, whether tensors): when the last message of the lane arrives
    _lanes: dict[tuple[ProcessId, ProcessId, bool], float] = field(init=False, default_factory=dict)

    def path(self, sender: ProcessId, receiver: ProcessId) -> NetworkPath:
        """Return a path; all paths between two processes share their lanes."""
        return _Lanes(self, sender, receiver)

    def arrival_s(self, sender: ProcessId, receiver: ProcessId, bulk: bool, now_s: float) -> float:
        """Return the arrival after a random delay, but not before what was sent earlier on this lane."""
        delay_s = self.random.uniform(*self.latency_s)
        # Two lanes, as in the runtime: each keeps its order, and tensors do not hold up control messages.
        lane = (sender, receiver, bulk)
        if self.slowed:
            delay_s += self._slow(lane, now_s)
        arrival_s = self._lanes[lane] = max(now_s + delay_s, self._lanes.get(lane, 0.0))
        return arrival_s

    def late(self, sender: ProcessId, receiver: ProcessId, now_s: float) -> bool:
        """Return whether a message in flight between the two takes longer than any does unless it is slowed."""
        arrivals_s = [self._lanes.get((sender, receiver, bulk), 0.0) for bulk in (False, True)]
        return max(arrivals_s) > now_s + self.latency_s[1]

    def _slow(self, lane: tuple[ProcessId, ProcessId, bool], now_s: float) -> float:
        ends = [self.slowed.get(process.name, (0.0, 0.0)) for process in lane[:2]]
        late_s, apart_s = max(end[0] for end in ends), max(end[1] for end in ends)
        queue_s = max(0.0, self._lanes.get(lane, 0.0) - now_s) + apart_s if lane[2] else 0.0
        return max(late_s, queue_s)


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A path of a Jittery network."""

    network: Jittery
    sender: ProcessId
    receiver: ProcessId

    def send(self, size_bytes: int, bulk: bool, now_s: float, yields: bool = False) -> Flight:
        """Send on the lane for tensors, or on the one for control messages."""
        arrival_s = self.network.arrival_s(self.sender, self.receiver, bulk, now_s)
        return Flight(self, size_bytes, bulk, arrival_s, arrival_s)

    def delayed(self, flight: Flight, now_s: float) -> Flight:
        """Return the flight as it is: no message delays another one."""
        return flight

    def received_s(self, flight: Flight, now_s: float) -> float:
        """Return now: its bytes take no time."""
        return now_s

    def background(self, size_bytes: int, now_s: float, share: float | None = None) -> Background:
        """Send as on the lane for tensors, since nothing takes time from anything."""
        return Undelayed(self.send(size_bytes, True, now_s).due_s)


class NetworkLinks(Protocol):
    """The links between places. A place is a machine or a region."""

    def between(self, sender: int, receiver: int) -> tuple[float, float]:
        """Return latency in seconds and bandwidth in bytes/s from one place to another."""
        ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """Latencies and bandwidths (bytes/s) by `[from][to]`, not necessarily symmetric."""

    latency_s: tuple[tuple[float, ...], ...]
    bytes_per_s: tuple[tuple[float, ...], ...]

    def between(self, sender: int, receiver: int) -> tuple[float, float]:
        """Return the entries of the tables."""
        return self.latency_s[sender][receiver], self.bytes_per_s[sender][receiver]


@dataclass(frozen=True, slots=True)
class Spread:
    """Latency and bandwidth (bytes/s) of each ordered pair from distributions, the same at each call."""

    latency_s: Distribution
    bytes_per_s: Distribution
    seed: int
    symmetric: bool = False
    _known: dict[int, tuple[float, float]] = field(default_factory=dict)

    def between(self, sender: int, receiver: int) -> tuple[float, float]:
        """Return the values of the pair's own two random numbers."""
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
    """A machine's uplink and downlink."""

    place: int  # of NetworkLinks
    up: float = INFINITE  # bytes/s
    down: float = INFINITE  # bytes/s
    up_control_s: float = field(init=False, default=0.0)  # until when the uplink is busy with control messages
    up_tensors_s: float = field(init=False, default=0.0)  # until when it is busy with tensors that do not give way
    up_all_s: float = field(init=False, default=0.0)  # until when it is busy with whatever has been sent
    preceding_s: float = field(init=False, default=0.0)  # its time that went before messages that give way, in total
    down_control_s: float = field(init=False, default=0.0)  # the same of the downlink
    down_tensors_s: float = field(init=False, default=0.0)
    down_last_s: float = field(init=False, default=0.0)  # when the last byte of the arriving tensors does
    up_idle: LinkIdleness = field(init=False, default_factory=LinkIdleness)
    down_idle: LinkIdleness = field(init=False, default_factory=LinkIdleness)


@dataclass(slots=True)
class Shared:
    """A network whose messages take latency + bytes / bandwidth, on shared uplinks and downlinks.

    Each uplink and each downlink serves what is in flight one message after the other, in the order of sending and of
    arriving, at its full rate; so does the link between two machines, at its own rate. A message may be on all three
    at a time, as its bytes flow through: alone it takes latency + bytes over the narrowest of them. The messages in
    flight together are through a link at the moment at which they would be if the link were shared evenly among them,
    since neither ever idles; only the order within the burst differs, and it is the order that the runtime's streams
    keep. Even (max-min) sharing would have to recompute every flow at each start and end of another one,
    which 10,000 peers cannot afford; this is a few additions a message.

    Two lanes, as in the runtime: the few bytes of control messages go before tensors, and take their share of the
    link from them; within a lane between two machines the order is kept.
    """

    links: NetworkLinks
    ports: dict[str, Port] = field(default_factory=dict)  # by the name of the process
    # Seconds of tensors that a link has accepted before a control message, and sends first: the buffers of modems and
    # kernels have no lanes.
    queue_s: float = 0.0
    jitter_s: Distribution | None = None  # of each message: what is added to its latency, its lane's order kept
    random: Random = field(default_factory=lambda: Random(0))  # the jitter's
    # (sender, receiver, whether tensors): when the last byte of the lane's last message arrives, with a jitter
    _arrived_s: dict[tuple[str, str, bool], float] = field(init=False, default_factory=dict)
    # (sender, receiver, whether tensors): until when the lane between the two is busy
    _pairs: dict[tuple[str, str, bool], float] = field(init=False, default_factory=dict)
    _keep: int = field(init=False, default=PAIRS_KEPT)  # pairs beyond which idle ones are removed

    def path(self, sender: ProcessId, receiver: ProcessId) -> NetworkPath:
        """Return the path from port to port."""
        here, there = self.ports[sender.name], self.ports[receiver.name]
        latency_s, rate = self.links.between(here.place, there.place)
        narrowest = min(rate, there.down)
        return _Through(self, here, there, latency_s, narrowest, (sender.name, receiver.name))

    def between(
        self, pair: tuple[str, str], bulk: bool, start_s: float, sent_s: float, takes_s: float, now_s: float
    ) -> tuple[float, float]:
        """Return when a message begins and ends its transfer between two machines, after those before it on its lane.

        start_s, sent_s: when the uplink begins and ends with it.
        """
        lane = (*pair, bulk)
        if (busy_s := self._pairs.get(lane, 0.0)) > start_s:
            start_s = busy_s
        end_s = self._pairs[lane] = max(sent_s, start_s + takes_s)
        if len(self._pairs) > self._keep:
            self._tidy(now_s)
        return start_s, end_s

    def jittered(self, pair: tuple[str, str], bulk: bool, due_s: float, last_s: float) -> tuple[float, float]:
        """Return when the first and the last byte of a message arrive, later by a random delay.

        As a stream delivers in order, no byte arrives before the last one of the message before it on its lane.
        """
        assert self.jitter_s is not None
        delay_s, lane = self.jitter_s.at(self.random.random()), (*pair, bulk)
        before_s = self._arrived_s.get(lane, 0.0)
        last_s = self._arrived_s[lane] = max(last_s + delay_s, before_s)
        return max(due_s + delay_s, before_s), last_s

    def _tidy(self, now_s: float) -> None:
        """Remove pairs that are idle: they hold nothing up."""
        self._pairs = {pair: free_s for pair, free_s in self._pairs.items() if free_s > now_s}
        self._keep = max(PAIRS_KEPT, 2 * len(self._pairs))


@dataclass(slots=True)
class _Through:
    """A path of a Shared network."""

    network: Shared
    here: Port
    there: Port
    latency_s: float
    narrowest: float  # bytes/s of the narrowest link after the uplink
    pair: tuple[str, str]  # names

    def send(self, size_bytes: int, bulk: bool, now_s: float, yields: bool = False) -> Flight:
        """Queue on the uplink, then on the link between the two."""
        here = self.here
        needs_s = size_bytes / here.up
        room_s = here.up_idle.made_room_s(needs_s, now_s, here.up_tensors_s) if bulk else 0.0
        here.up_idle.queued_s += needs_s
        needs_s += room_s
        here.up_all_s = max(here.up_all_s, now_s) + needs_s
        if bulk and yields and needs_s:
            return Flight(self, size_bytes, bulk, here.up_all_s, here.up_all_s, here.preceding_s)
        here.preceding_s += needs_s
        start_s = here.up_tensors_s if bulk else here.up_control_s
        if start_s < now_s:
            start_s = now_s
        if not bulk and self.network.queue_s:
            start_s = max(start_s, min(here.up_tensors_s, now_s + self.network.queue_s))
        end_s = start_s + needs_s
        if bulk:
            here.up_tensors_s = end_s
        else:
            here.up_control_s = end_s
            if here.up_tensors_s > now_s:
                here.up_tensors_s += needs_s
        return self._cross(size_bytes, bulk, start_s, end_s, now_s)

    def delayed(self, flight: Flight, now_s: float) -> Flight:
        """Wait for what was sent meanwhile and goes before it, then cross the link between the two."""
        here = self.here
        assert flight.uplink_s is not None, "it has left the uplink"
        if (longer_s := here.preceding_s - flight.uplink_s) > 0.0:
            due_s = now_s + longer_s
            return flight._replace(due_s=due_s, last_s=due_s, uplink_s=here.preceding_s)
        return self._cross(flight.size_bytes, flight.bulk, now_s - flight.size_bytes / here.up, now_s, now_s)

    def _cross(self, size_bytes: int, bulk: bool, start_s: float, end_s: float, now_s: float) -> Flight:
        """Queue on the link between the two. start_s, end_s: when the uplink begins and ends with the message."""
        if self.narrowest < self.here.up:  # else whatever the uplink lets through is through there at the same time
            takes_s = size_bytes / self.narrowest
            start_s, end_s = self.network.between(self.pair, bulk, start_s, end_s, takes_s, now_s)
        last_s = end_s + self.latency_s
        # A tensor queues for the downlink with its first byte; a control message, of few bytes, with its last.
        due_s = start_s + self.latency_s if bulk else last_s
        if self.network.jitter_s is not None:
            due_s, last_s = self.network.jittered(self.pair, bulk, due_s, last_s)
        return Flight(self, size_bytes, bulk, due_s, last_s)

    def received_s(self, flight: Flight, now_s: float) -> float:
        """Queue on the downlink, and return when the message is through."""
        there = self.there
        needs_s = flight.size_bytes / there.down
        if flight.bulk:
            room_s = there.down_idle.made_room_s(needs_s, now_s, there.down_tensors_s)
            there.down_idle.queued_s += needs_s
            there.down_tensors_s = max(there.down_tensors_s, now_s) + needs_s + room_s
            there.down_last_s = max(there.down_last_s, flight.last_s)
            return max(flight.last_s, there.down_tensors_s)
        there.down_idle.queued_s += needs_s
        received_s = max(there.down_control_s + needs_s, now_s)
        if self.network.queue_s:
            waiting_s = there.down_tensors_s - max(now_s, there.down_last_s)  # of several that have arrived together
            if waiting_s > 0.0:
                received_s = max(received_s, now_s + min(waiting_s, self.network.queue_s) + needs_s)
        there.down_control_s = received_s
        if there.down_tensors_s > now_s:
            there.down_tensors_s += needs_s
        return there.down_control_s

    def background(self, size_bytes: int, now_s: float, share: float | None = None) -> Background:
        """Send what takes the idle time of the uplink and of the downlink, and a share of them where others are busy.

        On the uplink the share is the sender's to decide. At the other end nobody does: networks share a downlink
        evenly among all that arrives.
        """
        here, there = self.here, self.there
        least_s = now_s + self.latency_s + size_bytes / min(here.up, self.narrowest)
        up_s = here.up_idle.promise(size_bytes / here.up, now_s, here.up_tensors_s, share)
        down_s = there.down_idle.promise(size_bytes / there.down, now_s, there.down_tensors_s, EVEN_SHARE)
        return _Behind(self, least_s, up_s, down_s)


@dataclass(frozen=True, slots=True)
class _Behind:
    """A background message on a path of a Shared network."""

    path: _Through
    least_s: float  # when it would arrive beside no other message
    up_s: float  # after so many idle seconds of the uplink it is through there
    down_s: float  # the same of the downlink

    def next_s(self, now_s: float) -> float | None:
        """Return when both links have been idle for long enough, unless other messages are sent meanwhile."""
        here, there = self.path.here, self.path.there
        up_s = here.up_idle.through_s(self.up_s, now_s, here.up_tensors_s)
        due_s = max(self.least_s, up_s, there.down_idle.through_s(self.down_s, now_s, there.down_tensors_s))
        return due_s if due_s > now_s else None
