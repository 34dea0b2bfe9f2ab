"""Routes by shortest expected delay: to the peer from which the gradient is expected first, downstream included."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import repeat
from statistics import fmean
from zlib import crc32

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_estimates import LinkEstimates
from swarmflow.core.routing.router import Choice

PRIOR_S = 1e-3  # assumed before the first measurement (epsilon in SWARM, Algorithm 1)
RETRY_FACTOR = 30.0  # an unused peer is tried again after this multiple of its path's time; costs about 3%


@dataclass(slots=True)
class _PeerEstimate:
    """A sender's estimate for one peer."""

    tensor_s: float  # transfer time of a boundary tensor to it
    service_s: float  # time from a microbatch's arrival until it passes it on
    downstream_s: float  # time of the best path beyond it, forth and back, as it announced
    tie: int  # order among equal peers, different for each sender
    measured: bool = False  # tensor_s was measured or probed
    pending: int = 0  # this sender's microbatches that it has not passed on
    retry_s: float | None = None  # the delay assumed for a trial with one microbatch; None: no trial is due

    @property
    def delay_s(self) -> float:
        """Expected time until the next microbatch's gradient returns, after those that it has not passed on yet."""
        if self.retry_s is not None and not self.pending:
            return self.retry_s
        return self.path_s + self.pending * max(self.tensor_s, self.service_s)

    @property
    def path_s(self) -> float:
        """Expected time until a gradient returns from an idle peer: to it, through it, downstream, and back."""
        return 2 * self.tensor_s + self.service_s + self.downstream_s


