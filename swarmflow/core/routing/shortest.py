"""Routes by shortest expected delay: to the peer from which the gradient is expected first, downstream included."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from swarmflow.core.protocol.messages.checks import SECONDS_MAX
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.compute_timer import UNKNOWN_S
from swarmflow.core.routing.link_estimates import LinkEstimates
from swarmflow.core.routing.router import Choice
from swarmflow.core.routing.smoothing import smoothed

PRIOR_S = 1e-3  # assumed before the first measurement (epsilon in SWARM, Algorithm 1)
RETRY_FACTOR = 30.0  # an unused peer is tried again after this multiple of its path's time; costs about 3%
NEAR = 1.0  # times what one microbatch takes there, both passes: by less than this no peer is better than another
STALE_FACTOR = 4  # times the peers: a queue with more entries than that is made anew
DRAWS = 8  # of which those that have told of the least work are asked
CHANGED = 0.1  # of what is usual, before those of which it is assumed are estimated anew: a sender assumes it of dozens


@dataclass(slots=True)
class _PeerEstimate:
    """A sender's estimate for one peer."""

    tensor_s: float  # transfer time of a boundary tensor to it
    service_s: float  # time from a microbatch's arrival until it passes it on
    downstream_s: float  # time of the best path beyond it, forth and back
    announced_s: float = 0.0  # the same as it announced it; 0: there is none, or it does not know
    measured: bool = False  # tensor_s was measured or probed
    pending: int = 0  # this sender's microbatches that it has not passed on
    retry_s: float | None = None  # the delay assumed for a trial with one microbatch; None: no trial is due

    @property
    def delay_s(self) -> float:
        """Expected time until the next microbatch's gradient returns, after those that it has not passed on yet."""
        return self.assumed_s + self.pending * max(self.tensor_s, self.service_s)

    @property
    def assumed_s(self) -> float:
        """The path's time, or what is assumed in its place for a trial."""
        return self.path_s if self.retry_s is None else self.retry_s

    @property
    def path_s(self) -> float:
        """Expected time until a gradient returns from an idle peer: to it, through it, downstream, and back."""
        return 2 * self.tensor_s + self.service_s + self.downstream_s


@dataclass(slots=True)
class _PeerQueue:
    """A priority queue of peers by a value that changes; stale entries of the heap are skipped."""

    current: dict[ProcessId, float] = field(default_factory=dict)
    heap: list[tuple[float, ProcessId]] = field(default_factory=list)  # (value, process)

    def put(self, process: ProcessId, value: float) -> None:
        """Set the value of a peer."""
        current = self.current
        if current.get(process) != value:
            current[process] = value
            heapq.heappush(self.heap, (value, process))
            if len(self.heap) > STALE_FACTOR * len(current):  # those above the least value are never met
                self.heap = [(value, process) for process, value in current.items()]
                heapq.heapify(self.heap)

    def drop(self, process: ProcessId) -> None:
        """Remove a peer."""
        self.current.pop(process, None)

    def first(self, exclude: Collection[ProcessId] = ()) -> ProcessId | None:
        """Return the peer with the least value that is not excluded."""
        excluded: dict[ProcessId, float] = {}  # once each: a value that changed to and fro has left several entries
        found: ProcessId | None = None
        heap, current = self.heap, self.current
        while heap and found is None:
            value, process = heap[0]
            if current.get(process) != value:
                heapq.heappop(heap)
            elif process in exclude:
                excluded[process] = value
                heapq.heappop(heap)
            else:
                found = process
        for process, value in excluded.items():
            heapq.heappush(heap, (value, process))
        return found


