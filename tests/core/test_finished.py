"""A trainer that starts with nothing left to do: the peers of before look for the run, and have to be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.durability.memories import NOTHING, Former
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Exit, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Received, Tick
from swarmflow.core.protocol.messages import Finished, Join
from swarmflow.core.protocol.types import Plan, ProcessId
from tests.core.samples import member, messages, of_type

SETTINGS = LeaderSettings(6, lambda step: 0.1, 0.0, "1.0", "run", from_seed=True, new_lineage=lambda: "new")
PLAN = Plan(1, 3)
VERSION = 9
STARTED_S = 100.0
WAIT_S = PLAN.timeouts.copies_s


def started(former: Former) -> tuple[Leader, list[Action]]:
    """A leader whose steps are all committed, and what follows once its output is written."""
    leader = Leader(member("t0", -1), PLAN, SETTINGS, 1, VERSION, VERSION, ("root",), former=former)
    [write] = of_type(leader.start(STARTED_S), WriteCheckpoint)
    assert write.version == VERSION
    written = CheckpointWritten(VERSION, ok=True, roots=("root",), exported=True, number=write.number)
    return leader, leader.handle(written, STARTED_S)


def join(leader: Leader, name: str, now: float) -> list[Action]:
    peer = member(name, -1)
    return leader.handle(Received(peer.process, Join("peer", "1.0", "run", peer)), now)


def told(actions: list[Action]) -> list[str]:
    return [to.name for to, _ in messages(actions, Finished)]


def test_the_peers_of_before_are_told_that_the_run_is_finished() -> None:
    leader, actions = started(Former(VERSION, frozenset("ab")))
    assert not of_type(actions, Exit)
    assert "the peers that took part" in leader.waiting_for
    assert told(join(leader, "a", STARTED_S + 1.0)) == ["a"]
    assert told(join(leader, "b", STARTED_S + 2.0)) == ["b"]
    end_s = STARTED_S + 2.0 + 2 * PLAN.timeouts.rejoin_s
    assert not of_type(leader.handle(Tick(), end_s - 1.0), Exit)
    last = leader.handle(Tick(), end_s)
    assert of_type(last, Exit)
    assert not told(last), "once"


def test_who_has_not_heard_it_comes_again_and_is_told_again() -> None:
    leader, _ = started(Former(VERSION, frozenset("a")))
    assert told(join(leader, "a", STARTED_S + 1.0)) == ["a"]
    again = replace(member("a", -1), process=ProcessId("a", 2))
    joined = Received(again.process, Join("peer", "1.0", "run", again))
    assert told(leader.handle(joined, STARTED_S + 6.0)) == ["a"]


def test_who_does_not_come_is_not_waited_for_without_end() -> None:
    leader, _ = started(Former(VERSION, frozenset("ab")))
    join(leader, "a", STARTED_S + 1.0)
    assert not of_type(leader.handle(Tick(), STARTED_S + WAIT_S - 1.0), Exit)
    assert of_type(leader.handle(Tick(), STARTED_S + WAIT_S), Exit)


@pytest.mark.parametrize("stopped", [False, True])
def test_nobody_is_waited_for_where_nobody_took_part_or_a_person_wants_to_go(stopped: bool) -> None:
    leader, actions = started(Former(VERSION, frozenset("ab")) if stopped else NOTHING)
    if stopped:
        assert not of_type(actions, Exit)
        leader.stop()
        actions = leader.handle(Tick(), STARTED_S + 1.0)
    assert of_type(actions, Exit)
