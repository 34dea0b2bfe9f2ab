"""Swarms of which some members lie plausibly: they learn all the same, and every honest process stays in the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.messages import Adopt, Done, Forward, NotFinite, Overflow, RelayTensor, ReserveSlot
from swarmflow.simulator.fuzz import Hunt, main, play
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.lying import LIES
from tests.further import found

LIARS = Hunt(liars=True)
FOUND = (  # by `python -m swarmflow.simulator.fuzz --liars`
    152,  # a report to a candidate told of a step that was begun ahead, in a run without a delay
    178,  # the first peer that was ready alone said what the first version is
    183,  # the same, and that peer had died since
    1_000_200,  # an all-reduce that a liar had held up ended: who then owed an update was late for it at once
    1_001_814,  # a gradient came from a peer that was asked for a slot, and was taken
    1_001_898,  # sums differed, their owner had to go for it, and so had whom it had sent another one
    1_003_191,  # of two whose states differed an honest one was kept out, and not the one that had been outvoted before
    1_008_136,  # a leader that took over believed a report of a hop that its giver had not been given
    1_010_538,  # a liar kept its Done back, and the trainer whose microbatch it was had to go
    1_011_875,  # of two that did not agree the one was left out that had not made the step fail before
    74_014,  # a repair came before the Prepare of the ballot amid which the other one had died, and nobody knew that
)


FOUND_DELAYED = (
    1_102_040,  # the only peer of the first stage had a trainer answer what cannot be, and took nothing of it any more
    1_102_877,  # a leader died in a step that was begun ahead, before another trainer came: some microbatches had none
    1_103_614,  # a peer of the first stage answered no question, and the trainer that waited for it was put out
)


@pytest.mark.parametrize("seed", found(FOUND, 1))
def test_no_lie_splits_a_run_or_stops_it_or_ends_an_honest_process(seed: int) -> None:
    play(seed, LIARS)


@pytest.mark.parametrize("seed", found(FOUND_DELAYED, 1))
def test_no_lie_does_where_updates_are_delayed(seed: int) -> None:
    play(seed, replace(LIARS, delay=1))


def test_liars_send_whatever_a_peer_may_send() -> None:
    assert {Done, Overflow, NotFinite, Forward, ReserveSlot, Adopt, RelayTensor} <= set(LIES)
    sent = set[str]()
    for seed in range(4):
        liars = play(seed, LIARS).transport.liars
        assert liars is not None
        sent |= liars.sent.keys()
    assert len(sent) > len(LIES) / 2


def test_an_honest_process_that_is_kept_out_where_nothing_else_goes_wrong_is_a_violation() -> None:
    liars = play(1118, LIARS).transport.liars
    assert liars is not None
    liars.check_calm()
    [honest, *_] = sorted({process.name for process in liars.world.alive_peers()} - liars.world.liars)
    liars.world.log.append(f"    1.000   t0 {honest}.0001 is gone: it did nothing: put out for 60 s")
    with pytest.raises(InvariantViolated, match="kept out"):
        liars.check_calm()


def test_the_command_says_how_to_replay_a_seed_with_liars() -> None:
    assert str(LIARS) == " --liars"
    assert main(["1", "--liars"]) == 0
