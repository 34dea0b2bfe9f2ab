"""Butterfly all-reduce of flat gradients: each piece has an owner that sums in rank order and sends the sum to all."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Release, Seal, Send, StorePiece, SumPiece
from swarmflow.core.messages import ReducePart, ReduceSum
from swarmflow.core.types import Epoch, Group, ProcessId, Ref, Slice

PIECE_ELEMENTS = 2**18  # 1 or 2 MiB: large enough for a stream's throughput, small enough to pipeline
WINDOW_PIECES = 8  # of each owner: how far ahead parts are sent, which bounds what an owner must hold for others


@dataclass(slots=True)
class _GroupState:
    group: Group
    elements: int
    pieces: int
    parts: dict[int, dict[ProcessId, Ref]] = field(default_factory=dict)
    sent: int = 0
    low: int = 0  # the first piece that is not reduced yet
    reduced: set[int] = field(default_factory=set)


class Reduction:
    """One ballot's all-reduce, as seen by one member.

    The sum of a piece is made once, by its owner, over the members in rank order, and sent as bytes: all members hold
    the same bits. elements: length of the flat gradient of each group that this process belongs to. element_bytes: of
    one element, 4 (fp32) or 8 (integers).
    """

    def __init__(
        self,
        me: ProcessId,
        epoch: Epoch,
        ballot: int,
        groups: tuple[Group, ...],
        elements: dict[str, int],
        element_bytes: int = 4,
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.ballot = ballot
        self.element_bytes = element_bytes
        self.alone = tuple(group.name for group in groups if len(group.members) == 1)
        self._groups = {
            group.name: _GroupState(group, elements[group.name], -(-elements[group.name] // PIECE_ELEMENTS))
            for group in groups
            if len(group.members) > 1
        }
        self._sealed = False

    def start(self) -> list[Action]:
        """Send the first parts; a process that is alone in all its groups seals at once."""
        actions: list[Action] = []
        for state in self._groups.values():
            actions += self._advance(state)
        return actions + self._seal_if_complete()

    def part(self, sender: ProcessId, message: ReducePart, ref: Ref) -> list[Action]:
        """A member's addend of a piece that this process owns."""
        state = self._groups.get(message.group)
        if state is None or not self._owns(state, message.piece, self.me) or sender not in state.group.members:
            return [Release((ref,))]
        parts = state.parts.setdefault(message.piece, {})
        if sender in parts or message.piece in state.reduced:
            return [Release((ref,))]
        parts[sender] = ref
        if len(parts) < len(state.group.members) - 1:
            return []
        start, stop = self._range(state, message.piece)
        ordered = tuple(parts.get(member) for member in state.group.members)
        return [SumPiece(self.epoch, self.ballot, message.group, message.piece, start, stop, ordered)]

    def summed(self, sender: ProcessId, message: ReduceSum, ref: Ref) -> list[Action]:
        """The sum of a piece, from its owner."""
        state = self._groups.get(message.group)
        if state is None or message.piece in state.reduced or not self._owns(state, message.piece, sender):
            return [Release((ref,))]
        start, stop = self._range(state, message.piece)
        return [StorePiece(self.epoch, self.ballot, message.group, message.piece, start, stop, ref)]

    def reduced(self, group: str, piece: int) -> list[Action]:
        """A piece stands in the reduced buffer: pass an own one on, and go on with the next."""
        state = self._groups[group]
        state.reduced.add(piece)
        actions: list[Action] = []
        if self._owner(state, piece) == self.me:
            start, stop = self._range(state, piece)
            refs = tuple(state.parts.pop(piece).values())
            message = ReduceSum(self.epoch, self.ballot, group, piece)
            actions += [
                Send(member, message, (Slice(group, start, stop, reduced=True),))
                for member in state.group.members
                if member != self.me
            ]
            actions.append(Release(refs))
        actions += self._advance(state)
        return actions + self._seal_if_complete()

    def abandon(self) -> list[Action]:
        """The ballot is revoked."""
        refs = tuple(ref for state in self._groups.values() for parts in state.parts.values() for ref in parts.values())
        return [Release(refs)] if refs else []

    def fits(self, message: ReducePart | ReduceSum, ref: Ref) -> bool:
        """Whether a body has the size of the piece that it is said to be."""
        state = self._groups.get(message.group)
        if state is None or not 0 <= message.piece < state.pieces:
            return False
        start, stop = self._range(state, message.piece)
        return ref.size_bytes == self.element_bytes * (stop - start)

    def _advance(self, state: _GroupState) -> list[Action]:
        actions: list[Action] = []
        window = WINDOW_PIECES * len(state.group.members)
        while state.low in state.reduced:
            state.low += 1
        while state.sent < state.pieces and state.sent - state.low < window:
            owner = self._owner(state, state.sent)
            if owner != self.me:
                start, stop = self._range(state, state.sent)
                message = ReducePart(self.epoch, self.ballot, state.group.name, state.sent)
                actions.append(Send(owner, message, (Slice(state.group.name, start, stop),)))
            state.sent += 1
        return actions

    def _seal_if_complete(self) -> list[Action]:
        if self._sealed or any(len(state.reduced) < state.pieces for state in self._groups.values()):
            return []
        self._sealed = True
        return [Seal(self.epoch, self.ballot, tuple(sorted((*self._groups, *self.alone))), self.alone)]

    def _owns(self, state: _GroupState, piece: int, process: ProcessId) -> bool:
        return 0 <= piece < state.pieces and self._owner(state, piece) == process

    def _owner(self, state: _GroupState, piece: int) -> ProcessId:
        members = state.group.members
        return members[piece % len(members)]

    def _range(self, state: _GroupState, piece: int) -> tuple[int, int]:
        start = piece * PIECE_ELEMENTS
        return start, min(start + PIECE_ELEMENTS, state.elements)


@dataclass(slots=True)
class Ballot:
    """A try at reducing a step, as one member sees it. sealed: its gradients stand ready for the commit."""

    number: int
    reduction: Reduction
    sealed: bool = False
