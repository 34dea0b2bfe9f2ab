"""A peer that has outlived every leader keeps its stage in memory, and serves it again where it is what is granted."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Action, Apply, HashState, LoadState, Rejoin, Resume
from swarmflow.core.protocol.events import Applied, Lost, Received, Sealed, StateHashed, StateLoaded
from swarmflow.core.protocol.messages import (
    Evicted,
    Granted,
    Held,
    Join,
    Ready,
    ReportRoot,
    StateRoot,
    VersionCertified,
    state_name,
)
from swarmflow.core.protocol.types import Member, Plan, Snapshot
from tests.core.samples import EPOCH, member, messages, of_type
from tests.core.test_peer_leaders import COMMIT, LEADER, ME, OPENED, PREPARE, RESULTS, Bench

NAME = state_name(OPENED.lineage, EPOCH, COMMIT.ballot)
AT_NEXT = Held(0, EPOCH.step + 1, NAME, "root", COMMIT)
DONOR = (member("d"),)


def left(actions: list[Action]) -> Held | None:
    """What the next life has in memory."""
    [rejoin] = of_type(actions, Rejoin)
    return rejoin.held


def bereft(bench: Bench) -> Held | None:
    """The same, of a peer whose leader dies, and after which nobody leads."""
    bench.lose()
    return left(bench.wait(30))


def sealed(results: tuple[tuple[str, float, str], ...] = RESULTS) -> Bench:
    """A peer that has reduced the gradient of the step's ballot."""
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(PREPARE)
    bench.event(Sealed(EPOCH, PREPARE.ballot, results))
    return bench


def applied() -> Bench:
    """A peer that has applied the commit too."""
    bench = sealed()
    bench.hear(COMMIT)
    bench.event(Applied(EPOCH))
    bench.event(StateHashed(EPOCH.step + 1, "root"))
    return bench


def again(held: Held, granted: Granted) -> tuple[PeerMachine, list[Action]]:
    """The next life of such a peer, which is granted a stage."""
    join = Join("peer", "1.0", "run", Member(ME, -1), held=held)
    peer = PeerMachine(ME, LeaderLease(LEADER), Plan(1, 2), PeerSettings(join))
    return peer, peer.handle(Received(LEADER, granted), 100.0)


# --- what is left -----------------------------------------------------------------------------------------------------


def test_a_peer_keeps_what_a_commit_has_made() -> None:
    assert bereft(applied()) == AT_NEXT


def test_a_state_is_hashed_once_when_its_root_is_asked_for() -> None:
    bench = sealed()
    here, upcoming = ReportRoot(EPOCH.step), ReportRoot(EPOCH.step + 1)
    assert messages(bench.hear(here), StateRoot) == [(LEADER, StateRoot(0, EPOCH.step, "digest"))], "it was loaded"
    assert bench.hear(upcoming) == [], "it is not made yet"
    [apply] = of_type(bench.hear(COMMIT), Apply)
    assert not apply.hashed
    assert bench.hear(here) == bench.hear(upcoming) == [], "the update changes it"
    bench.event(Applied(EPOCH))
    assert bench.hear(here) == []
    assert of_type(bench.hear(upcoming), HashState) == [HashState(EPOCH.step + 1)]
    assert bench.hear(upcoming) == [], "it is being hashed"
    root = StateRoot(0, EPOCH.step + 1, "next")
    assert messages(bench.event(StateHashed(EPOCH.step + 1, "next")), StateRoot) == [(LEADER, root)]
    assert messages(bench.hear(upcoming), StateRoot) == [(LEADER, root)]
    hashing = sealed()
    [apply] = of_type(hashing.hear(replace(COMMIT, hashed=True)), Apply)
    assert apply.hashed
    hashing.event(Applied(EPOCH))
    assert hashing.hear(upcoming) == [], "the commit has asked for it"


def test_the_certificate_of_an_earlier_version_is_not_that_of_what_is_held() -> None:
    for hashed in (True, False):
        bench = sealed()
        bench.hear(VersionCertified(Snapshot(EPOCH.step, ("digest",))))
        bench.hear(COMMIT)
        bench.event(Applied(EPOCH))
        certified = Snapshot(EPOCH.step + 1, ("root",))
        if hashed:
            bench.event(StateHashed(EPOCH.step + 1, "root"))
            bench.hear(VersionCertified(certified))
        root = "root" if hashed else ""
        assert bereft(bench) == replace(AT_NEXT, root=root, certified=certified if hashed else None)


