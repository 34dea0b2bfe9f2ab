"""The boundary tensors that a peer keeps for repairs, within a bound of bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop import Hop, HopState
from swarmflow.core.protocol.actions import Action, Count, Release
from swarmflow.core.protocol.types import Microbatch, Ref


@dataclass(slots=True)
class Journal:
    """Boundary tensors of finished hops, up to bytes_max: the oldest are evicted first.

    Its size is kept up to date: summing over all hops at each event would be as slow as a step is long.
    """

    dispatcher: Dispatcher
    bytes_max: int
    hops: dict[Microbatch, Hop]  # of the peer
    _weights: dict[Microbatch, int] = field(default_factory=dict, init=False)  # bytes, without the dispatcher's
    _kept_bytes: int = field(default=0, init=False)  # their sum

    @property
    def size_bytes(self) -> int:
        """Bytes kept for repairs until the step is committed."""
        return self._kept_bytes + self.dispatcher.flights.size_bytes

    def finish(self, over: Collection[Hop]) -> list[Action]:
        """Release the tensors of the hops of a committed step, but for those that were sent on."""
        refs = tuple(ref for hop in over for ref in self._refs(hop))
        for hop in over:
            self._kept_bytes -= self._weights.pop(hop.microbatch, 0)
        return [Release(refs)] if refs else []

    def clear(self) -> list[Action]:
        """Drop all hops and their tensors."""
        refs = tuple(ref for hop in self.hops.values() for ref in self._refs(hop))
        self.hops.clear()
        self._weights.clear()
        self._kept_bytes = 0
        actions = self.dispatcher.clear()
        return [*actions, Release(refs)] if refs else actions

    def drop(self, hop: Hop) -> list[Action]:
        """Release the tensors of a hop that was dropped."""
        self._kept_bytes -= self._weights.pop(hop.microbatch, 0)
        refs = self._refs(hop)
        actions: list[Action] = [Release(refs)] if refs else []
        return actions + self.dispatcher.forget(hop.microbatch)

    def weigh(self, hop: Hop) -> None:
        """Count the bytes of a hop anew, after a tensor was added or released."""
        microbatch, weight = hop.microbatch, sum(ref.size_bytes for ref in hop.kept)
        self._kept_bytes += weight - self._weights.get(microbatch, 0)
        self._weights[microbatch] = weight

    def evict(self) -> list[Action]:
        """Release the oldest tensors beyond the bound; those of hops that are unfinished or being restored stay."""
        actions: list[Action] = []
        excess = self.size_bytes - self.bytes_max
        for hop in self.hops.values():
            if excess <= 0:
                break
            if hop.state is not HopState.DONE or hop.wanted is not None:
                continue
            if hop.is_empty and not self.dispatcher.flights.has_input(hop.microbatch):
                continue  # evicted before: in a long step that are most of them
            sent = self.dispatcher.flights.evict(hop.microbatch)
            refs = (*hop.kept, *(() if sent is None else (sent,)))
            hop.input = hop.gradient_in = hop.gradient = None
            self.weigh(hop)
            excess -= sum(ref.size_bytes for ref in refs)
            actions += [Count("evictions"), Release(refs)] if refs else []
        return actions

    def _refs(self, hop: Hop) -> tuple[Ref, ...]:
        """Return what is to be released with a hop; its targets belong to the dispatcher once they are in it."""
        sent = hop.microbatch in self.dispatcher.flights.entries
        return hop.kept if sent else (*hop.kept, hop.targets)