@dataclass(slots=True)
class _PeerQueue:
    """A priority queue of peers by a value that changes; stale entries of the heap are skipped."""

    current: dict[ProcessId, float] = field(default_factory=dict)
    heap: list[tuple[float, int, ProcessId]] = field(default_factory=list)  # (value, tie, process)

    def put(self, process: ProcessId, value: float, tie: int) -> None:
        """Set the value of a peer."""
        current = self.current
        if current.get(process) != value:
            current[process] = value
            heapq.heappush(self.heap, (value, tie, process))

    def drop(self, process: ProcessId) -> None:
        """Remove a peer."""
        self.current.pop(process, None)

    def first(self, exclude: Collection[ProcessId] = ()) -> ProcessId | None:
        """Return the peer with the least value that is not excluded."""
        excluded: list[tuple[float, int, ProcessId]] = []
        found: ProcessId | None = None
        heap, current = self.heap, self.current
        while heap and found is None:
            value, _, process = heap[0]
            if current.get(process) != value:
                heapq.heappop(heap)
            elif process in exclude:
                excluded.append(heapq.heappop(heap))
            else:
                found = process
        for entry in excluded:
            heapq.heappush(self.heap, entry)
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

    probes = True

    def __init__(self, sender: str = "") -> None:
        self.links = LinkEstimates()
        self._salt = crc32(sender.encode())  # makes the order among equal peers differ between senders
        self._peers: dict[ProcessId, _PeerEstimate] = {}  # with an own estimate
        self._delays, self._paths = _PeerQueue(), _PeerQueue()  # the same by delay_s, and by path_s
        self._shared_estimate = _PeerEstimate(PRIOR_S, PRIOR_S, 0.0, 0)  # the estimate that all unmeasured peers share
        self._unmeasured: dict[ProcessId, None] = {}
        self._order: list[ProcessId] | None = None  # the unmeasured in reverse order; None: not sorted yet

    def begin_epoch(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers, which hold nothing."""
        estimate = self._mean_estimate()
        least_s = self.downstream_s
        former, former_unmeasured = self._peers, self._unmeasured
        self._peers, self._unmeasured, self._order = {}, {}, None
        self._delays, self._paths = _PeerQueue(), _PeerQueue()
        newcomers: list[ProcessId] = []
        for process in processes:
            peer = former.get(process)
            if peer is not None:
                peer.pending, peer.retry_s = 0, None
                if self._is_unused(process, peer):
                    peer.retry_s = least_s
                    self.links.renew(process)
                self._add(process, peer)
            elif process in former_unmeasured:
                self._unmeasured[process] = None
            elif self.links.is_measured(process):  # it was removed, and is a member again
                self._add(process, self._measured_estimate(process, estimate))
            else:
                newcomers.append(process)
        if not self._unmeasured:  # none is left: the newcomers share a new estimate
            self._shared_estimate, self._unmeasured = estimate, dict.fromkeys(newcomers)
            return
        for process in newcomers:  # the shared estimate is older than they are
            self._add(process, replace(estimate, tie=self._tie(process)))

    def add_peer(self, process: ProcessId) -> None:
        """Add a peer to the stage."""
        self._unmeasured.pop(process, None)
        self._add(process, self._measured_estimate(process, self._mean_estimate()))

    def remove_peer(self, process: ProcessId) -> None:
        """Remove a peer from the stage."""
        self._peers.pop(process, None)
        self._unmeasured.pop(process, None)
        self._delays.drop(process)
        self._paths.drop(process)

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the peer with the shortest expected delay, None if all are excluded. source: makes no difference."""
        process = self._delays.first(exclude)
        peer = self._shared_estimate if process is None else self._peers[process]
        if self._unmeasured and self._shared_estimate.delay_s <= peer.delay_s:
            unmeasured = self._first_unmeasured(exclude)
            if unmeasured is not None and (process is None or self._is_preferred(unmeasured, process)):
                process, peer = unmeasured, self._shared_estimate
        if process is None:
            return None
        reason = f"expected back in {peer.delay_s:.3f} s: {peer.pending} pending, {peer.tensor_s:.3f} s to it"
        return Choice(process, f"{reason}, {peer.downstream_s:.3f} s beyond it")

    def add_held(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Do nothing: only microbatches that the peer has not passed on yet count."""

    def set_pending(self, process: ProcessId, count: int) -> None:
        """Set the number of this sender's microbatches that the peer has not passed on yet."""
        peer = self._own_estimate(process)
        if peer is not None:
            peer.pending = count
            if count:
                peer.retry_s = None  # the trial has begun
            self._delays.put(process, peer.delay_s, peer.tie)

    def refresh(self, process: ProcessId) -> None:
        """Use the new estimates for a peer."""
        peer = self._own_estimate(process)
        if peer is None:
            return
        self._take_measurements(process, peer)
        self._requeue(process, peer)

    def delay_s(self, process: ProcessId) -> float | None:
        """Return the expected delay through this peer; None if it does not serve the stage, or is unmeasured."""
        peer = self._peers.get(process)
        return None if peer is None else peer.delay_s

    def record_downstream(self, process: ProcessId, downstream_s: float) -> None:
        """Record the time of the best path beyond the peer, forth and back."""
        peer = self._own_estimate(process)
        if peer is not None and peer.downstream_s != downstream_s:
            peer.downstream_s = downstream_s
            self._requeue(process, peer)

    @property
    def downstream_s(self) -> float:
        """The expected seconds of the best path from here, forth and back, as announced upstream."""
        process = self._paths.first()
        if process is None:
            return self._shared_estimate.path_s if self._unmeasured else 0.0
        path_s = self._peers[process].path_s
        return min(path_s, self._shared_estimate.path_s) if self._unmeasured else path_s

    def _mean_estimate(self) -> _PeerEstimate:
        """Return an estimate for peers without measurements: the mean of the others."""
        known = [peer for peer in self._peers.values() if peer.measured]
        if not known:
            return _PeerEstimate(PRIOR_S, PRIOR_S, 0.0, 0)
        tensor_s, service_s = fmean(peer.tensor_s for peer in known), fmean(peer.service_s for peer in known)
        return _PeerEstimate(tensor_s, service_s, fmean(peer.downstream_s for peer in known), 0)

    def _measured_estimate(self, process: ProcessId, otherwise: _PeerEstimate) -> _PeerEstimate:
        """Return an own estimate for a peer: what was measured of it before, and `otherwise` for the rest."""
        peer = replace(otherwise, tie=self._tie(process))
        self._take_measurements(process, peer)
        return peer

    def _take_measurements(self, process: ProcessId, peer: _PeerEstimate) -> None:
        tensor_s, service_s = self.links.transfer_s(process), self.links.service_s(process)
        if tensor_s is not None:
            peer.tensor_s, peer.measured = max(PRIOR_S, tensor_s), True
        if service_s is not None:
            peer.service_s = max(PRIOR_S, service_s)

    def _is_unused(self, process: ProcessId, peer: _PeerEstimate) -> bool:
        """Return whether a peer was used, but not for so long that it is worth a trial."""
        used_s = self.links.used_s(process)
        return used_s is not None and self.links.now_s - used_s > RETRY_FACTOR * peer.path_s

    def _first_unmeasured(self, exclude: Collection[ProcessId]) -> ProcessId | None:
        """Return the first unmeasured peer in this sender's order that is not excluded."""
        if self._order is None:
            # Only by library calls: with 312 peers in the stage this is a third of a peer's work to open a step.
            names = map(str.encode, [process.name for process in self._unmeasured])
            ties = map(crc32, names, repeat(self._salt))
            self._order = [process for _, process in sorted(zip(ties, self._unmeasured, strict=True), reverse=True)]
        while self._order and self._order[-1] not in self._unmeasured:
            self._order.pop()
        return next((p for p in reversed(self._order) if p in self._unmeasured and p not in exclude), None)

    def _is_preferred(self, unmeasured: ProcessId, process: ProcessId) -> bool:
        """Return whether an unmeasured peer is preferred to one with an own estimate."""
        peer = self._peers[process]
        return (self._shared_estimate.delay_s, self._tie(unmeasured), unmeasured) < (peer.delay_s, peer.tie, process)

    def _own_estimate(self, process: ProcessId) -> _PeerEstimate | None:
        """Return a peer's own estimate, made from the shared one if need be; None: it does not serve the stage."""
        peer = self._peers.get(process)
        if peer is None and process in self._unmeasured:
            del self._unmeasured[process]
            peer = replace(self._shared_estimate, tie=self._tie(process))
            self._add(process, peer)
        return peer

    def _tie(self, process: ProcessId) -> int:
        """Return the rank of a peer among equal ones, pseudo-random for each pair of sender and peer."""
        return crc32(process.name.encode(), self._salt)

    def _add(self, process: ProcessId, peer: _PeerEstimate) -> None:
        self._peers[process] = peer
        self._requeue(process, peer)

    def _requeue(self, process: ProcessId, peer: _PeerEstimate) -> None:
        """Update the queues after a change of an estimate."""
        self._delays.put(process, peer.delay_s, peer.tie)
        self._paths.put(process, peer.path_s, peer.tie)
