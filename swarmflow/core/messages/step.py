"""Messages about a step: opened, worked off, reduced and committed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarmflow.core.types import EXPONENT, Epoch, Group, Member, Microbatch, ProcessId, Roster


@dataclass(frozen=True, slots=True)
class ElectorateChange:
    """How the members of an OpenStep differ from those of the last committed step's, whose majority it needs too."""

    joined: tuple[ProcessId, ...] = ()  # named now and not then
    left: tuple[ProcessId, ...] = ()  # named then and not now, whatever became of them
    left_trainers: tuple[ProcessId, ...] = ()  # those of `left` that are trainers


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step begins, or begins anew: everybody in the roster takes part; what belongs to another epoch is void.

    Weights are at version `epoch.step`. Microbatch i is formed by trainer i mod (number of trainers). lineage: the
    random name of the history that the epoch belongs to; in a lineage each version is committed once. newcomers: of the
    roster, those that come in as the step ends, for its update alone. exponent: where gradients add up as integers, one
    of them counts 2^-exponent. A peer is told of the stages around its own alone; whole, named: the digest of the
    roster of which that is a part, and its size. before: the members were told in so many parts of a message each, or
    0: they are here. careful: a try before this one gave a value that was not finite, so each layer and each
    microbatch's gradients are checked by themselves. change: of the electorate since the last committed step, or since
    the lineage's first OpenStep; None: this is the first one.
    """

    term: int
    epoch: Epoch
    roster: Roster
    lineage: str
    newcomers: tuple[ProcessId, ...] = ()
    exponent: int = EXPONENT
    whole: str = ""
    named: int = 0
    before: int = 0
    careful: bool = False
    change: ElectorateChange | None = None

    @property
    def partial(self) -> bool:
        """Whether it names a part of those who take part."""
        return bool(self.whole)

    @property
    def digest(self) -> str:
        """Of the whole roster: two processes of the same one need not tell each other."""
        return self.whole or self.roster.digest

    @property
    def size(self) -> int:
        """How many take part, whether they are named here or not."""
        return self.named or self.roster.size

    def seen_from(self, stage: int, tied: bool) -> OpenStep:
        """What a peer of this stage is told of it."""
        roster = self.roster.around(stage, tied)
        return self if roster is self.roster else replace(self, roster=roster, whole=self.digest, named=self.size)


@dataclass(frozen=True, slots=True)
class RosterPart:
    """Some of those who take part in an epoch, before the OpenStep, which has not room for all of them."""

    term: int
    epoch: Epoch
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class RosterDelta:
    """An OpenStep to somebody who has heard the one of epoch `base`: its roster is that one's but for who is in these.

    came: who is new, or serves another stage, or has another capacity now. The roster of a large swarm takes megabytes,
    and hardly changes from step to step. whole, named: the digest and the size of the whole roster.
    """

    term: int
    epoch: Epoch
    base: Epoch
    gone: tuple[ProcessId, ...]
    came: tuple[Member, ...]
    lineage: str
    exponent: int = EXPONENT
    whole: str = ""
    named: int = 0
    careful: bool = False
    change: ElectorateChange | None = None

    @classmethod
    def after(cls, base: OpenStep, said: OpenStep) -> RosterDelta | None:
        """What `said` is to those who have heard `base`. None: it cannot be told so."""
        before = {member.process: member for member in (*base.roster.members(), *base.roster.trainers)}
        now = {member.process: member for member in (*said.roster.members(), *said.roster.trainers)}
        came = tuple(member for process, member in now.items() if before.get(process) != member)
        gone = tuple(process for process in before if process not in now)
        rest = (said.lineage, said.exponent, said.digest, said.size, said.careful, said.change)
        reopen = cls(said.term, said.epoch, base.epoch, gone, came, *rest)
        return reopen if reopen.unfolded(base) == said else None

    def unfolded(self, base: OpenStep) -> OpenStep:
        """The OpenStep that it stands for."""
        if not base.partial:
            roster = base.roster.changed(self.gone, self.came)
            rest = (self.exponent, "", 0, 0, self.careful, self.change)
            return OpenStep(self.term, self.epoch, roster, self.lineage, (), *rest)
        near = tuple(m for m in self.came if m.stage < 0 or base.roster.stages[m.stage])
        far = tuple(m.process for m in self.came if m not in near)
        roster = base.roster.changed((*self.gone, *far), near)
        rest = (self.exponent, self.whole, self.named, 0, self.careful, self.change)
        return OpenStep(self.term, self.epoch, roster, self.lineage, (), *rest)


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A process of the roster is dead to this epoch. A ballot under way is revoked.

    lost: hops (stage, index) that were accumulated and have no holder any more: whoever believes that one of them is
    done sends it again.
    """

    term: int
    epoch: Epoch
    process: ProcessId
    reason: str
    lost: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MemberEntered:
    """One who was ready, and would have come in at the next step, takes part from now on: a peer of its stage died."""

    term: int
    epoch: Epoch
    member: Member


