"""A peer on the way of others' tensors, and its own on the way through others."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Action, RunForward, Send
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ForwardComputed,
    InputGradientComputed,
    Received,
    StateLoaded,
    Tick,
)
from swarmflow.core.protocol.messages import (
    Accepted,
    Backward,
    Forward,
    Granted,
    Join,
    LinkRateReport,
    MemberFailed,
    Message,
    OpenStep,
    Probed,
    RelayedTensor,
    RelayTensor,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Member, Plan, ProcessId, Ref, Roster
from swarmflow.core.routing.prober import SHARE
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, of_type, process, released

ME, MATE, UP, DOWN, LEADER, STRANGER = (process(name) for name in ("me", "mate", "up", "down", "t0", "x"))
ROSTER = Roster(((member("up"),), (member("mate", 1), member("me", 1)), (member("down", 2),)), (member("t0", -1),))
INPUT, TARGETS, OUTPUT, GRADIENT, SENT = Ref(1), Ref(2), Ref(3, 64 << 20), Ref(4), Ref(5, 64 << 20)
BYTES = 64 << 20


@dataclass
class Bench:
    """A peer of the middle one of three stages. A tensor takes 64 s from it to the next one, and 1 s from its mate."""

    now: float = 0.0
    peer: PeerMachine = field(init=False)

    def __post_init__(self) -> None:
        join = Join("peer", "1.0", "run", Member(ME, -1))
        self.peer = PeerMachine(ME, LeaderLease(LEADER), Plan(3, 2, boundary_bytes=BYTES), PeerSettings(join))
        self.hear(Granted(1, 1, 0, ()))
        self.event(StateLoaded(1, 0, "digest", 4, (("stage-1", 10),)))
        self.hear(OpenStep(1, EPOCH, ROSTER, LINEAGE))
        self.peer.relays.learn(MATE, LinkRateReport((), ((DOWN, BYTES / 1.0), (UP, BYTES / 1.0))))
        self.peer.relays.learn(UP, LinkRateReport((), ((ME, BYTES / 64.0),)))
        for other, seconds in ((DOWN, 64.0), (MATE, 1.0)):
            self.hear(Probed(EPOCH, loaded=False), other)
            self.now += seconds / SHARE
            self.hear(Probed(EPOCH, loaded=True), other)

    def event(self, event: object) -> list[Action]:
        return self.peer.handle(event, self.now)  # type: ignore[arg-type]

    def hear(self, message: Message, sender: ProcessId = LEADER, bodies: tuple[Ref, ...] = ()) -> list[Action]:
        return self.event(Received(sender, message, bodies))

    def know(self) -> list[Action]:
        """Its next heartbeat: it tells what it has measured, and hears once more of its mate's ways."""
        self.now = self.peer.next_deadline()
        actions = self.event(Tick())
        self.hear(LinkRateReport((), ((DOWN, BYTES / 1.0), (UP, BYTES / 1.0))), MATE)
        return actions

    def forward(self) -> list[Action]:
        self.hear(Forward(microbatch(0), 1, FIRST_ATTEMPT), UP, (INPUT, TARGETS))
        return self.event(ForwardComputed(microbatch(0), OUTPUT))

    def come_back(self) -> None:
        """A microbatch goes to the last stage, and its gradient comes back to here."""
        self.know()
        self.forward()
        self.hear(Accepted(microbatch(0), 2, FIRST_ATTEMPT), DOWN)
        self.hear(Backward(microbatch(0), 1, FIRST_ATTEMPT), DOWN, (GRADIENT,))


def test_what_it_has_measured_is_told_to_the_leader_and_to_those_around() -> None:
    told = messages(Bench().know(), LinkRateReport)
    assert [to for to, _ in told] == [LEADER, MATE, DOWN, UP]
    assert {process_.name for process_, _ in told[0][1].rates} == {"mate", "down"}


