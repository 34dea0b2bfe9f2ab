"""The state that a pretended peer keeps from one life to the next, in memory or in its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swarmflow.core.protocol.messages import Held
from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.simulator.arithmetic import Sum, Weights

if TYPE_CHECKING:
    from swarmflow.simulator.world import World


@dataclass(slots=True)
class KeptState:
    """The state of a stage that one life of a peer leaves to the next."""

    process: ProcessId  # the life that leaves it
    held: Held
    weights: Weights
    sealed: dict[str, Sum]  # reduced gradients, by group

    def copied(self) -> KeptState:
        """Return an independent copy."""
        here = self.weights
        weights = Weights(here.stage, here.version, here.parameters, here.delay)
        weights.damaged = here.damaged
        return replace(self, weights=weights)

    def end_update(self, world: World) -> None:
        """Finish the update that was in progress before the next life begins."""
        commit = self.held.commit
        if commit is not None and commit.epoch.step == self.weights.version:
            self.update(world, commit.epoch)

    def update(self, world: World, epoch: Epoch) -> None:
        """Apply the gradient that was reduced."""
        gradient = self.sealed[f"stage-{self.weights.stage}"]
        self.weights.apply(epoch, world.invariants.learnt(gradient))
        if not self.weights.damaged:
            world.witness(self.process, self.weights.stage, self.weights.version, self.weights.parameters, gradient)
