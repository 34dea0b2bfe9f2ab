"""What living peers hold in memory: the newest version that is whole, of one history; and who may go on from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.durability.copies import Copies
from swarmflow.core.durability.memories import Former, Memories
from swarmflow.core.durability.restoring import GRACE_S, Restoring
from swarmflow.core.protocol.messages import Commit, Held, StepResult, state_name
from swarmflow.core.protocol.types import Epoch, Holding, Snapshot
from tests.core.samples import member, process

A, B, C, D = (process(name) for name in "abcd")
HERE, ELSEWHERE = "lineage one", "lineage two"


def commit(version: int) -> Commit:
    """The one that makes a version."""
    epoch = Epoch(0, version - 1)
    result = StepResult(1, epoch, 2.0, 100, 1.0, 1.0, 0.1, 8, (1, 1), 0)
    return Commit(1, epoch, 1, 0.01, 0.1, result)


def name_of(version: int, lineage: str = HERE) -> str:
    return state_name(lineage, Epoch(0, version - 1), 1)


def held(stage: int, version: int, lineage: str = HERE, root: str = "", sealed: bool = False) -> Held:
    """A stage as a member of a step leaves it. sealed: it has reduced the gradient of the next version."""
    upcoming = name_of(version + 1, lineage) if sealed else ""
    return Held(stage, version, name_of(version, lineage), root, commit(version), upcoming)


def memories(**kept: Held) -> Memories:
    """Of two stages; by the names of the peers."""
    found = Memories(2)
    for name, state in kept.items():
        found.record(member(name, -1), state)
    return found


def test_the_newest_version_whose_every_stage_is_held() -> None:
    found = memories(a=held(0, 9), b=held(1, 9), c=held(0, 12)).newest_whole()
    assert found is not None
    assert (found.version, found.holders) == (9, ((A,), (B,)))


def test_states_of_two_histories_are_never_one_version() -> None:
    assert memories(a=held(0, 9, HERE), b=held(1, 9, ELSEWHERE)).newest_whole() is None
    both = memories(a=held(0, 9, HERE), b=held(1, 9, ELSEWHERE), c=held(1, 9, HERE), d=held(1, 9, HERE)).newest_whole()
    assert both is not None
    assert (both.name, both.holders) == (name_of(9, HERE), ((A,), (C, D)))


@pytest.mark.parametrize("liar", ["z", "d"])
def test_a_certificate_of_another_history_does_not_hide_a_version(liar: str) -> None:
    """It was signed in an earlier life of the run, of a version of the same number."""
    told = {name: held(0, 9, root="ra") for name in "ab"} | {name: held(1, 9, root="rb") for name in "ce"}
    old = replace(held(1, 9, root="old b"), certified=Snapshot(9, ("old a", "old b")))
    found = memories(**told, **{liar: old}).newest_whole()
    assert found is not None
    assert found.certified is None
    assert found.holders == ((A, B), (C, process("e")))
    right = {name: replace(each, certified=Snapshot(9, ("ra", "rb"))) for name, each in told.items()}
    found = memories(**right, **{liar: old}).newest_whole()
    assert found is not None
    assert (found.certified, found.holders) == (Snapshot(9, ("ra", "rb")), ((A, B), (C, process("e"))))


def test_strangers_without_a_vote_do_not_outvote_a_certificate() -> None:
    certified = Snapshot(9, ("ra", "rb"))
    found = memories(a=held(0, 9, root="ra"), c=replace(held(1, 9, root="rb"), certified=certified))
    for number in range(3):
        found.record(replace(member(f"s{number}", -1), votes=False), held(1, 9, root="evil"))
    whole = found.newest_whole()
    assert whole is not None
    assert (whole.certified, whole.holders) == (certified, ((A,), (C,)))


def test_who_has_reduced_the_gradient_lacks_the_commit_alone() -> None:
    found = memories(a=held(0, 9), b=held(1, 8, sealed=True)).newest_whole()
    assert found is not None
    assert (found.version, found.commit, found.holders) == (9, commit(9), ((A,), (B,)))
    assert memories(a=held(0, 9), b=held(1, 8)).newest_whole() is None, "it has not reduced it"
    assert memories(a=held(0, 9), b=held(1, 8, ELSEWHERE, sealed=True)).newest_whole() is None, "of another history"
    assert (
        memories(a=held(0, 8, sealed=True), b=held(1, 8, sealed=True)).newest_whole()
        == memories(a=held(0, 8), b=held(1, 8)).newest_whole()
    ), "nobody has heard the commit: the step is done again"


def test_one_whose_parameters_differ_from_its_stages_holds_nothing() -> None:
    found = memories(a=held(0, 9, root="x"), b=held(0, 9, root="y"), c=held(0, 9, root="y"), d=held(1, 9))
    whole = found.newest_whole()
    assert whole is not None
    assert whole.holders == ((B, C), (D,))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(held(0, 9), stage=2),
        replace(held(0, 9), version=0),
        replace(held(0, 9), name="short"),
        replace(held(0, 9), upcoming="short"),
        replace(held(0, 9), commit=commit(8)),
        replace(held(0, 9), root="x" * 1000),
    ],
    ids=["stage", "version", "name", "upcoming", "commit", "root"],
)
def test_what_cannot_be_held_is_left_out(wrong: Held) -> None:
    assert memories(a=wrong).newest() == 0


def test_who_is_gone_holds_nothing() -> None:
    found = memories(a=held(0, 9), b=held(1, 9))
    found.leave(B)
    assert found.newest_whole() is None
    assert found.donors(0, name_of(9), but=C) == (member("a", -1),)
    assert found.donors(0, name_of(9), but=A) == ()


# --- what a leader goes on from ---------------------------------------------------------------------------------------

FORMER = Former(9, frozenset("abcd"))
WAIT_S = 40.0


def restoring(former: Former = FORMER) -> Restoring:
    return Restoring(0, 100.0, 20.0, former, WAIT_S)


def decided(asked: Restoring, found: Memories, now: float, there: str = "", durable: int = 4) -> int | None:
    """The version that a leader goes on from, with the peers of these names there. None: it waits."""
    decision = asked.decide(durable, Copies(2), now, found, frozenset(there))
    assert (decision.memory is not None) == (decision.version is not None and decision.version > durable)
    return decision.version


def test_peers_that_may_hold_a_later_version_are_waited_for() -> None:
    asked = restoring()
    assert decided(asked, memories(), 100.0) is None
    assert decided(asked, memories(a=held(0, 9)), 101.0 + WAIT_S / 2, "ac") is None
    found = memories(a=held(0, 9))
    assert decided(asked, found, 100.0 + WAIT_S, "ac") == 4
    assert not found.later(4), "it is not waited for once more"


def test_nobody_is_waited_for_once_all_that_were_known_are_there() -> None:
    assert decided(restoring(), memories(), 100.0, "abcd") == 4
    assert decided(restoring(), memories(a=held(0, 9), b=held(1, 9)), 100.0, "abcd") == 9


def test_a_whole_version_waits_a_moment_for_a_later_one() -> None:
    asked = restoring()
    assert decided(asked, memories(a=held(0, 9), b=held(1, 9)), 105.0, "ab") is None
    ten = memories(a=held(0, 9), b=held(1, 9, sealed=True), c=held(0, 10))
    assert decided(asked, ten, 109.0, "abc") is None, "the version is another one since now"
    assert decided(asked, ten, 109.0 + GRACE_S, "abc") == 10


def test_what_a_disk_has_is_gone_on_from_at_once() -> None:
    assert decided(restoring(), memories(a=held(0, 9), b=held(1, 9)), 100.0, durable=9) == 9
    assert decided(restoring(Former()), memories(), 100.0) == 4


def test_a_later_version_on_the_disks_of_others_goes_before_memory() -> None:
    copies = Copies(2)
    copies.record(member("c", -1), (Holding(Snapshot(12, ("x", "y")), (0, 1)),))
    decision = restoring().decide(4, copies, 100.0, memories(a=held(0, 9), b=held(1, 9)), frozenset("abcd"))
    assert decision.fetch is not None
    assert decision.fetch.version == 12
