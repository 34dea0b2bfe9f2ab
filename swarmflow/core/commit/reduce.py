"""Butterfly all-reduce of flat gradients: each piece has an owner that sums in rank order and sends the sum to all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Release, Seal, Send, StorePiece, SumPiece
from swarmflow.core.protocol.messages import ReducePart, ReduceSum
from swarmflow.core.protocol.piece_format import FP32, PieceFormat
from swarmflow.core.protocol.types import Epoch, Group, ProcessId, Ref, Roster, SharedWeights, Slice

Row = tuple[str, float, str]  # group, squared norm and digest of its reduced gradient

PIECE_ELEMENTS = 2**18  # 1 or 2 MiB: large enough for a stream's throughput, small enough to pipeline
AWAITED_MAX = 4  # are named to the leader of those that a process waits for
# How far ahead parts are sent to each owner, in pieces: what is on its way fills a link of 500 Mb/s whose answers take
# 0.3 s, and a member that the next step's tensors hold up does not leave the links of others idle. An owner holds at
# most HELD_PIECES for others, unless the least of each are more. With 8 pieces a stage of two peers on two continents
# took 4.3 s for its all-reduce, with 40 it takes 1.5 s (50 million elements, 535 Mb/s, 0.1 s each way).
WINDOW_PIECES_MIN, WINDOW_PIECES_MAX, HELD_PIECES = 8, 40, 120

NORM_TOLERANCE = 1e-6  # of a squared norm: the bits are the same for all members, what adds up their squares is not


def agree(results: Sequence[tuple[float, str]]) -> bool:
    """Return whether the members of a group, by (squared norm, digest), have reduced the same gradient.

    One without a digest has not: a bit of it has flipped since its owner summed it.
    """
    norms, digests = [norm for norm, _ in results], {digest for _, digest in results}
    alike = max(norms) == min(norms) or max(norms) - min(norms) <= NORM_TOLERANCE * max(norms)  # two infinite ones are
    return len(digests) == 1 and "" not in digests and alike


def differing(
    group: Group, results: Sequence[tuple[float, str]], owner: ProcessId | None = None
) -> tuple[ProcessId, ...]:
    """Return the members that disagree with most of those that agree with one another; none where no two do.

    owner: who has summed for all; of two equal camps the one with it counts.
    """
    camps = [[agree((usual, result)) for result in results] for usual in results]
    of_owner = [owner == process for process in group.members]
    sizes = [(sum(camp), any(fits and its for fits, its in zip(camp, of_owner, strict=True))) for camp in camps]
    largest = max(range(len(camps)), key=sizes.__getitem__, default=None)
    if largest is None or sizes[largest][0] < 2:
        return ()
    return tuple(process for process, fits in zip(group.members, camps[largest], strict=True) if not fits)


def groups_of_stage(stage: int, shared: Sequence[SharedWeights]) -> tuple[str, ...]:
    """Return the names of the groups in which the members of a stage reduce."""
    return (f"stage-{stage}", *(weights.group for weights in shared if stage in weights.stages))


def reduction_groups(roster: Roster, shared: Sequence[SharedWeights]) -> tuple[Group, ...]:
    """Return the groups: the members of each stage, and those of several stages for weights that these share."""
    stages = [tuple(member.process for member in stage) for stage in roster.stages]
    groups = [Group(f"stage-{number}", members) for number, members in enumerate(stages)]
    for weights in shared:
        groups.append(Group(weights.group, tuple(one for stage in weights.stages for one in stages[stage])))
    return tuple(groups)


@dataclass(slots=True)
class _GroupState:
    """One group's all-reduce. A group of one member has no pieces: its gradient is the own accumulator."""

    group: Group
    elements: int
    pieces: int
    gives: bool  # something was accumulated here
    # Of pieces that this process sums, by member; None: it has nothing to add.
    parts: dict[int, dict[ProcessId, Ref | None]] = field(init=False, default_factory=dict)
    sent: int = field(init=False, default=0)
    low: int = field(init=False, default=0)  # the first piece that is not reduced yet
    computing: set[int] = field(init=False, default_factory=set)  # pieces that are being summed or stored
    reduced: set[int] = field(init=False, default_factory=set)
    digests: dict[int, str] = field(init=False, default_factory=dict)  # of the sums of pieces, by their owners
    sealing: bool = field(init=False, default=False)  # its norm and digest are being computed, or are known
    result: Row | None = field(init=False, default=None)

    @property
    def owners(self) -> tuple[ProcessId, ...]:
        """The owners of the pieces, which repeat in this order."""
        return self.group.owners or self.group.members

    def owner(self, piece: int) -> ProcessId:
        """Return the owner that sums a piece."""
        return self.owners[piece % len(self.owners)]

    def owns(self, process: ProcessId, piece: int) -> bool:
        """Return whether a process sums this piece."""
        return 0 <= piece < self.pieces and self.owner(piece) == process

    def range(self, piece: int) -> tuple[int, int]:
        """Return the elements of a piece."""
        start = piece * PIECE_ELEMENTS
        return start, min(start + PIECE_ELEMENTS, self.elements)

    @property
    def window(self) -> int:
        """Pieces at a time."""
        each = max(WINDOW_PIECES_MIN, min(WINDOW_PIECES_MAX, HELD_PIECES // max(1, len(self.group.members) - 1)))
        return each * max(len(self.group.members), len(set(self.owners)))

    def release(self) -> list[Action]:
        """Release the parts that are held: the reduction is void."""
        refs = tuple(ref for parts in self.parts.values() for ref in parts.values() if ref is not None)
        return [Release(refs)] if refs else []


class Reduction:
    """The all-reduces of one step, as seen by a member, or by a peer of another stage that sums for the members.

    The sum of a piece is made once, by its owner, over the members in rank order, and sent as bytes: all members hold
    the same bits. A group's reduction belongs to the ballot in which it began (`Group.ballot`). It goes on, or its
    result is kept, through the ballots after that, as long as the leader names the same group.
    term: of the leader, since another one knows nothing of what is kept. elements: length of the flat gradient of each
    group that this process belongs to. piece: how many bytes a piece of them may have.
    """

    def __init__(
        self, me: ProcessId, epoch: Epoch, term: int, elements: dict[str, int], piece: PieceFormat = FP32
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.term = term
        self.elements = elements
        self.piece = piece
        self._groups: dict[str, _GroupState] = {}

    @property
    def _own(self) -> list[_GroupState]:
        return [state for state in self._groups.values() if self.me in state.group.members]

    @property
    def alone_in_all(self) -> bool:
        """Whether this process has no other member to reduce with."""
        return all(len(state.group.members) == 1 for state in self._groups.values())

    # --- groups begin, go on, and are void ----------------------------------------------------------------------------

    def keep(self, groups: Collection[Group]) -> list[Action]:
        """Go on with these groups; what is here of others is void."""
        void = [name for name, state in self._groups.items() if state.group not in groups]
        return [action for name in void for action in self._groups.pop(name).release()]

    def lose(self, process: ProcessId) -> list[Action]:
        """Drop the groups in which a dead process was a member or an owner: they begin anew."""
        return self.keep([state.group for state in self._groups.values() if not takes_part(process, state.group)])

    def begin(self, groups: tuple[Group, ...], gives: bool = True) -> list[Action]:
        """Begin the reductions of a ballot that are not under way already, and send their first parts.

        gives: whether something was accumulated here; who has nothing to add says so in each part's place.
        """
        actions = self.keep(groups)
        for group in groups:
            if group.name in self._groups:
                continue
            member, alone = self.me in group.members, len(group.members) == 1
            length = self.elements[group.name] if member else group.elements
            pieces = 0 if alone else -(-length // PIECE_ELEMENTS)
            self._groups[group.name] = _GroupState(group, length, pieces, gives)
        for state in self._own:
            state.sealing = state.result is not None  # a sum that was not finite is found again
            actions += [*self._advance(state), *self._seal_if_complete(state)]
        return actions

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _state(self, message: ReducePart | ReduceSum) -> _GroupState | None:
        """Return the reduction that a message is about; None: it is not known here, or void."""
        state = self._groups.get(message.group)
        return state if state is not None and state.group.ballot == message.ballot else None

    def part(self, sender: ProcessId, message: ReducePart, ref: Ref | None) -> list[Action]:
        """Take a member's addend of a piece that this process sums. None: it has nothing to add."""
        state = self._state(message)
        refs: list[Action] = [] if ref is None else [Release((ref,))]
        if state is None or not state.owns(self.me, message.piece) or sender not in state.group.members:
            return refs
        parts = state.parts.setdefault(message.piece, {})
        if sender in parts or message.piece in state.reduced:
            return refs
        parts[sender] = ref
        others = len(state.group.members) - (self.me in state.group.members)
        return self._sum(state, message.piece, parts) if len(parts) == others else []

    def _sum(self, state: _GroupState, piece: int, parts: dict[ProcessId, Ref | None]) -> list[Action]:
        (start, stop), group = state.range(piece), state.group
        apart = self.me not in group.members
        givers = [m for m in group.members if (state.gives if m == self.me else parts[m] is not None)]
        if apart and not givers:  # of that the members would have to send zeros
            return []
        ordered = tuple(parts.get(member) for member in givers or (self.me,))
        state.computing.add(piece)
        return [SumPiece(self.epoch, group.ballot, group.name, piece, start, stop, ordered, apart)]

    def summed(self, sender: ProcessId, message: ReduceSum, ref: Ref) -> list[Action]:
        """Take the sum of a piece from its owner."""
        state = self._state(message)
        mine = state is not None and self.me in state.group.members and state.owns(sender, message.piece)
        if state is None or not mine or message.piece in state.reduced:
            return [Release((ref,))]
        start, stop = state.range(message.piece)
        state.computing.add(message.piece)
        state.digests[message.piece] = message.digest
        return [StorePiece(self.epoch, message.ballot, message.group, message.piece, start, stop, ref)]

    def reduced(self, ballot: int, group: str, piece: int, digest: str, apart: Ref | None = None) -> list[Action]:
        """Go on after a piece is in the reduced buffer: send an own one to the members, and begin the next.

        ballot: in which the group's reduction began. digest: of an own one. apart: the sum of a piece of another stage.
        """
        state = self._groups.get(group)
        if state is None or state.group.ballot != ballot:
            return [] if apart is None else [Release((apart,))]
        state.reduced.add(piece)
        state.computing.discard(piece)
        actions: list[Action] = []
        if state.owner(piece) == self.me:
            start, stop = state.range(piece)
            body = Slice(group, start, stop, reduced=True) if apart is None else apart
            state.digests[piece] = digest
            message = ReduceSum(self.epoch, ballot, group, piece, digest)
            actions += [Send(member, message, (body,)) for member in state.group.members if member != self.me]
            spent = [ref for ref in (*state.parts.pop(piece).values(), apart) if ref is not None]
            actions.append(Release(tuple(spent)))
        if self.me in state.group.members:
            actions += [*self._advance(state), *self._seal_if_complete(state)]
        return actions

    def failed(
        self, ballot: int, group: str, piece: int, parts: tuple[Ref, ...]
    ) -> tuple[tuple[ProcessId, ...], list[Action]]:
        """Drop parts of a piece that do not decode, or its owner's sum: others may come. Return the senders, too.

        ballot: in which the group's reduction began. parts: none: it is the sum.
        """
        state = self._groups.get(group)
        if state is None or state.group.ballot != ballot:
            return (), []
        state.computing.discard(piece)
        if not parts:
            return (state.owner(piece),), []
        held = state.parts[piece]
        senders = tuple(member for member, ref in held.items() if ref in parts)
        for sender in senders:
            del held[sender]
        return senders, [Release(parts)]

    def summed_by(self, group: str, piece: int) -> ProcessId | None:
        """Return the owner of a piece; None if there is no such piece, or no other process takes part in the sum."""
        state = self._groups.get(group)
        return state.owner(piece) if state is not None and 0 <= piece < state.pieces else None

    def awaits(self) -> tuple[ProcessId, ...]:
        """Return the processes whose parts or sums are awaited; none while something is left to compute here."""
        if any(state.computing for state in self._groups.values()):
            return ()
        lacking: dict[ProcessId, None] = {}
        for state in self._own:
            owner = state.owner(state.low) if state.low < state.pieces else self.me
            if owner != self.me:
                lacking[owner] = None
            elif state.low < state.pieces:
                parts = state.parts.get(state.low, {})
                lacking |= dict.fromkeys(m for m in state.group.members if m != self.me and m not in parts)
        return tuple(lacking)[:AWAITED_MAX]

    def fits(self, message: ReducePart | ReduceSum, ref: Ref) -> bool:
        """Return whether a body has the size of the piece that its message names."""
        state = self._state(message)
        if state is None or not 0 <= message.piece < state.pieces:
            return False
        start, stop = state.range(message.piece)
        return self.piece.fits(self.epoch.step, stop - start, ref.size_bytes)

    def is_about(self, message: ReducePart | ReduceSum) -> bool:
        """Return whether a message is about a reduction that is under way or done here, and not a void one."""
        return self._state(message) is not None

    def _advance(self, state: _GroupState) -> list[Action]:
        actions: list[Action] = []
        name, ballot = state.group.name, state.group.ballot
        while state.low in state.reduced:
            state.low += 1
        while state.sent < state.pieces and state.sent - state.low < state.window:
            piece, owner = state.sent, state.owner(state.sent)
            if owner != self.me:
                bodies = (Slice(name, *state.range(piece)),) if state.gives else ()
                actions.append(Send(owner, ReducePart(self.epoch, ballot, name, piece), bodies))
            state.sent += 1
        return actions

    # --- results ------------------------------------------------------------------------------------------------------

    def _seal_if_complete(self, state: _GroupState) -> list[Action]:
        if state.sealing or len(state.reduced) < state.pieces:
            return []
        state.sealing = True
        name, alone = state.group.name, len(state.group.members) == 1
        pieces = () if alone else ((name, tuple(state.digests[piece] for piece in range(state.pieces))),)
        return [Seal(self.epoch, state.group.ballot, (name,), (name,) if alone else (), pieces)]

    def sealed(self, ballot: int, results: tuple[Row, ...]) -> None:
        """Take norms and digests of groups whose reductions began in this ballot."""
        for row in results:
            state = self._groups.get(row[0])
            if state is not None and state.group.ballot == ballot:
                state.result = row

    @property
    def results(self) -> tuple[Row, ...] | None:
        """The results of all groups of this member, by name; None: one is not reduced yet."""
        found = [state.result for state in self._own if state.result is not None]
        return tuple(sorted(found)) if len(found) == len(self._own) else None

    @property
    def holds_own(self) -> bool:
        """Whether a group of this member is reduced, or being reduced: nothing may be added to its gradient."""
        return bool(self._own)


def takes_part(process: ProcessId, group: Group) -> bool:
    """Return whether a process adds to a group's sum, or sums for it."""
    return process in group.members or process in group.owners


@dataclass(slots=True)
class Ballot:
    """A try at committing a step, as one member sees it."""

    number: int
    began_s: float  # when its all-reduce began
    sealed: bool = False  # the reduced gradients are ready for the commit, and are what their owners have summed
    answered: bool = False  # the leader has the results
