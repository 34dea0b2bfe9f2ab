"""What a trainer knows and holds; everything that it decides works on this."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Exit, Log, Rejoin, Send
from swarmflow.core.candidacy import Candidacy
from swarmflow.core.epoch_view import EpochView
from swarmflow.core.events import Received
from swarmflow.core.flow.live import FlowNegotiation
from swarmflow.core.leader import Leader
from swarmflow.core.leader_lease import LeaderLease
from swarmflow.core.messages import Join, Left
from swarmflow.core.settings import LeaderSettings
from swarmflow.core.source import MicrobatchSource
from swarmflow.core.types import BEFORE_ALL, Epoch, Holding, Member, Plan, ProcessId


@dataclass(slots=True)
class TrainerState:
    """The state of a trainer. lease: the leading one; itself when `lead` is set.

    settings: by which it would lead. on_disk: the newest version that it could go on from; digests: of its files.
    parts: what its disk holds of later ones, which are not whole there. waiting: what was said to this candidate as if
    it led already. flows: its part in their negotiation, where the router follows them. postponed: why the leader does
    not let it in yet.
    """

    me: Member
    lease: LeaderLease
    plan: Plan
    settings: LeaderSettings
    source: MicrobatchSource
    join: Join
    on_disk: int = 0
    digests: tuple[str, ...] = ()
    lead: Leader | None = None
    joined: bool = False
    epoch: Epoch = BEFORE_ALL
    ended: bool = False
    draining: bool = False
    epoch_view: EpochView | None = None
    candidacy: Candidacy | None = None
    recorded: Epoch = BEFORE_ALL
    waiting: list[Received] = field(default_factory=list)
    flows: FlowNegotiation | None = None
    postponed: str = ""
    parts: tuple[Holding, ...] = ()

    @property
    def leader(self) -> ProcessId:
        """Whom this trainer follows."""
        return self.lease.leader

    def leave(self, reason: str) -> list[Action]:
        """Nothing can be done as this incarnation any more: join again, as another one."""
        self.ended = True
        return [Log("warning", reason), *self.last_promise(), Rejoin(reason)]

    def last_promise(self) -> list[Action]:
        """Tell the leader that this life, which may have a vote, follows nobody after it: it ends."""
        voter = self.epoch_view is not None and self.lease.lost_s is None and self.leader != self.me.process
        return [Send(self.leader, Left(self.lease.term))] if voter else []


def until_end(actions: list[Action]) -> list[Action]:
    """What a process does, up to its end: after that it has nothing to send, and decides for nobody."""
    ends = next((number for number, action in enumerate(actions) if type(action) in _ENDS), None)
    return actions if ends is None else actions[: ends + 1]


_ENDS = (Exit, Rejoin)
