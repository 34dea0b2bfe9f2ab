"""The end of a step on a pretended device: sums of gradients, their seal, and the update."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swarmflow.core.commit.reduce import PIECE_ELEMENTS
from swarmflow.core.protocol.actions import Apply, HashState, Seal, StorePiece, SumPiece
from swarmflow.core.protocol.events import Applied, PieceReduced, Sealed, StateDamaged, StateHashed
from swarmflow.core.protocol.types import ProcessId, Ref, Slice
from swarmflow.simulator.arithmetic import Gradient, Sum, digest
from swarmflow.simulator.spoiling import without_norm

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device
    from swarmflow.simulator.world import World

FLIPPED: Gradient = Counter({-2: 1})  # what a flipped bit adds to a sum; it is finite


@dataclass(slots=True)
class GradientSums:
    """Reduces the gradients of a device's stage with those of its other peers, and applies the update."""

    device: Device
    world: World = field(init=False)
    process: ProcessId = field(init=False)
    sealed: dict[str, Sum] = field(init=False, default_factory=dict)  # reduced gradients, by group
    _copied: Gradient = field(init=False, default_factory=Counter)  # the last copy of what was accumulated
    _summed: tuple[list[Gradient], Sum] = field(init=False, default=([], Sum.of([])))  # addends, and their sum
    flips_sum: bool = field(init=False, default=False)  # a bit flips in the next sum that it receives
    flips_parameters: bool = field(init=False, default=False)  # a bit flips in the parameters of its next update

    def __post_init__(self) -> None:
        self.world, self.process = self.device.world, self.device.process

    def read(self, body: Slice) -> Gradient | Sum:
        """Return the bytes of a slice of a gradient, to be sent."""
        weights = self.device.stage_weights()
        if body.reduced:
            return weights.reduced[body.group, body.start // PIECE_ELEMENTS]
        return self.own_addend()

    def piece_bytes(self, elements: int) -> int:
        """Return the bytes of a piece of the gradient of the present step."""
        return self.world.hardware.piece().usual_bytes(elements, self.device.stage_weights().version)

    def reduce(self, action: SumPiece | StorePiece) -> None:
        """Sum a piece of the gradient, or store the sum that its owner has sent."""
        weights = self.device.stage_weights()
        if isinstance(action, SumPiece):
            total = self._total([self._addend(part) for part in action.parts])
        else:
            value = self.world.hosts[self.process].stored.pop(action.sum.key)
            assert isinstance(value, Sum)
            total = value
        name = total.name if isinstance(action, SumPiece) else ""
        done = PieceReduced(action.epoch, action.ballot, action.group, action.piece, name)
        if isinstance(action, StorePiece) and self.flips_sum:
            self.flips_sum, total = False, Sum.of([total.counts, FLIPPED])
        if isinstance(action, SumPiece) and action.apart:
            size_bytes = self.piece_bytes(action.stop - action.start)
            done = replace(done, sum=self.world.store(self.process, total, size_bytes))
        else:
            weights.reduced[action.group, action.piece] = total
        self.device.answer(done)

    def _addend(self, part: Ref | None) -> Gradient:
        value = self.own_addend() if part is None else self.world.hosts[self.process].stored[part.key]
        assert isinstance(value, Counter)
        return value

    def own_addend(self) -> Gradient:
        """Return a copy of what has been accumulated: the same one as long as nothing is added."""
        present = self.device.stage_weights().present
        if not dict.__eq__(self._copied, present):  # a Counter's own comparison takes ten times as long
            self._copied = present.copy()
        return self._copied

    def _total(self, addends: list[Gradient]) -> Sum:
        """Return the sum of copies of gradients, which most pieces of a gradient share."""
        before, total = self._summed
        if len(before) != len(addends) or any(one is not other for one, other in zip(before, addends, strict=True)):
            total = Sum.of(addends)
            self._summed = addends, total
        return total

    def seal(self, action: Seal) -> None:
        """Put the pieces of each group together, and answer with their digests."""
        weights = self.device.stage_weights()
        if weights.damaged:
            return self.device.answer(StateDamaged(action.epoch))
        summed, flipped, sealed = dict(action.pieces), set[str](), dict[str, Sum]()
        for group in action.groups:
            if group in action.alone:
                sealed[group] = Sum.of([weights.present])
                continue
            pieces = -(-self.world.hardware.elements(group) // PIECE_ELEMENTS)
            sums = [weights.reduced[group, piece] for piece in range(pieces)]
            sealed[group] = Sum.joined(sums)
            if tuple(part.name for part in sums) != summed[group]:
                flipped.add(group)
        if (broken := without_norm(action.epoch, sealed, weights.present)) is not None:
            return self.device.answer(broken)
        own = f"stage-{weights.stage}"
        names = {
            group: digest(value.name, weights.parameters) if group == own else value.name
            for group, value in sealed.items()
        }
        results = [(group, 1.0, "" if group in flipped else name) for group, name in sorted(names.items())]
        self.sealed |= sealed
        self.device.answer(Sealed(action.epoch, action.ballot, tuple(results)))

    def apply(self, action: Apply) -> None:
        """Apply the reduced gradient to the parameters."""
        weights = self.device.stage_weights()
        if weights.damaged:
            return self.device.answer(StateDamaged(action.epoch))
        gradient, self.sealed = self.sealed[f"stage-{weights.stage}"], {}
        weights.apply(action.epoch, self.world.invariants.learnt(gradient))
        if self.flips_parameters:
            self.flips_parameters, weights.flipped = False, True
            weights.parameters = digest("flipped", weights.parameters)
        else:
            self.world.witness(self.process, weights.stage, weights.version, weights.parameters, gradient)
        hashed = StateHashed(weights.version, weights.parameters)
        self.world.deliver(self.process, Applied(action.epoch))
        if action.hashed and not self.device.stalls.swallow(HashState(weights.version)):
            self.device.answer(hashed)

    def hash(self, action: HashState) -> None:
        """Answer with the root of the state."""
        weights = self.device.stage_weights()
        damaged = StateDamaged() if weights.damaged else None
        self.device.answer(damaged or StateHashed(action.version, weights.parameters))
