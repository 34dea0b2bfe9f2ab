"""What all takes that a peer has to do, and what one more microbatch takes, as it tells those who ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.pipeline.admission import Admission
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop import Hop, HopState
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Backward, Forward
from swarmflow.core.protocol.types import Microbatch


@dataclass(slots=True)
class Workload:
    """A peer's work, to compute and to send: the longer of the two. Its seconds are what it has measured itself.

    Of what has left by its uplink it is told only for activations. So it reckons itself when that is free again.
    """

    first: bool  # stage: its gradients go nowhere
    last: bool  # stage: its activations go nowhere, and with the loss goes its backward pass, both timed as one
    dispatcher: Dispatcher
    admission: Admission
    hops: dict[Microbatch, Hop]  # of the peer
    _uplink_free_s: float = field(default=0.0, init=False)  # when all tensors that were sent have left

    def watch(self, actions: Iterable[Action], now: float) -> None:
        """Count the tensors that these actions send."""
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Forward | Backward) and action.bodies:
                self._uplink_free_s = max(now, self._uplink_free_s) + self.dispatcher.router.links.sending_s

    @property
    def work_s(self) -> float:
        """The seconds that all takes that is here or has a slot, with the backward passes whose gradients are awaited.

        What was computed and waits for the uplink is sent yet.
        """
        tensor_s, coming = self.dispatcher.router.links.sending_s, len(self.admission.reserved)
        left_s = max(0.0, self._uplink_free_s - self.admission.now_s)
        if self.last:
            queued = coming + len(self.admission.queued)
            return max(self.admission.timer.seconds(queued, 0), left_s + tensor_s * queued)
        forth = coming + sum(self.hops[each].state is HopState.FORWARD for each in self.admission.queued)
        back = coming + self.admission.unfinished
        tensors = forth + len(self.dispatcher.waiting) + (0 if self.first else back)
        return max(self.admission.timer.seconds(forth, back), left_s + tensor_s * tensors)

    @property
    def each_s(self) -> float:
        """The seconds that one microbatch takes, forth and back; 0: it is not known.

        That it takes longer to send is known of an uplink alone: paths that share nothing carry many at a time.
        """
        links, tensors = self.dispatcher.router.links, (not self.last) + (not self.first)
        computing_s, sending_s = self.admission.timer.seconds(1, 0 if self.last else 1), tensors * links.sending_s
        return max(computing_s, sending_s) if links.has_uplink else computing_s if computing_s >= sending_s else 0.0
