"""The state of a trainer, which its decisions work on."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.election.candidacy import Candidacy
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.election.term_claims import TermClaims
from swarmflow.core.machines.feeding.trainer_phase import TRAINER, TrainerPhase
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.pipeline.source import MicrobatchSource
from swarmflow.core.protocol.actions import Action, Exit, Log, Rejoin, Send
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import Join, Left
from swarmflow.core.protocol.types import NO_EPOCH, Epoch, Holding, Member, Plan, ProcessId
from swarmflow.core.routing.flow.negotiations import Negotiation

ENDS = (Exit, Rejoin)  # nothing follows them


@dataclass(slots=True)
class TrainerState:
    """The state of a trainer."""

    me: Member
    lease: LeaderLease  # of the leading trainer; of itself while it leads
    plan: Plan
    settings: LeaderSettings  # by which it would lead
    source: MicrobatchSource
    join: Join
    on_disk: int = 0  # the newest version that it could go on from
    roots: tuple[str, ...] = ()  # of the stages of that version
    lead: Leader | None = None
    parts: tuple[Holding, ...] = ()  # what its disk holds of later versions, which are not whole there
    phase: TrainerPhase = field(init=False, default=TRAINER.initial)
    epoch: Epoch = field(init=False, default=NO_EPOCH)
    draining: bool = field(init=False, default=False)
    epoch_view: EpochView | None = field(init=False, default=None)
    peers: set[ProcessId] = field(init=False, default_factory=set)  # of all stages, in the epoch
    candidacy: Candidacy | None = field(init=False, default=None)
    claims: TermClaims = field(init=False, default_factory=TermClaims)  # of later terms than that of its candidacy
    recorded: Epoch = field(init=False, default=NO_EPOCH)  # of the last result that was recorded
    waiting: list[Received] = field(init=False, default_factory=list)  # for the leader that this candidate may become
    flows: Negotiation | None = field(init=False, default=None)  # where the router follows flows
    postponed: str = field(init=False, default="")  # why the leader does not let it in yet

    @property
    def leader(self) -> ProcessId:
        """The trainer that this one follows."""
        return self.lease.leader

    def move(self, to: TrainerPhase) -> None:
        """Enter a phase. A trainer stands with a candidacy, and leads with a leader's machine."""
        phase = TRAINER.move(self.phase, to)
        if phase is not TrainerPhase.ENDED:
            assert (phase is TrainerPhase.STANDING) == (self.candidacy is not None), f"{phase} with {self.candidacy}"
            assert (phase is TrainerPhase.LEADING) == (self.lead is not None), f"{phase} with {self.lead}"
        self.phase = phase

    def joined(self) -> None:
        """Follow the leader, which has let this trainer in."""
        if self.phase is TrainerPhase.JOINING:
            self.move(TrainerPhase.FOLLOWING)

    def give_up_candidacy(self) -> None:
        """Follow instead of standing."""
        if self.candidacy is not None:
            self.candidacy = None
            self.waiting.clear()
            self.move(TrainerPhase.FOLLOWING)

    def end(self) -> None:
        """Decide nothing any more."""
        if self.phase is not TrainerPhase.ENDED:
            self.move(TrainerPhase.ENDED)

    def leave(self, reason: str) -> list[Action]:
        """Join again, as another incarnation: nothing can be done as this one any more."""
        self.end()
        return [Log("warning", reason), *self.last_promise(), Rejoin(reason)]

    def last_promise(self) -> list[Action]:
        """Tell the leader that this incarnation, which may have a vote, ends and follows no other leader."""
        voter = self.epoch_view is not None and not self.lease.lost and self.leader != self.me.process
        return [Send(self.leader, Left(self.lease.term))] if voter else []


def until_end(actions: list[Action]) -> list[Action]:
    """Return the actions up to the end of a process: after that it has nothing to send."""
    ends = next((number for number, action in enumerate(actions) if type(action) in ENDS), None)
    return actions if ends is None else actions[: ends + 1]
