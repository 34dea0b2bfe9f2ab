"""Who keeps which copies, when a version is safe with others, and what a leader goes on from."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.durability.copies import UNTIDIED_MAX, Copies
from swarmflow.core.durability.restoring import Restoring
from swarmflow.core.durability.snapshots import Taken
from swarmflow.core.protocol.actions import Action, Log
from swarmflow.core.protocol.messages import KeepCopy, Surplus
from swarmflow.core.protocol.types import Holding, Member, ProcessId, Snapshot
from tests.core.samples import member, messages, of_type

ME = member("t0", -1)
AT_4, AT_8 = Snapshot(4, ("a", "b", "c")), Snapshot(8, ("d", "e", "f"))
OF_ANOTHER_HISTORY = Snapshot(8, ("d", "x", "y"))
STAGES = 3
SIX = [member(f"p{number}", number % STAGES) for number in range(6)]


def asked(actions: list[Action]) -> dict[str, tuple[int, ...]]:
    return {to.name: keep.stages for to, keep in messages(actions, KeepCopy)}


def answer(copies: Copies, who: Member, snapshot: Snapshot, stages: tuple[int, ...], failed: str = "") -> list[Action]:
    copies.record(who, (Holding(snapshot, stages),) if stages else ())
    return copies.kept(who.process, failed, snapshot.version, snapshot.version)


@dataclass
class Disks:
    """Peers that copy what they are asked for, and delete nothing."""

    copies: Copies = field(default_factory=lambda: Copies(STAGES))
    peers: list[Member] = field(default_factory=lambda: SIX)
    held: dict[str, dict[Snapshot, set[int]]] = field(default_factory=dict)
    told: list[Action] = field(default_factory=list)  # what followed from the last round's answers

    def round(self, snapshot: Snapshot) -> dict[str, tuple[int, ...]]:
        """What the peers are asked to copy now; they do."""
        wanted = asked(self.copies.spread(snapshot, ME, self.peers, 0.0))
        self.told = [] if wanted else self.told
        for peer in self.peers:
            if (name := peer.process.name) in wanted:
                mine = self.held.setdefault(name, {})
                mine.setdefault(snapshot, set()).update(wanted[name])
                self.copies.record(peer, [Holding(each, tuple(sorted(stages))) for each, stages in mine.items()])
                self.told += self.copies.kept(peer.process, "", snapshot.version, snapshot.version)
        return wanted

    def spread(self, snapshot: Snapshot) -> list[dict[str, tuple[int, ...]]]:
        """All rounds until nobody is asked any more."""
        return list(iter(lambda: self.round(snapshot), {}))


def all_of(rounds: list[dict[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """What each peer holds after these rounds."""
    names = sorted({name for each in rounds for name in each})
    return {name: tuple(sorted(stage for each in rounds for stage in each.get(name, ()))) for name in names}


def test_each_stage_lies_with_one_peer_of_another_stage_and_then_with_two_and_all_keep_alike_much() -> None:
    rounds = Disks().spread(AT_4)
    assert [sorted(stage for stages in each.values() for stage in stages) for each in rounds] == [[0, 1, 2]] * 2
    wanted = all_of(rounds)
    for stage in range(STAGES):
        keepers = [peer for peer in SIX if stage in wanted.get(peer.process.name, ())]
        assert len(keepers) == 2
        assert all(peer.stage != stage for peer in keepers)
        assert len({peer.stage for peer in keepers}) == 2, "no single stage takes both along"
    assert [len(stages) for stages in wanted.values()] == [1] * 6
    assert rounds == Disks(peers=SIX[::-1]).spread(AT_4), "whatever the order in which they are named"


def test_where_there_are_few_peers_each_keeps_more() -> None:
    assert all_of(Disks(peers=SIX[:3]).spread(AT_4)) == {"p0": (1, 2), "p1": (0, 2), "p2": (0, 1)}
    assert Disks(peers=SIX[:1]).spread(AT_4) == [{"p0": (0, 1, 2)}]
    assert Disks(peers=[]).spread(AT_4) == []
    assert all_of(Disks(Copies(1), SIX[::3]).spread(Snapshot(4, ("a",)))) == {"p0": (0,), "p3": (0,)}


def test_nobody_is_asked_for_what_it_holds_or_copies_already() -> None:
    disks = Disks()
    assert asked(disks.copies.spread(AT_4, ME, SIX, 0.0)) != {}
    assert asked(disks.copies.spread(AT_4, ME, SIX, 0.0)) == {}, "the second copies wait for the first"
    disks = Disks()
    wanted = all_of(disks.spread(AT_4))
    [lost] = wanted["p5"]
    disks.copies.leave(SIX[5].process)
    again = asked(disks.copies.spread(AT_4, ME, SIX[:5], 0.0))
    assert list(again.values()) == [(lost,)], "one copy is missing, and one is made"


def test_who_has_no_room_is_not_asked_again_for_that_version() -> None:
    copies = Copies(1)
    one = Snapshot(4, ("a",))
    assert asked(copies.spread(one, ME, SIX[:1], 0.0)) == {"p0": (0,)}
    answer(copies, SIX[0], one, (), "no space left")
    assert asked(copies.spread(one, ME, SIX[:1], 0.0)) == {}
    assert asked(copies.spread(Snapshot(8, ("b",)), ME, SIX[:1], 0.0)) == {"p0": (0,)}


def test_a_newer_version_waits_until_the_one_under_way_is_copied() -> None:
    copies = Copies(STAGES)
    first = asked(copies.spread(AT_4, ME, SIX, 0.0))
    assert copies.spreading == 4
    assert copies.spread(AT_8, ME, SIX, 0.0) == []
    for peer in SIX:
        if peer.process.name in first:
            answer(copies, peer, AT_4, first[peer.process.name])
    assert copies.spreading == -1
    assert asked(copies.spread(AT_8, ME, SIX, 0.0))


def test_a_peer_that_never_answers_holds_up_no_later_version_and_is_asked_for_nothing_until_it_does() -> None:
    copies, three = Copies(STAGES, patience_s=100.0), SIX[:3]
    first = asked(copies.spread(AT_4, ME, three, 10.0))
    for peer in three[:2]:
        answer(copies, peer, AT_4, first[peer.process.name])
    assert not copies.overdue(110.0)
    copies.slept(50.0)
    assert (copies.overdue(160.0), copies.spreading) == ([], 4)
    assert [log.process for log in of_type(copies.overdue(161.0), Log)] == [SIX[2].process]
    assert not copies.overdue(162.0), "once"
    assert set(asked(copies.spread(AT_8, ME, three, 170.0))) == {"p0", "p1"}
    assert copies.spreading == 8
    for peer in three[:2]:
        answer(copies, peer, AT_8, (0, 1, 2))
    assert not answer(copies, SIX[2], AT_4, first["p2"]), "what it has too late makes no later version superfluous"
    assert "p2" in asked(copies.spread(AT_8, ME, [SIX[2]], 200.0))
    assert not copies.overdue(400.0), "it has twice as long the second time"
    assert copies.overdue(401.0)


def test_the_next_version_waits_where_copies_come_more_slowly_than_versions() -> None:
    """A disk reports HOLDINGS_MAX versions: with more, the one that is copied would lie there unseen."""
    copies, three = Copies(STAGES), SIX[:3]
    first = asked(copies.spread(AT_4, ME, three, 0.0))
    for more in range(UNTIDIED_MAX):
        assert not copies.crowded
        copies.take(Taken(Snapshot(AT_4.version + 1 + more, ("a", "b", "c")), tuple(three)))
    assert copies.crowded
    told = [action for peer in three for action in answer(copies, peer, AT_4, first[peer.process.name])]
    assert messages(told, Surplus)
    assert not copies.crowded


def test_an_older_generation_goes_when_the_newest_but_one_is_whole() -> None:
    disks, told = Disks(), list[list[tuple[ProcessId, Surplus]]]()
    for snapshot in (AT_4, AT_8, Snapshot(12, ("g", "h", "i"))):
        disks.round(snapshot)
        told.append(messages(disks.told, Surplus))
        disks.spread(snapshot)
    ranges = [{(surplus.oldest, surplus.newest) for _, surplus in each} for each in told]
    assert ranges == [{(4, 4)}, {(4, 8)}, {(8, 12)}]
    holders = [{to.name for to, _ in each} for each in told]
    assert holders[0] <= holders[1] == holders[2] == {peer.process.name for peer in SIX}


def test_nothing_is_given_up_while_a_stage_of_the_new_version_is_missing() -> None:
    disks = Disks()
    disks.spread(AT_4)
    copies = disks.copies
    wanted = asked(copies.spread(AT_8, ME, SIX, 0.0))
    unable = min(wanted)
    for peer in SIX:
        mine = wanted.get(peer.process.name, ())
        if peer.process.name == unable:
            assert not messages(answer(copies, peer, AT_8, (), "no space left"), Surplus)
        elif mine:
            assert not messages(answer(copies, peer, AT_8, mine), Surplus)
    assert copies.missing(AT_8) == list(wanted[unable])


def test_a_leader_remembers_of_no_more_versions_than_lie_on_disks_that_they_were_whole() -> None:
    copies = Copies(1)
    for version in range(1, 20):
        snapshot = Snapshot(version, (str(version),))
        copies.spread(snapshot, ME, SIX[:1], 0.0)
        assert messages(answer(copies, SIX[0], snapshot, (0,)), Surplus)
    assert len(copies._whole) == 1


def test_two_versions_of_one_number_are_not_one_whole() -> None:
    copies = Copies(STAGES)
    copies.record(SIX[0], (Holding(AT_8, (0, 1)),))
    copies.record(SIX[1], (Holding(OF_ANOTHER_HISTORY, (2,)),))
    assert copies.newest_whole() is None
    copies.record(SIX[2], (Holding(AT_4, (0, 1, 2)),))
    assert copies.newest_whole() == AT_4
    copies.record(SIX[1], (Holding(AT_8, (2,)),))
    assert copies.newest_whole() == AT_8
    assert [[m.process.name for m in stage] for stage in copies.roster(AT_8).stages] == [["p0"], ["p0"], ["p1"]]


def test_what_cannot_be_true_is_not_believed() -> None:
    copies = Copies(STAGES)
    wrong = [Holding(Snapshot(9, ("a",)), (0,)), Holding(Snapshot(-1, ("a", "b", "c")), (0,))]
    copies.record(SIX[0], (*wrong, Holding(AT_4, (0, 7, -1))))
    assert copies.newest_known() == AT_4
    assert copies.missing(AT_4) == [1, 2]
    many = tuple(Holding(Snapshot(version, ("a", "b", "c")), (0,)) for version in range(1, 100))
    copies.record(SIX[1], many)
    assert copies.newest_known() == many[7].snapshot


# --- which version to go on from --------------------------------------------------------------------------------------


def holding(**by_peer: tuple[Snapshot, tuple[int, ...]]) -> Copies:
    copies = Copies(STAGES)
    for name, (snapshot, stages) in by_peer.items():
        copies.record(member(name), (Holding(snapshot, stages),))
    return copies


def test_a_new_run_begins_at_once() -> None:
    assert Restoring(0, 0.0, 20.0).decide(0, Copies(STAGES), 0.0).version == 0


def test_a_later_version_that_is_whole_is_fetched() -> None:
    copies = holding(p0=(AT_8, (0, 1)), p1=(AT_8, (2,)))
    for durable in (0, 4):
        decision = Restoring(0, 0.0, 20.0).decide(durable, copies, 0.0)
        assert (decision.fetch, decision.version) == (AT_8, None)
    assert Restoring(8, 0.0, 20.0).decide(8, copies, 0.0).version == 8


def test_a_version_that_is_known_is_waited_for_without_end_where_there_is_no_other() -> None:
    restoring = Restoring(0, 0.0, 20.0)
    decision = restoring.decide(0, holding(p0=(AT_8, (0, 2))), 1.0)
    assert (decision.version, decision.fetch) == (None, None)
    assert decision.reason == (
        "version 8, of which nobody here holds stage 1: start the peers and trainers that kept it"
    )
    later = restoring.decide(0, Copies(STAGES), 1e6)
    assert later.version is None, "whoever held it is gone, but the run was there"
    assert later.reason == "version 8, which nobody here holds: start the peers and trainers that kept it"


def test_an_earlier_version_on_the_own_disk_is_gone_on_from_after_a_while() -> None:
    restoring = Restoring(8, 100.0, 20.0)
    assert restoring.decide(4, Copies(STAGES), 119.9).version is None
    assert restoring.decide(4, Copies(STAGES), 120.0).version == 4


def test_what_could_not_be_fetched_is_not_fetched_again_at_once() -> None:
    copies = holding(p0=(AT_8, (0, 1, 2)))
    restoring = Restoring(0, 0.0, 20.0)
    restoring.failed(10.0, 8.0)
    assert restoring.decide(0, copies, 17.9).fetch is None
    assert restoring.decide(0, copies, 18.0).fetch == AT_8


def test_process_ids_name_the_holders() -> None:
    copies = holding(p0=(AT_4, (0, 1, 2)))
    copies.leave(ProcessId("p0", 1))
    assert copies.newest_known() is None


def test_a_stage_that_nobody_holds_is_asked_for_once_of_each_peer() -> None:
    """Whoever has written it, and has died before it heard of the snapshot, cannot say so by itself."""
    copies = Copies(STAGES)
    assert not copies.seek(SIX), "nobody knows of a snapshot"
    copies.record(SIX[0], [Holding(AT_4, (0, 1, 2))])
    copies.record(SIX[1], [Holding(AT_8, (0, 2))])
    sought = messages(copies.seek(SIX[:2]), KeepCopy)
    assert [(to.name, keep.snapshot, keep.stages, keep.holders) for to, keep in sought] == [
        ("p0", AT_8, (1,), ((),)),
        ("p1", AT_8, (1,), ((),)),
    ]
    assert [to.name for to, _ in messages(copies.seek(SIX[:3]), KeepCopy)] == ["p2"], "who has come since"
    copies.leave(SIX[2].process)
    assert [to.name for to, _ in messages(copies.seek(SIX[:3]), KeepCopy)] == ["p2"], "another life of it"
    answer(copies, SIX[2], AT_8, (1,))
    assert not copies.seek(SIX)
