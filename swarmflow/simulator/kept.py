"""What a pretended peer that joins again still has, in memory or in its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swarmflow.core.messages import Held
from swarmflow.core.types import Epoch, ProcessId
from swarmflow.simulator.arithmetic import Sum, Weights

if TYPE_CHECKING:
    from swarmflow.simulator.world import World


@dataclass(slots=True)
class KeptState:
    """Left by one life of a peer to the next. process: the life that it is of. sealed: reduced gradients, by group."""

    process: ProcessId
    held: Held
    weights: Weights
    sealed: dict[str, Sum]

    def copied(self) -> KeptState:
        """The same in another place: what is done with one of both changes nothing in the other."""
        return replace(self, weights=Weights(self.weights.stage, self.weights.version, self.weights.parameters))

    def end_update(self, world: World) -> None:
        """The update that was under way is ended before the next life begins."""
        commit = self.held.commit
        if commit is not None and commit.epoch.step == self.weights.version:
            self.update(world, commit.epoch)

    def update(self, world: World, epoch: Epoch) -> None:
        """Apply the gradient that was reduced."""
        gradient = self.sealed[f"stage-{self.weights.stage}"]
        self.weights.apply(epoch, gradient)
        world.witness(self.process, self.weights.stage, self.weights.version, self.weights.parameters, gradient)
