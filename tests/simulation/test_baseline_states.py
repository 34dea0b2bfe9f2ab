"""The states of the baselines: histories that happen are legal, and others leave the state as it was."""

from __future__ import annotations

from enum import StrEnum

import pytest

from swarmflow.baselines.dispatcher import HOLDERS, BaselineInFlight, HolderState
from swarmflow.baselines.hop import HOP_STATES, BaselineHop, BaselineHopState
from swarmflow.baselines.leader import NEGOTIATIONS, PHASES, BaselineLeader, BaselinePhase, NegotiationState
from swarmflow.baselines.messages import BaselineJoin, BaselineReady, Learnt, Trip, Updated
from swarmflow.baselines.pipelines import NoPipelines
from swarmflow.baselines.placement import BaselineLeaderSettings
from swarmflow.core.protocol.types import Plan, ProcessId
from swarmflow.core.transitions import IllegalTransition, Transitions
from tests.simulation.test_baseline_hops import Computer

TRAINER, PEER = ProcessId("t0", 1), ProcessId("p0", 2)


@pytest.mark.parametrize(
    ("machine", "history"),
    [
        (HOLDERS, (HolderState.ASKED, HolderState.WAITING, HolderState.ASKED, HolderState.HELD, HolderState.WAITING)),
        (HOLDERS, (HolderState.CLAIMING, HolderState.WAITING, HolderState.CLAIMING, HolderState.HELD)),
        (HOP_STATES, tuple(BaselineHopState)[1:]),
        (HOP_STATES, (BaselineHopState.FORWARD, BaselineHopState.DONE)),
        (PHASES, tuple(BaselinePhase)[1:]),
        (PHASES, (BaselinePhase.RUNNING, BaselinePhase.UPDATING, BaselinePhase.GATHERING, BaselinePhase.RUNNING)),
        (NEGOTIATIONS, tuple(NegotiationState)[1:]),
    ],
)
def test_what_happens_is_legal(machine: Transitions[StrEnum], history: tuple[StrEnum, ...]) -> None:
    state = machine.initial
    for following in history:
        state = machine.move(state, following)
    assert state is history[-1]


def test_a_peer_that_was_not_asked_cannot_hold_a_microbatch() -> None:
    entry = BaselineInFlight(Trip(0, 0), TRAINER, 100)
    with pytest.raises(IllegalTransition):
        entry.enter(HolderState.HELD, PEER)
    assert (entry.state, entry.holder) == (HolderState.WAITING, None)
    with pytest.raises(AssertionError):
        entry.enter(HolderState.ASKED, None)


def test_a_hop_runs_forward_before_backward() -> None:
    hop = BaselineHop(Trip(0, 0), TRAINER, TRAINER, attempt=1, repair=())
    with pytest.raises(IllegalTransition):
        hop.enter(BaselineHopState.BACKWARD)
    assert hop.state is BaselineHopState.RESERVED
    hop.enter(BaselineHopState.FORWARD)
    hop.enter(BaselineHopState.COMPUTED)
    with pytest.raises(AssertionError):
        hop.enter(BaselineHopState.BACKWARD)


def test_nothing_follows_the_last_iteration() -> None:
    for phase in BaselinePhase:
        with pytest.raises(IllegalTransition):
            PHASES.move(BaselinePhase.FINISHED, phase)


def test_an_iteration_ends_where_the_last_peer_that_was_awaited_is_moved() -> None:
    """Of two peers of stage 0 one has updated, and the other takes over stage 1, whose only peer dies."""
    ended: list[int] = []
    settings = BaselineLeaderSettings(Plan(2, 1), iterations=3, peers_first=3, rebalance_s=0.0, silence_s=0.0)
    leader = BaselineLeader(Computer(), settings, NoPipelines(), lambda iteration, *_: ended.append(iteration))
    leader.received(TRAINER, BaselineJoin(-1, 0.0))
    peers = [ProcessId(f"p{number}", 1) for number in range(3)]
    for peer in peers:
        leader.received(peer, BaselineJoin(-1, 1.0, 4))
    for peer in peers:
        leader.received(peer, BaselineReady(leader.placement.known[peer].stage))
    updated, alone, moved = peers
    assert leader.placement.serving() == ((updated, moved), (alone,))
    leader.received(TRAINER, Learnt(Trip(0, 0), (updated, alone), 1.0))
    leader.received(updated, Updated(0))
    leader.lost(alone)
    assert leader.placement.known[moved].stage == 1
    assert (leader.phase, ended) == (BaselinePhase.GATHERING, [0])
