"""The state of a peer, which its decisions work on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.commit.reduce import Ballot, Reduction
from swarmflow.core.durability.memory import Memory
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.serving.peer_phase import PEER, PeerPhase
from swarmflow.core.membership.placement import is_narrow
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, Log, Rejoin, Release, Send
from swarmflow.core.protocol.messages import Held, Join, Left, Needed, NotFinite, Overflow, Prepare, Unrepairable
from swarmflow.core.protocol.piece_format import FP32, PieceFormat
from swarmflow.core.protocol.types import NO_EPOCH, Epoch, Holding, Plan, ProcessId, Ref, Snapshot
from swarmflow.core.routing.flow.negotiations import Negotiation
from swarmflow.core.routing.link_survey import LinkSurvey
from swarmflow.core.routing.relays import Relays

HOLD_COPIES_S = 120.0  # for so long no copies are asked for amid an all-reduce
LOADERS_SHARE = 0.25  # of the uplink of a peer that serves its stage alone


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What a peer's process was started with."""

    join: Join  # its Join; member.stage -1: any stage
    drain_s: float | None = None  # how long it takes to hand over, None: as long as the run says
    stay: bool = False  # after the last step
    journal_bytes_max: int = 1 << 30
    recompute: bool = True  # when idle it takes microbatches for whose graphs there is no memory
    relays: bool = True  # it relays tensors, and reports its links, by which the pieces of an all-reduce are shared out
    stores: bool = False  # it has a folder, in which its stage outlives the process