def test_an_update_that_is_under_way_is_ended_first() -> None:
    bench = sealed()
    bench.hear(COMMIT)
    assert bereft(bench) == replace(AT_NEXT, root="")


def test_a_reduced_gradient_is_kept_for_the_commit_that_was_not_heard() -> None:
    assert bereft(sealed()) == Held(0, EPOCH.step, "", "digest", None, NAME)


def test_a_sum_in_which_a_bit_has_flipped_is_not_kept() -> None:
    """The step may be committed without this peer."""
    [(group, norm, _)] = RESULTS
    assert bereft(sealed(((group, norm, ""),))) is None


def test_what_was_loaded_is_kept_with_the_commit_that_had_made_it() -> None:
    """Nobody else may be left who can tell the step's result."""
    bench = Bench()
    bench.hear(Granted(1, 0, EPOCH.step + 1, DONOR, 3, NAME, COMMIT))
    bench.event(StateLoaded(0, EPOCH.step + 1, "digest", 4, (("stage-0", 10),)))
    assert left(bench.event(Lost(LEADER, "killed"))) == replace(AT_NEXT, root="digest")


def test_a_commit_that_did_not_make_what_is_granted_is_not_believed() -> None:
    bench = Bench()
    bench.hear(Granted(1, 0, EPOCH.step + 2, DONOR, 3, NAME, COMMIT))
    bench.event(StateLoaded(0, EPOCH.step + 2, "digest", 4, (("stage-0", 10),)))
    assert left(bench.event(Lost(LEADER, "killed"))) == Held(0, EPOCH.step + 2, NAME, "digest")


def test_what_was_loaded_from_a_disk_is_not_kept() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    assert bereft(bench) is None


def test_a_commit_that_was_heard_makes_nothing_of_a_state_that_was_loaded_after_it() -> None:
    bench = sealed()
    bench.hear(COMMIT)
    bench.hear(Granted(1, 0, EPOCH.step, DONOR, 3))
    bench.event(StateLoaded(0, EPOCH.step, "digest", 4, (("stage-0", 10),)))
    assert bereft(bench) is None


def test_a_peer_that_its_leader_sends_away_keeps_nothing() -> None:
    assert left(applied().hear(Evicted("its parameters differ from its stage's"))) is None


# --- what comes of it -------------------------------------------------------------------------------------------------


def test_who_holds_what_is_granted_loads_nothing() -> None:
    peer, actions = again(AT_NEXT, Granted(1, 0, 1, DONOR, 3, NAME))
    assert of_type(actions, Resume) == [Resume(0, 1)]
    assert not of_type(actions, LoadState)
    loaded = peer.handle(StateLoaded(0, 1, "digest", 4, (("stage-0", 10),)), 101.0)
    assert messages(loaded, Ready) == [(LEADER, Ready(0, 1, "digest", 4, 3))]
    assert peer.memory.commit == COMMIT, "for the leader after this one"


def test_who_lacks_the_commit_applies_it() -> None:
    lacking = Held(0, EPOCH.step, "", "", None, NAME)
    _, actions = again(lacking, Granted(1, 0, 1, DONOR, 3, NAME, COMMIT))
    assert of_type(actions, Resume) == [Resume(0, 1, Apply(EPOCH, COMMIT.scale, COMMIT.learning_rate))]


def test_anything_else_is_loaded_and_what_was_held_is_let_go_of() -> None:
    other = state_name("another lineage", EPOCH, COMMIT.ballot)
    lacking = Held(0, EPOCH.step, "", "", None, NAME)
    for held, granted in (
        (AT_NEXT, Granted(1, 0, 1, DONOR, 3, other)),
        (AT_NEXT, Granted(1, 0, 1, DONOR, 3)),
        (AT_NEXT, Granted(1, 0, 9, DONOR, 3, NAME)),
        (replace(AT_NEXT, stage=1), Granted(1, 0, 1, DONOR, 3, NAME)),
        (lacking, Granted(1, 0, 1, DONOR, 3, NAME)),
        (lacking, Granted(1, 0, 1, DONOR, 3, other, COMMIT)),
    ):
        peer, actions = again(held, granted)
        assert of_type(actions, LoadState) == [LoadState(0, granted.version, DONOR)]
        assert peer.join().held is None


def test_it_is_kept_until_it_is_served_should_that_leader_be_lost_too() -> None:
    peer, _ = again(AT_NEXT, Granted(1, 0, 1, DONOR, 3, NAME))
    assert left(peer.handle(Lost(LEADER, "killed"), 100.0)) == AT_NEXT