class Shortest:
    """Chooses the peer of one stage with the shortest expected delay for a microbatch that is sent now.

    Every peer announces the time of the best path beyond it to the stage before, as in distance-vector routing, so that
    a fast link to a peer with slow links downstream is not mistaken for a fast path. A peer that holds more of this
    sender's microbatches is expected to take that much longer (shortest expected delay: Banawan and Zahorjan, 1989),
    which balances the load. A peer without measurements counts as the mean of the others. Among equal peers each sender
    prefers different ones: if all preferred the same, the work of a large stage would go to a few (of 320 peers, by
    quarters: 17.6, 17.2, 4.9 and 0 microbatches each).

    A peer that was slow once, because it was busy with something else, would never be chosen again, and so never be
    measured again. So a peer that was not used for RETRY_FACTOR times its path's time is tried with one microbatch of
    the next step, whose measurements replace the old estimates.

    A sender measures only a few peers of a large stage. The unmeasured ones that joined together share one estimate,
    since they differ only in their order; each gets its own with its first measurement.
    """

    probes = waits = True

    def __init__(self, sender: str = "") -> None:
        self.links = LinkEstimates()
        self._draw = Random(sender)  # each sender draws others
        self._peers: dict[ProcessId, _PeerEstimate] = {}  # with an own estimate
        self._delays, self._paths = _PeerQueue(), _PeerQueue()  # the same by delay_s, and by path_s
        self._typical = _PeerEstimate(PRIOR_S, UNKNOWN_S, 0.0)  # what is usual, and assumed of unmeasured peers
        self._unmeasured: dict[ProcessId, None] = {}
        self._assumed: dict[ProcessId, None] = {}  # with an own estimate, of which a part was not measured
        self._assumed_s = (0.0, 0.0, 0.0)  # what was usual when these were estimated
        self._names: list[ProcessId] | None = None  # of all peers, to draw from; None: to be listed again

    def begin_epoch(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers, which hold nothing."""
        least_s, former = self.downstream_s, self._peers
        self._peers, self._unmeasured, self._names = {}, {}, None
        self._delays, self._paths = _PeerQueue(), _PeerQueue()
        for process in processes:
            peer = former.get(process)
            if peer is not None and peer.measured:
                peer.pending, peer.retry_s = 0, None
                self._try_unused(process, peer, least_s)
                self._add(process, peer)
            elif self._is_measured(process):  # it was removed, and is a member again
                self._add(process, self._measured_estimate(process))
            else:
                self._unmeasured[process] = None
        self._assumed = {process: None for process in self._assumed if process in self._peers}

    def go_on(self) -> None:
        """Begin an epoch with the same peers and what they hold: those that were not used for long are tried again."""
        least_s = self.downstream_s
        for process, peer in self._peers.items():
            if peer.measured and not peer.pending:
                self._try_unused(process, peer, least_s)
                self._requeue(process, peer)

    def add_peer(self, process: ProcessId) -> None:
        """Add a peer to the stage."""
        self._unmeasured.pop(process, None)
        self._names = None
        if self._is_measured(process):
            self._add(process, self._measured_estimate(process))
        else:
            self._unmeasured[process] = None

    def remove_peer(self, process: ProcessId) -> None:
        """Remove a peer from the stage."""
        self._peers.pop(process, None)
        self._assumed.pop(process, None)
        self._unmeasured.pop(process, None)
        self._names = None
        self._delays.drop(process)
        self._paths.drop(process)

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the peer with the shortest expected delay, None if all are excluded. source: makes no difference."""
        best = self._best(exclude)
        if best is None:
            return None
        least = self._estimate(best)
        each_s = self.links.peer_work(best).each_s  # 0 until it has told
        near_s = least.delay_s + NEAR * max(least.tensor_s, least.service_s, each_s)
        process, *others = self._drawn(near_s, exclude) or [best]
        peer = self._estimate(process)
        reason = f"expected back in {peer.delay_s:.3f} s: {peer.pending} pending, {peer.tensor_s:.3f} s to it"
        return Choice(process, f"{reason}, {peer.downstream_s:.3f} s beyond it", tuple(others))

    def _best(self, exclude: Collection[ProcessId]) -> ProcessId | None:
        """Return the peer with the shortest expected delay."""
        process = self._delays.first(exclude)
        delay_s = math.inf if process is None else self._peers[process].delay_s
        if self._unmeasured and self._typical.delay_s <= delay_s:
            unmeasured = next((peer for peer in self._unmeasured if peer not in exclude), None)
            process = process if unmeasured is None else unmeasured
        return process

    def _drawn(self, near_s: float, exclude: Collection[ProcessId]) -> list[ProcessId]:
        """Return those of the peers drawn that are expected to be nearly as fast as the best one.

        The one that has the least to compute, as far as all have told, is the first: where nobody is asked, it gets the
        microbatch (the better of some at random: Mitzenmacher, 2001).
        """
        if self._names is None:
            self._names = [*self._peers, *self._unmeasured]
        drawn = self._draw.sample(self._names, min(DRAWS, len(self._names)))
        near = [each for each in drawn if each not in exclude and self._estimate(each).delay_s <= near_s]
        return sorted(near, key=lambda process: self._estimate(process).assumed_s + self.links.work_s(process))

    def _estimate(self, process: ProcessId) -> _PeerEstimate:
        return self._peers.get(process, self._typical)

    def add_held(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Do nothing: only microbatches that the peer has not passed on yet count."""

    def set_pending(self, process: ProcessId, count: int) -> None:
        """Set the number of this sender's microbatches that the peer has not passed on yet."""
        peer = self._own_estimate(process)
        if peer is not None:
            peer.pending = count
            if count:
                peer.retry_s = None  # the trial has begun
            self._delays.put(process, peer.delay_s)

    def refresh(self, process: ProcessId) -> None:
        """Use the new estimates for a peer."""
        peer = self._own_estimate(process)
        if peer is None:
            return
        self._take_measurements(process, peer)
        self._learn(process, peer)
        self._requeue(process, peer)

    def delay_s(self, process: ProcessId) -> float | None:
        """Return the expected delay through this peer; None if it does not serve the stage, or is unmeasured."""
        peer = self._peers.get(process)
        return None if peer is None else peer.delay_s

    @property
    def usual_s(self) -> float:
        """The delay that is expected through an unmeasured peer."""
        return self._typical.delay_s

    def record_downstream(self, process: ProcessId, downstream_s: float) -> None:
        """Record the time of the best path beyond the peer, forth and back."""
        peer = self._own_estimate(process)
        if peer is None or peer.announced_s == downstream_s:
            return
        peer.announced_s, first = downstream_s, self._typical.downstream_s == 0.0
        self._learn(process, peer)
        for each in self._peers if first else (process,):  # whoever does not know is as good as usual
            self._take_measurements(each, self._peers[each])
            self._requeue(each, self._peers[each])

    @property
    def downstream_s(self) -> float:
        """The expected seconds of the best path from here, forth and back, as announced upstream; 0: not known.

        As long as no peer has told what its passes take, it is that of the links alone, as far as they are measured.
        However slow the peers say that they are, it is a number that the stage before accepts.
        """
        usual, process = self._typical, self._paths.first()
        unknown_s = UNKNOWN_S if usual.service_s == UNKNOWN_S else 0.0
        if unknown_s and usual.tensor_s == PRIOR_S:
            return 0.0
        paths = [usual.path_s] if self._unmeasured else []
        paths += [self._peers[process].path_s] if process is not None else []
        return min(SECONDS_MAX, max(0.0, min(paths, default=unknown_s) - unknown_s))

    def _is_measured(self, process: ProcessId) -> bool:
        return self.links.transfer_s(process) is not None or self.links.service_s(process) is not None

    def _measured_estimate(self, process: ProcessId) -> _PeerEstimate:
        """Return an own estimate for a peer: what was measured of it before, and what is usual for the rest."""
        peer = replace(self._typical)
        self._take_measurements(process, peer)
        return peer

    def _learn(self, process: ProcessId, peer: _PeerEstimate) -> None:
        """Take what was measured of one peer as usual, and so for those of which nothing was measured yet."""
        usual, known = self._typical, self.links
        if known.transfer_s(process) is not None:
            usual.tensor_s = smoothed(None if usual.tensor_s == PRIOR_S else usual.tensor_s, peer.tensor_s)
        if known.service_s(process) is not None:
            usual.service_s = smoothed(None if usual.service_s == UNKNOWN_S else usual.service_s, peer.service_s)
        if peer.announced_s:
            usual.downstream_s = smoothed(usual.downstream_s or None, peer.announced_s)
        usual_s = usual.tensor_s, usual.service_s, usual.downstream_s
        if all(abs(now - then) <= CHANGED * then for now, then in zip(usual_s, self._assumed_s, strict=True)):
            return
        self._assumed_s = usual_s
        for assumed in list(self._assumed):
            self._take_measurements(assumed, other := self._peers[assumed])
            self._requeue(assumed, other)

    def _take_measurements(self, process: ProcessId, peer: _PeerEstimate) -> None:
        tensor_s, service_s = self.links.transfer_s(process), self.links.service_s(process)
        peer.tensor_s = self._typical.tensor_s if tensor_s is None else max(PRIOR_S, tensor_s)
        peer.service_s = self._typical.service_s if service_s is None else max(PRIOR_S, service_s)
        peer.downstream_s = peer.announced_s or self._typical.downstream_s
        peer.measured |= tensor_s is not None
        if tensor_s is None or service_s is None or peer.downstream_s != peer.announced_s:
            self._assumed[process] = None
        else:
            self._assumed.pop(process, None)

    def _try_unused(self, process: ProcessId, peer: _PeerEstimate, least_s: float) -> None:
        """Assume the least delay of a peer that was used, but not for so long that it is worth a trial."""
        used_s = self.links.used_s(process)
        if used_s is not None and self.links.now_s - used_s > RETRY_FACTOR * peer.path_s:
            peer.retry_s = least_s
            self.links.renew(process)

    def _own_estimate(self, process: ProcessId) -> _PeerEstimate | None:
        """Return a peer's own estimate, made from the shared one if need be; None: it does not serve the stage."""
        peer = self._peers.get(process)
        if peer is None and process in self._unmeasured:
            del self._unmeasured[process]
            peer = replace(self._typical, measured=False)
            self._assumed[process] = None
            self._add(process, peer)
        return peer

    def _add(self, process: ProcessId, peer: _PeerEstimate) -> None:
        self._peers[process] = peer
        self._requeue(process, peer)

    def _requeue(self, process: ProcessId, peer: _PeerEstimate) -> None:
        """Update the queues after a change of an estimate."""
        self._delays.put(process, peer.delay_s)
        self._paths.put(process, peer.path_s)
