"""Who was put out stays outside while a leader looks for the version to go on from, and when it has gone back."""

from __future__ import annotations

import pytest

from swarmflow import latest
from swarmflow.core.durability.memories import Former
from swarmflow.core.machines.leading.departures import bar
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Lost
from swarmflow.core.protocol.messages import Granted, Heartbeat, Join, Suspect
from swarmflow.core.protocol.types import Member, ProcessId
from tests.core import test_restoring
from tests.core.samples import messages
from tests.core.test_memories import held
from tests.core.test_restoring import TIMEOUTS, A, B, C, D


class Bench(test_restoring.Bench):
    """A leader of two stages, and peers that serve the stage that they ask for alone."""

    def ask(self, who: ProcessId, stage: int) -> list[Action]:
        return self.hear(who, Join("peer", "1.0", "run", Member(who, stage, 4)))

    def phase_of(self, who: ProcessId) -> str:
        return self.leader.membership.known[who].phase


def granted(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, Granted)]


def test_a_run_that_goes_back_grants_nothing_to_who_was_put_out() -> None:
    bench = Bench(on_disk=4)
    for peer, stage in ((A, 0), (B, 1), (C, 0), (D, 1)):
        bench.ask(peer, stage)
    bench.serve(A, B, C)
    bar(bench.leader, C, "its gradient is not finite", bench.now)
    again = ProcessId(C.name, 2)
    assert not granted(bench.ask(again, 0))
    bench.leader.last, bench.leader.version = None, 9
    assert granted(bench.leader.handle(Lost(B, "killed"), bench.now)) == [A, D]
    assert (bench.leader.version, bench.phase_of(again)) == (4, "barred")
    assert granted(bench.leader.handle(Lost(A, "killed"), bench.now)) == [again], "the stage has nobody else"


def test_who_was_put_out_and_joins_while_the_version_is_looked_for_waits_for_its_time() -> None:
    bench = Bench(on_disk=4, known=9)
    bench.leader.faults.bars.begin(C.name, "computed what is not finite", bench.now)
    for peer, stage in ((A, 0), (B, 1), (C, 0)):
        assert not granted(bench.ask(peer, stage))
    assert granted(bench.wait(int(TIMEOUTS.copies_s) + 1, A, B, C)) == [A, B]
    bench.serve(A, B)
    assert granted(bench.wait(int(TIMEOUTS.barred_s), A, B, C)) == [C]


def test_whose_time_is_over_while_the_version_is_looked_for_is_granted_it_with_all_others() -> None:
    bench = Bench(known=9)
    bench.leader.faults.bars.begin(C.name, "computed what is not finite", bench.now)
    bench.ask(A, 0)
    bench.ask(C, 0)
    assert not granted(bench.wait(int(TIMEOUTS.barred_s) + 1, A, C)), "nothing is loaded before that is known"
    assert bench.phase_of(C) == "waiting"


def test_who_was_put_out_and_alone_holds_a_stage_in_memory_is_granted_it() -> None:
    bench = Bench(on_disk=4, former=Former(9, frozenset("bc")))
    bench.leader.faults.bars.begin(C.name, "computed what is not finite", bench.now)
    bench.join_again(C, held(0, 9))
    assert granted(bench.join_again(B, held(1, 9))) == [B, C]
    assert bench.leader.version == 9


def test_what_who_was_put_out_holds_of_a_later_version_is_given_up_with_that_version() -> None:
    bench = Bench(on_disk=4)
    bench.leader.faults.bars.begin(C.name, "computed what is not finite", bench.now)
    bench.ask(A, 0)
    bench.ask(B, 1)
    bench.join_again(C, held(0, 9))
    actions = bench.wait(int(TIMEOUTS.memory_s) + 1, A, B, C)
    assert granted(actions) == [A, B]
    assert bench.leader.recovery.memories.of(C) is None
    assert not messages(bench.hear(C, Heartbeat()), Granted)


def test_a_leader_remembers_the_latest_of_those_that_come_under_ever_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latest, "ENTRIES_MAX", 3)
    bench = Bench(on_disk=4)
    faults = bench.leader.faults
    for number in range(6):
        liar = ProcessId(f"x{number}", 1)
        bench.ask(liar, -1)
        bench.hear(liar, Suspect(liar, "itself"))
    assert list(faults.refused) == list(faults.wrong_s) == ["x3", "x4", "x5"]
    again = ProcessId("x3", 2)
    bench.ask(again, -1)
    bench.hear(again, Suspect(again, "itself"))
    assert list(faults.refused) == ["x4", "x5", "x3"]
