"""The phases of leaders, members, trainers and peers: histories that may happen, and moves that may not."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise

import pytest

from swarmflow.core.commit.step_phase import STEP, StepPhase
from swarmflow.core.durability.recovery import RECOVERY, RecoveryState
from swarmflow.core.durability.versions import WRITE, WriteState
from swarmflow.core.election.leader_lease import LEASE, LeaderLease
from swarmflow.core.machines.feeding.trainer_phase import TRAINER, TrainerPhase
from swarmflow.core.machines.leading.leader_phase import LEADER, LeaderPhase
from swarmflow.core.machines.serving.peer_phase import PEER, PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerSettings, PeerState
from swarmflow.core.membership.member_phase import MEMBER, MemberPhase
from swarmflow.core.membership.members import Membership
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Plan
from swarmflow.core.transitions import IllegalTransition, Transitions
from tests.core.samples import member, process


@pytest.mark.parametrize(
    ("machine", "history"),
    [
        (STEP, "working complete preparing prepared committing committed"),
        (STEP, "working complete preparing working complete preparing preparing prepared preparing failed"),
        (STEP, "working prepared complete"),
        (STEP, "working committing committed"),
        (LEADER, "gathering running validating unmeasured validating gathering running gathering finished gathering"),
        (LEADER, "gathering saving saving gathering running saving"),
        (MEMBER, "waiting loading failed loading ready loading ready waiting gone"),
        (MEMBER, "waiting barred waiting loading gone"),
        (TRAINER, "joining following standing standing following standing leading ended"),
        (TRAINER, "joining leading ended"),
        (LEASE, "held held lost held"),
        (RECOVERY, "settled open decided open decided settled"),
        (WRITE, "idle copying writing idle copying idle"),
        (PEER, "joining loading loading ready member member loading ready member gone"),
    ],
)
def test_what_may_happen(machine: Transitions[StrEnum], history: str) -> None:
    kind = type(machine.initial)
    states = [kind(name) for name in history.split()]
    assert states[0] is machine.initial
    for before, after in pairwise(states):
        assert machine.move(before, after) is after


@pytest.mark.parametrize(
    ("machine", "state", "to"),
    [
        (STEP, StepPhase.WORKING, StepPhase.PREPARING),
        (STEP, StepPhase.COMMITTING, StepPhase.FAILED),
        (STEP, StepPhase.FAILED, StepPhase.WORKING),
        (LEADER, LeaderPhase.FINISHED, LeaderPhase.RUNNING),
        (LEADER, LeaderPhase.SAVING, LeaderPhase.RUNNING),
        (MEMBER, MemberPhase.GONE, MemberPhase.LOADING),
        (MEMBER, MemberPhase.BARRED, MemberPhase.READY),
        (TRAINER, TrainerPhase.LEADING, TrainerPhase.FOLLOWING),
        (TRAINER, TrainerPhase.FOLLOWING, TrainerPhase.LEADING),
        (RECOVERY, RecoveryState.OPEN, RecoveryState.SETTLED),
        (WRITE, WriteState.IDLE, WriteState.WRITING),
        (PEER, PeerPhase.LOADING, PeerPhase.MEMBER),
        (PEER, PeerPhase.GONE, PeerPhase.JOINING),
    ],
)
def test_what_may_not(machine: Transitions[StrEnum], state: StrEnum, to: StrEnum) -> None:
    with pytest.raises(IllegalTransition, match=f"{to} cannot follow {state}"):
        machine.move(state, to)


def test_a_member_that_cannot_move_stays_as_it_was_and_so_do_the_counts() -> None:
    table = Membership(Plan(1, 1))
    entry = table.enter(Join("peer", "v", "run", member("a")), 0, 0.0)
    table.mark(entry, MemberPhase.BARRED)
    with pytest.raises(IllegalTransition):
        table.mark(entry, MemberPhase.READY)
    assert (entry.phase, table.ready_peers(), table.idle()) == (MemberPhase.BARRED, 0, [entry])


def test_a_peer_that_cannot_move_stays_as_it_was() -> None:
    join = Join("peer", "v", "run", member("a"))
    peer = PeerState(process("a"), LeaderLease(process("t")), Plan(1, 1), PeerSettings(join))
    with pytest.raises(IllegalTransition):
        peer.move(PeerPhase.MEMBER)
    with pytest.raises(AssertionError, match="loading without a stage"):
        peer.move(PeerPhase.LOADING)
    assert peer.phase is PeerPhase.JOINING
