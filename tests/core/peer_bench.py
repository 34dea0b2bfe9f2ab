"""A peer that serves a run with one stage, for tests of what its machine does."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Event, LossComputed, Received, StateLoaded
from swarmflow.core.protocol.messages import Forward, Granted, Join, Message, OpenStep, Prepare, StepResult, Tally
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Group, Member, Plan, ProcessId, Ref, Roster
from tests.core.samples import EPOCH, LINEAGE, member, microbatch, process

ME, MATE, LEADER, STRANGER = process("me"), process("mate"), process("t0"), process("x")
ROSTER = Roster(((member("mate"), member("me")),), (member("t0", -1),))
INPUT, TARGETS, GRADIENT = Ref(1), Ref(2), Ref(3)
ELEMENTS = (("stage-0", 10), ("tied", 10))
TALLY = Tally(2.0, 2, 0)
RESULT = StepResult(1, EPOCH, 2.0, 2, 1.0, 1.0, 0.1, 1, (2,), 0)


@dataclass
class Bench:
    """A peer of a run with one stage."""

    stay: bool = False
    now: float = 0.0
    peer: PeerMachine = field(init=False)

    def __post_init__(self) -> None:
        join = Join("peer", "1.0", "run", Member(ME, -1))
        self.peer = PeerMachine(ME, LeaderLease(LEADER), Plan(1, 2), PeerSettings(join, stay=self.stay))

    def event(self, event: Event) -> list[Action]:
        return self.peer.handle(event, self.now)

    def hear(self, message: Message, sender: ProcessId = LEADER, bodies: tuple[Ref, ...] = ()) -> list[Action]:
        return self.event(Received(sender, message, bodies))

    def serve(self, roster: Roster = ROSTER) -> list[Action]:
        self.hear(Granted(1, 0, 0, ()))
        self.event(StateLoaded(0, 0, "digest", 4, ELEMENTS))
        return self.hear(OpenStep(1, EPOCH, roster, LINEAGE))

    def work(self, index: int = 0) -> None:
        self.hear(Forward(microbatch(index), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS))
        self.event(LossComputed(microbatch(index), 2.0, 1, GRADIENT))

    def prepare(self, ballot: int = 1, members: tuple[ProcessId, ...] = (ME,)) -> list[Action]:
        return self.hear(
            Prepare(1, EPOCH, ballot, ((0, FIRST_ATTEMPT),), (Group("stage-0", members, ballot=ballot),), TALLY)
        )
