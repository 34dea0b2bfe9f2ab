"""The states of the baselines: histories that happen are legal, and others leave the state as it was."""

from __future__ import annotations

from enum import StrEnum

import pytest

from swarmflow.baselines.dispatcher import HOLDERS, BaselineInFlight, HolderState
from swarmflow.baselines.hop import HOP_STATES, BaselineHop, BaselineHopState
from swarmflow.baselines.leader import NEGOTIATIONS, PHASES, BaselinePhase, NegotiationState
from swarmflow.baselines.messages import Trip
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.transitions import IllegalTransition, Transitions

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
