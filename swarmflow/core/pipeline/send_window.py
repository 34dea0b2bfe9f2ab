"""How many boundary tensors a sender has on their way at a time, so that it chooses receivers late."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.protocol.types import Microbatch
from swarmflow.core.routing.link_estimates import LinkEstimates

WINDOW_S = 2.0  # of the fastest link: enough for the round trip of an acknowledgement between any two places
TENSORS_MIN = 3  # however long each takes: one is sent, others follow, and paths that share no link are used at once


@dataclass(slots=True)
class SendWindow:
    """The tensors that were sent and are not acknowledged yet, and those for which peers are asked for slots.

    Where links are slow, a peer computes its microbatches long before it can send their activations. If each got its
    receiver as soon as it is computed, all of a step would be given away before the first has arrived, by what is known
    of the receivers then, and would queue for one uplink. So only as many are sent as keep the uplink busy; each of the
    others waits here, and its receiver is chosen when its turn comes, by what the receivers have to do then.
    """

    flights: FlightTable
    links: LinkEstimates
    bounded: bool  # False: token ids, which are too small to queue
    _sent: dict[Microbatch, None] = field(default_factory=dict, init=False)
    _waited: bool = field(default=False, init=False)  # a microbatch had to wait since the last look

    def clear(self) -> None:
        """Forget what was sent."""
        self._sent.clear()
        self._waited = False

    def add(self, microbatch: Microbatch) -> None:
        """Note that a tensor is sent, or that a slot is asked for."""
        if self.bounded:
            self._sent[microbatch] = None

    @property
    def in_transit(self) -> int:
        """Tensors that are sent, or about to be, and not acknowledged."""
        for microbatch in [microbatch for microbatch in self._sent if not self._is_in_transit(microbatch)]:
            del self._sent[microbatch]
        return len(self._sent)

    @property
    def full(self) -> bool:
        """Whether the next tensor has to wait until one is acknowledged."""
        tensor_s = self.links.fastest_s or 0.0
        if len(self._sent) < TENSORS_MIN or len(self._sent) * tensor_s <= WINDOW_S:
            return False
        count = self.in_transit
        is_full = count >= TENSORS_MIN and count * tensor_s > WINDOW_S
        self._waited |= is_full
        return is_full

    def _is_in_transit(self, microbatch: Microbatch) -> bool:
        entry = self.flights.entries.get(microbatch)
        return entry is not None and entry.awaited and (entry.reserving or entry.arrived_s is None)

    @property
    def has_waiting(self) -> bool:
        """Whether a microbatch had to wait since the last look: an acknowledgement may let it go."""
        return self._waited

    def reopened(self) -> bool:
        """Return whether what had to wait may be sent."""
        if not self._waited or self.full:
            return False
        self._waited = False
        return True