def test_a_tensor_goes_around_a_slow_way_and_again_directly_when_who_carries_it_dies() -> None:
    bench = Bench()
    bench.know()
    [(to, carry)] = messages(bench.forward(), RelayTensor)
    assert (to, carry.to, carry.backward) == (MATE, DOWN, None)
    again = bench.hear(MemberFailed(1, EPOCH, MATE, "killed"))
    [(to, sent)] = messages(again, Forward)
    assert (to, sent) == (DOWN, carry.forward)


def test_what_has_arrived_is_not_sent_again() -> None:
    bench = Bench()
    bench.know()
    bench.forward()
    bench.hear(Accepted(microbatch(0), 2, FIRST_ATTEMPT), DOWN)
    assert not messages(bench.hear(MemberFailed(1, EPOCH, MATE, "killed")), Forward)


def test_a_gradient_takes_the_way_back_and_is_given_back_again() -> None:
    bench = Bench()
    bench.come_back()
    [(to, carry)] = messages(bench.event(BackwardComputed(microbatch(0), SENT)), RelayTensor)
    assert (to, carry) == (MATE, RelayTensor(UP, backward=Backward(microbatch(0), 0, FIRST_ATTEMPT)))
    assert messages(bench.hear(MemberFailed(1, EPOCH, MATE, "killed")), Backward) == [(UP, carry.backward)]


def test_a_gradient_that_was_given_before_the_pass_is_over_is_given_back_again_too() -> None:
    """The gradients of the parameters wait until a peer has nothing else to do; its predecessor does not."""
    bench = Bench()
    bench.come_back()
    [(to, carry)] = messages(bench.event(InputGradientComputed(microbatch(0), SENT)), RelayTensor)
    assert (to, carry.to) == (MATE, UP)
    assert messages(bench.hear(MemberFailed(1, EPOCH, MATE, "killed")), Backward) == [(UP, carry.backward)]
    assert not messages(bench.event(BackwardComputed(microbatch(0), None)), Backward), "once is enough"


def test_it_carries_for_others_of_the_epoch_alone() -> None:
    bench = Bench()
    forward = Forward(microbatch(1), 2, FIRST_ATTEMPT)
    actions = bench.hear(RelayTensor(DOWN, forward=forward), MATE, (INPUT, TARGETS))
    [send] = [action for action in of_type(actions, Send) if isinstance(action.message, RelayedTensor)]
    assert (send.to, send.message, send.bodies) == (DOWN, RelayedTensor(MATE, forward=forward), (INPUT, TARGETS))
    assert released(actions) == [INPUT, TARGETS]
    for to in (STRANGER, ME):
        actions = bench.hear(RelayTensor(to, forward=forward), MATE, (INPUT, TARGETS))
        assert not messages(actions, RelayedTensor)
        assert released(actions) == [INPUT, TARGETS]
    actions = bench.hear(RelayTensor(DOWN, forward=forward), STRANGER, (INPUT, TARGETS))
    assert not messages(actions, RelayedTensor), "the leader may name it yet"
    assert not released(actions)


def test_what_was_carried_counts_as_from_who_sent_it() -> None:
    bench = Bench()
    actions = bench.hear(RelayedTensor(UP, forward=Forward(microbatch(0), 1, FIRST_ATTEMPT)), MATE, (INPUT, TARGETS))
    assert of_type(actions, RunForward)
    assert [to for to, _ in messages(actions, Accepted)] == [UP]
    forward = Forward(microbatch(1), 1, FIRST_ATTEMPT)
    for said, carrier in (
        (RelayedTensor(UP), MATE),
        (RelayedTensor(LEADER, forward), MATE),
        (RelayedTensor(UP, forward), STRANGER),
    ):
        actions = bench.hear(said, carrier, (INPUT, TARGETS))
        assert not of_type(actions, RunForward)
        assert released(actions) == [INPUT, TARGETS]
    actions = bench.hear(RelayedTensor(STRANGER, forward), MATE, (INPUT, TARGETS))
    assert not of_type(actions, RunForward), "the leader may name it yet"
    assert not released(actions)
