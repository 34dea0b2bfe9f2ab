"""Claims about the state of the run: copies and a state in memory of versions that it has never had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swarmflow.chaos.attacks import forging
from swarmflow.chaos.attacks.lies import Insider, Lie, Outgoing
from swarmflow.core.protocol.messages import CopiesHeld, Join
from swarmflow.core.protocol.types import Holding, ProcessId
from swarmflow.runtime.transport.lanes import Body
from swarmflow.runtime.transport.wire import Wire

_LATER = 50  # versions


class FalseCopies(Lie):
    """Claims later versions than the run has, with the proof of an earlier one, whenever it joins."""

    every_s = 0.5

    def __init__(self, insider: Insider) -> None:
        super().__init__(insider)
        certified = insider.machine.certified
        self._proof = certified.proof if certified is not None else b""
        self._version = max(0, insider.machine.version) + _LATER

    def strike(self) -> None:
        """Claim the copies of a member, too."""
        self.insider.send(self.insider.leader, CopiesHeld((self._holding(),)))

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Add the claims to its own Join."""
        if not isinstance(message, Join):
            return message, bodies
        self.altered(message)
        held = forging.held(max(0, self.insider.stage), self._version)
        return replace(message, copies=(self._holding(),), held=held), bodies

    def _holding(self) -> Holding:
        return forging.holding(self._version, self.insider.machine.plan.stages, self._proof)