@dataclass(frozen=True, slots=True)
class Assign:
    """To a trainer: these microbatches of a dead one are yours now.

    attempt: higher than all that the dead one gave them. Who holds them already is asked before they are sent again.
    """

    term: int
    epoch: Epoch
    indices: tuple[int, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Overflow:
    """To the leader: a gradient of this hop is too large for the step's exponent."""

    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class NotFinite:
    """To the leader: a value is not finite although all that it was computed from is.

    index: of the microbatch, -1: a sum over several. value: what it is (`leading/findings.py`). layer: the part of the
    model in which it arises, empty: not known. owner: who computed it, where that is not the sender: a sum of an
    all-reduce.
    """

    epoch: Epoch
    index: int
    value: str
    layer: str = ""
    owner: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """What a step's manifest amounts to: mean loss, target tokens, hops that were done again after a death."""

    loss: float
    tokens: int
    retries: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Accumulate nothing more; check that you hold exactly `entries` ((index, attempt)), and reduce over `groups`.

    newcomers: peers that loaded this version during the step. They have accumulated nothing, but take part in the
    all-reduce and the update, so that they are at the next version like everybody without loading it again. tally: of
    the whole manifest, so that another leader can finish the ballot. A trainer, which holds nothing, is told of the
    ballot without entries and groups, since it may have to lead, and answers at once.
    """

    term: int
    epoch: Epoch
    ballot: int
    entries: tuple[tuple[int, int], ...]
    groups: tuple[Group, ...]
    tally: Tally
    newcomers: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """My groups are reduced: (group, squared norm of the summed gradient, digest of its bits). A trainer has none.

    It is a promise as well: who follows another leader from now on reports this ballot to it.
    """

    epoch: Epoch
    ballot: int
    results: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True)
class Unprepared:
    """I do not hold what the manifest lists for me."""

    epoch: Epoch
    ballot: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """To the trainers: a step is committed, with everything that the log of the run tells of it."""

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

    @property
    def step(self) -> int:
        """Its number, from 0."""
        return self.epoch.step


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """To the leader: what was accumulated here cannot be taken away or done again; the step has to start over."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply: gradient = scale * summed gradient, at this learning rate. scale = clip factor / target tokens.

    result: of the step, so that another leader can tell it.
    """

    term: int
    epoch: Epoch
    ballot: int
    scale: float
    learning_rate: float
    result: StepResult


@dataclass(frozen=True, slots=True)
class Committed:
    """My parameters are at `version`, with this digest."""

    epoch: Epoch
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class ReducePart:
    """Body: my addend of a piece of a group's gradient, fp32, to who sums it. No body: I have nothing to add."""

    epoch: Epoch
    ballot: int
    group: str
    piece: int


@dataclass(frozen=True, slots=True)
class ReduceSum:
    """Body: the sum of a piece, fp32, from its owner to all members."""

    epoch: Epoch
    ballot: int
    group: str
    piece: int