@dataclass(slots=True)
class PeerState:
    """The state of a peer."""

    me: ProcessId
    lease: LeaderLease
    plan: Plan
    settings: PeerSettings
    stage: int = field(init=False, default=-1)
    version: int = field(init=False, default=-1)
    phase: PeerPhase = field(init=False, default=PEER.initial)
    epoch: Epoch = field(init=False, default=NO_EPOCH)
    root: tuple[int, str] = field(init=False, default=(-1, ""))  # of its state: (version, root), the last one hashed
    hashes: int = field(init=False, default=-1)  # the version that is hashed, where that was asked for
    certified: Snapshot | None = field(init=False, default=None)  # the last version whose certificate has come
    hops: HopTable | None = field(init=False, default=None)  # of the stage that it holds
    epoch_view: EpochView | None = field(init=False, default=None)
    copies: tuple[Holding, ...] | None = field(init=False, default=None)  # on its disk, if changed since it began
    grant: int = field(init=False, default=0)  # the number of the leader's last one, which an answer names
    drain_until_s: float | None = field(init=False, default=None)
    ballot: Ballot | None = field(init=False, default=None)  # that is under way
    reduction: Reduction | None = field(init=False, default=None)  # of the step; it may outlive a ballot
    begun: int = field(init=False, default=0)  # the last ballot of the step whose pieces are awaited here, or were
    unsettled: Prepare | None = field(init=False, default=None)  # a ballot that waits for orphans to be subtracted
    elements: dict[str, int] = field(init=False, default_factory=dict)  # of each reduction group's flat gradient
    piece: PieceFormat = field(init=False, default=FP32)  # of an all-reduce of them
    relays: Relays = field(init=False)
    flows: Negotiation | None = field(init=False, default=None)  # where the router follows flows
    survey: LinkSurvey | None = field(init=False, default=None)  # of its links, which the leader has asked for
    done: int = field(init=False, default=0)  # units of work in its life, as its heartbeats report
    postponed: str = field(init=False, default="")  # why the leader does not let it in yet
    deferred: tuple[Unrepairable | Overflow | NotFinite, str] | None = field(init=False, default=None)  # see `void`
    needed: Needed | None = field(init=False, default=None)  # what its leaving would cost, if it alone has its stage
    memory: Memory = field(init=False)

    @property
    def leader(self) -> ProcessId:
        """The trainer that this peer follows."""
        return self.lease.leader

    @property
    def load(self) -> int:
        """Microbatches that wait for, or are in, computation."""
        return self.hops.queued if self.hops is not None else 0

    def move(self, to: PeerPhase) -> None:
        """Enter a phase. A hop table stands for a stage that is loaded."""
        phase = PEER.move(self.phase, to)
        if phase is not PeerPhase.GONE:
            assert (self.hops is None) == (phase in (PeerPhase.JOINING, PeerPhase.LOADING)), f"{phase} with {self.hops}"
            assert self.stage >= 0, f"{phase} without a stage"
        self.phase = phase

    def join(self) -> Join:
        """Return its Join as of now."""
        join = replace(self.settings.join, held=self.memory.held)
        return join if self.copies is None else replace(join, copies=self.copies)

    def leave(self, reason: str, leaderless: bool = False) -> list[Action]:
        """Join again, as another incarnation: nothing can be done as this one any more.

        leaderless: nobody leads the run any more, so that what this process holds may be the newest there is.
        """
        self.move(PeerPhase.GONE)
        held = self.outlives() if leaderless else self.memory.held
        return [Log("warning", reason), *self.last_promise(), Rejoin(reason, held)]

    def last_promise(self, held: Held | None = None) -> list[Action]:
        """Tell the leader that this incarnation, which may have a vote, ends and follows no other leader.

        held: what it leaves in its folder.
        """
        voter = self.epoch_view is not None and not self.lease.lost and self.leader != self.me
        return [Send(self.leader, Left(self.lease.term, held))] if voter else []

    def takes(self, epoch: Epoch) -> bool:
        """Return whether microbatches of this epoch may be here: of the current one, or one that was begun ahead."""
        return epoch == self.epoch or (self.hops is not None and epoch == self.hops.ahead)

    def void(self, message: Unrepairable | Overflow | NotFinite, reason: str) -> list[Action]:
        """Tell the leader that the step must start over, and remember why, for a leader after it.

        The message is sent once. If the leader dies with it, the step stands still: nobody else knows of it. What voids
        a step that was begun ahead is sent when it is opened: the one before may be committed meanwhile.
        """
        if _epoch_of(message) != self.epoch:
            self.deferred = message, reason
            return []
        if self.epoch_view is not None:
            self.epoch_view.void = reason
        return [Send(self.leader, message)]

    def void_deferred(self) -> list[Action]:
        """Void the step that was begun ahead and is open now, where that is due."""
        deferred, self.deferred = self.deferred, None
        return [] if deferred is None else self.void(*deferred)

    @property
    def alone(self) -> bool:
        """Whether no other process may have what this one holds."""
        if self.needed is not None or self.hops is None:
            return True
        return self.epoch_view is not None and len(self.epoch_view.alive().stages[self.stage]) == 1

    def holds_copies(self, now: float) -> bool:
        """Whether it asks for no part of a copy for now, as the step waits for its sums; copies have time.

        For two minutes at most: where links are slow, most of a step is an all-reduce.
        """
        return self.ballot is not None and not self.ballot.answered and now < self.ballot.began_s + HOLD_COPIES_S

    def loaders_share(self, updates: bool) -> float:
        """Return the share of this peer's uplink that those who load its stage get, however busy it is.

        All steps are slow until a narrow stage has another peer: one that serves it alone gives that one a part of
        its link, and two give it the last updates alone, so that it does not come too late for step after step.
        Otherwise a load takes what is left. updates: it is about these.
        """
        if self.epoch_view is None or self.hops is None:
            return 0.0
        stages = self.epoch_view.alive().stages  # its own and those beside it; of the others it knows nobody
        peers = len(stages[self.stage])
        gives = is_narrow(stages, self.stage) and (updates or peers == 1)
        return LOADERS_SHARE / peers if gives else 0.0

    def outlives(self) -> Held | None:
        """Return what this process holds of the run's state, for the next leader."""
        if self.hops is None:
            return self.memory.held
        sealed = self.ballot.number if self.ballot is not None and self.ballot.sealed else None
        root = self.root[1] if self.root[0] == self.version else ""
        certified = self.certified  # a run that went back makes a version of the same number again
        if certified is not None and (certified.version, certified.roots[self.stage]) != (self.version, root):
            certified = None
        return self.memory.kept(self.stage, self.version, self.epoch_view, sealed, root, certified)


def _epoch_of(message: Unrepairable | Overflow | NotFinite) -> Epoch:
    return message.microbatch.epoch if isinstance(message, Overflow) else message.epoch


def release(bodies: tuple[Ref, ...]) -> list[Action]:
    """Release bytes, if there are any."""
    return [Release(bodies)] if bodies else []
