"""Reports of a member to the leader that are not true: of what it has loaded, of others, of its sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swarmflow.chaos.attacks import forging
from swarmflow.chaos.attacks.lies import Lie, Outgoing
from swarmflow.core.protocol.messages import Prepared
from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.lanes import Body
from swarmflow.runtime.transport.wire import Wire

_NORM_FACTOR = 1e6


class FalseReady(Lie):
    """Says that it has loaded what it was not granted."""

    every_s = 0.2

    def strike(self) -> None:
        """Claim every stage, at the version of the run and at later ones."""
        machine = self.insider.machine
        for stage in range(machine.plan.stages):
            for version in (machine.version, machine.version + 1):
                if version >= 0:
                    self.insider.send(self.insider.leader, forging.ready(stage, version, machine.grant))


class AccuseOne(Lie):
    """Accuses one other peer."""

    every_s = 0.5

    def strike(self) -> None:
        """Accuse the first peer of the next stage, or of its own."""
        accused = (*self.insider.peers(self.insider.stage + 1), *self.insider.others())[:1]
        for process in accused:
            self.insider.send(self.insider.leader, forging.suspect(process))


class AccuseAll(Lie):
    """Accuses all others."""

    every_s = 0.5

    def strike(self) -> None:
        """Accuse every peer."""
        for process in self.insider.others():
            self.insider.send(self.insider.leader, forging.suspect(process))


class FalseNorms(Lie):
    """Reports larger norms than its sums have."""

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Change the norms, and leave the digests."""
        if not isinstance(message, Prepared) or not message.results:
            return message, bodies
        self.altered(message)
        results = tuple((group, norm * _NORM_FACTOR, digest) for group, norm, digest in message.results)
        return replace(message, results=results), bodies
