"""What a peer's uplink has to carry yet of the boundary tensors that it was given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Backward, Forward
from swarmflow.core.routing.link_estimates import LinkEstimates


@dataclass(slots=True)
class Uplink:
    """The queue of tensors of one uplink, as it is expected to be: who has sent gradients is told of no arrival."""

    links: LinkEstimates
    _free_s: float = field(default=0.0, init=False)  # when all that was sent has left

    def watch(self, actions: Iterable[Action], now: float) -> None:
        """Count the tensors of these actions, each with what one takes."""
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Forward | Backward) and action.bodies:
                self._free_s = max(now, self._free_s) + self.links.sending_s

    def left_s(self, now: float) -> float:
        """Return the seconds until all that was sent has left."""
        return max(0.0, self._free_s - now)
