"""Messages about a step: opening it, its roster, the ballot, the all-reduce and the commit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.protocol.messages.hop import HopHandover
from swarmflow.core.protocol.types import (
    DEFAULT_EXPONENT,
    Attempt,
    Epoch,
    Group,
    Member,
    Microbatch,
    ProcessId,
    Roster,
    SharedWeights,
)


@dataclass(frozen=True, slots=True)
class ElectorateChange:
    """How the members of an OpenStep differ from those of the last committed step's, whose majority it needs too."""

    joined: tuple[ProcessId, ...] = ()  # members now and not then
    left: tuple[ProcessId, ...] = ()  # members then and not now, for whatever reason
    left_trainers: tuple[ProcessId, ...] = ()  # those of `left` that are trainers


@dataclass(frozen=True, slots=True)
class OpenStep:
    """Begin an epoch with the members of the roster; what belongs to another epoch is void.

    Weights are at version `epoch.step`. Microbatch i is formed by trainer i mod (number of trainers). A peer receives
    only the stages around its own of the roster.
    """

    term: int
    epoch: Epoch
    roster: Roster
    lineage: str  # of the epoch; in a lineage each version is committed once
    newcomers: tuple[ProcessId, ...] = ()  # of the roster: those that come in for the update alone
    exponent: int = DEFAULT_EXPONENT  # where gradients add up as integers, one unit is 2^-exponent
    whole: str = ""  # where the roster is a part: digest of the whole one
    named: int = 0  # where the roster is a part: voters of the whole one
    careful: bool = False  # an earlier try gave a value that was not finite: check each layer and each microbatch
    change: ElectorateChange | None = None  # since the last committed step; None: the lineage's first OpenStep
    ahead: bool = False  # it was begun ahead: what members have of it stays, and no other trainer has a share of it
    kept: tuple[int, ...] = ()  # how many of 256 numbers cross each boundary, where the run's codec is adaptive
    commit: Commit | None = None  # of the step before, where it comes with this: the update is made first
    proof: bytes = field(default=b"", compare=False, repr=False)  # that a trainer has opened it

    @property
    def partial(self) -> bool:
        """Whether the roster is a part of the whole one."""
        return bool(self.whole)

    @property
    def digest(self) -> str:
        """Digest of the whole roster: processes with the same one need not send it to each other."""
        return self.whole or self.roster.digest

    @property
    def voters(self) -> int:
        """Number of members of the whole roster that vote; whoever comes in for the update alone does not."""
        return self.named or len(self.roster.voters.difference(self.newcomers))

    def seen_from(self, stage: int, shared: tuple[SharedWeights, ...]) -> OpenStep:
        """Return the OpenStep for a peer of this stage. shared: the weights that several stages have."""
        roster = self.roster.around(stage, shared)
        return self if roster is self.roster else replace(self, roster=roster, whole=self.digest, named=self.voters)


@dataclass(frozen=True, slots=True)
class RosterDelta:
    """An OpenStep as the difference to that of epoch `base`, which the receiver has.

    The roster of a large swarm takes megabytes and hardly changes from step to step. Other fields: as in OpenStep.
    """

    term: int
    epoch: Epoch
    base: Epoch
    gone: tuple[ProcessId, ...]
    entered: tuple[Member, ...]  # new, on another stage, or with another capacity
    lineage: str
    exponent: int = DEFAULT_EXPONENT
    whole: str = ""
    named: int = 0
    careful: bool = False
    change: ElectorateChange | None = None
    ahead: bool = False
    kept: tuple[int, ...] = ()
    commit: Commit | None = None
    proof: bytes = field(default=b"", compare=False, repr=False)  # of the OpenStep that it stands for

    @classmethod
    def after(cls, base: OpenStep, opened: OpenStep) -> RosterDelta | None:
        """Return `opened` as a difference to `base`; None if it cannot be expressed so."""
        before = {member.process: member for member in (*base.roster.peers, *base.roster.trainers)}
        now = {member.process: member for member in (*opened.roster.peers, *opened.roster.trainers)}
        entered = tuple(member for process, member in now.items() if before.get(process) != member)
        gone = tuple(process for process in before if process not in now)
        rest = (opened.digest, opened.voters, opened.careful, opened.change, opened.ahead, opened.kept, opened.commit)
        reopen = cls(opened.term, opened.epoch, base.epoch, gone, entered, opened.lineage, opened.exponent, *rest)
        return reopen if reopen.unfolded(base) == opened else None

    def unfolded(self, base: OpenStep) -> OpenStep:
        """Return the OpenStep that it stands for."""
        whole, named = self.whole, self.named
        if base.partial:
            near = tuple(m for m in self.entered if m.stage < 0 or base.roster.stages[m.stage])
            far = tuple(m.process for m in self.entered if m not in near)
            roster = base.roster.changed((*self.gone, *far), near)
        else:
            roster, whole, named = base.roster.changed(self.gone, self.entered), "", 0
        rest = (whole, named, self.careful, self.change, self.ahead, self.kept, self.commit, self.proof)
        return OpenStep(self.term, self.epoch, roster, self.lineage, (), self.exponent, *rest)


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A member is out of this epoch; a ballot under way is revoked, and the reductions in which it had a part are void.

    lost: hops (stage, index) that have no holder any more; whoever counts one of them as done sends it again.
    lost_ahead: the same of the next step, where that was begun ahead.
    """

    term: int
    epoch: Epoch
    process: ProcessId
    reason: str
    lost: tuple[tuple[int, int], ...] = ()
    lost_ahead: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MemberEntered:
    """A ready peer takes part from now on instead of from the next step, because a peer of its stage died.

    ahead: the next step has begun already, and the member takes microbatches of that one too.
    """

    term: int
    epoch: Epoch
    member: Member
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a trainer microbatches: those of a dead one, or its share of the next step, which begins ahead.

    reassignment: of the attempts at them, above those of the dead one. The trainer asks who holds them already before
    it sends them again; 0: nobody can.
    """

    term: int
    epoch: Epoch
    indices: tuple[int, ...]
    reassignment: int


@dataclass(frozen=True, slots=True)
class Overflow:
    """Report to the leader that a gradient of this hop is too large for the step's exponent."""

    microbatch: Microbatch
    handovers: tuple[HopHandover, ...] = field(default=(), compare=False, repr=False)  # as in Done


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Report to the leader a value that is not finite although all that it was computed from is."""

    epoch: Epoch
    index: int  # of the microbatch; -1: a sum over several
    value: str  # kind of value (leading/findings.py)
    layer: str = ""  # where in the model it arises; empty: not known
    owner: ProcessId | None = None  # who computed it, where not the sender: a sum of an all-reduce
    # As in Done, where it is about a microbatch.
    handovers: tuple[HopHandover, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals over the entries of a step: mean loss, target tokens, hops repeated after deaths.

    lineage: of the step, which names it among all that had its number.
    """

    loss: float
    tokens: int
    retries: int
    lineage: str = ""
    proof: bytes = field(default=b"", compare=False, repr=False)  # that a trainer has begun the ballot with these


@dataclass(frozen=True, slots=True)
class Prepare:
    """Accumulate nothing more, check that exactly `entries` are held, and reduce over `groups`, or go on with them.

    A trainer receives it without entries and groups, because it may have to lead, and answers at once.
    """

    term: int
    epoch: Epoch
    ballot: int
    entries: tuple[tuple[int, Attempt], ...]  # (index, attempt) that the receiver must hold
    groups: tuple[Group, ...]  # that the receiver reduces in
    tally: Tally  # of the whole step, so that another leader can finish the ballot
    newcomers: tuple[Member, ...] = ()  # loaded this version meanwhile: they reduce and update, with nothing to add
    ahead: bool = False  # the microbatches of the next step follow already, while this one is reduced


@dataclass(frozen=True, slots=True)
class Prepared:
    """Report to the leader that the sender's groups are reduced; a trainer has none.

    It is also a promise: the sender will report this ballot to any leader that it follows from now on.
    """

    epoch: Epoch
    ballot: int
    results: tuple[tuple[str, float, str], ...]  # (group, squared norm of the summed gradient, digest of its bits)


@dataclass(frozen=True, slots=True)
class Unprepared:
    """Report to the leader that the sender does not hold its entries."""

    epoch: Epoch
    ballot: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step is committed: what the trainers' logs record of it."""

    term: int
    epoch: Epoch
    loss: float
    tokens: int
    seconds: float
    grad_norm: float
    learning_rate: float
    microbatches: int
    peers: tuple[int, ...]
    retries: int
    validation_loss: float | None = None
    kept: tuple[int, ...] = ()  # as in the OpenStep

    @property
    def step(self) -> int:
        """Number of the step, from 0."""
        return self.epoch.step


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """Report to the leader that an accumulated hop can be neither undone nor repeated: the step must start over."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply scale * summed gradient at this learning rate. scale = clip factor / target tokens.

    result: of the step, so that another leader can log it. followed: stages that peers load, whose members keep the
    sums of the step for these. hashed: peers hash the state that the update makes, and report its root. lineage: of the
    step, which names it among all that had its number.
    """

    term: int
    epoch: Epoch
    ballot: int
    scale: float
    learning_rate: float
    result: StepResult
    followed: tuple[int, ...] = ()
    hashed: bool = False
    lineage: str = ""
    proof: bytes = field(default=b"", compare=False, repr=False)  # that a trainer has decided so


@dataclass(frozen=True, slots=True)
class Committed:
    """Report to the leader that the update is made: the state is at `version`."""

    epoch: Epoch
    version: int


@dataclass(frozen=True, slots=True)
class ReducePart:
    """Send an addend of a piece of a group's gradient to the piece's owner. Body: fp32; none: nothing to add."""

    epoch: Epoch
    ballot: int  # in which the group's reduction began
    group: str
    piece: int


@dataclass(frozen=True, slots=True)
class ReduceSum:
    """Send the sum of a piece from its owner to all members. Body: the sum, fp32 or int64, which has this digest."""

    epoch: Epoch
    ballot: int  # in which the group's reduction began
    group: str
    piece: int
    digest: str
