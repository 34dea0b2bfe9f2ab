"""Who is told of whom: a peer of those around it, a trainer of all; by changes, and put together again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.commit.announcing import announce
from swarmflow.core.commit.quorum import electorate_of
from swarmflow.core.election.candidacy import Candidacy
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.election.gathered_roster import GatheredRoster
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Rejoin, Send
from swarmflow.core.protocol.events import Received, StateLoaded
from swarmflow.core.protocol.messages import Elect, ElectionReport, Granted, Join, OpenStep, RosterDelta
from swarmflow.core.protocol.types import Epoch, Member, Plan, Roster, SharedWeights, tied_ends
from tests.core.samples import EPOCH, LINEAGE, member, messages, of_type, process

STAGES = 6
LEADER = process("t0")
TRAINERS = tuple(member(f"t{n}", -1) for n in range(3))
LATER, LAST = EPOCH.following, EPOCH.following.following


def opened(peers: int, epoch: Epoch = EPOCH, but: int = -1) -> OpenStep:
    """So many peers, in turn on the stages; all but one of them."""
    members = [member(f"p{n:05}", n % STAGES) for n in range(peers) if n != but]
    stages = tuple(tuple(m for m in members if m.stage == stage) for stage in range(STAGES))
    return OpenStep(1, epoch, Roster(stages, TRAINERS), LINEAGE)


def test_a_sender_may_have_its_part_of_the_capacity_of_a_peer_unasked_and_two_microbatches_at_a_small_one() -> None:
    peers = [replace(member(f"capacity-{capacity}", 1), capacity=capacity) for capacity in (1, 2, 3, 12)]
    roster = Roster((tuple(member(f"sender-{n}", 0) for n in range(4)), tuple(peers)), TRAINERS)
    assert list(roster.slots_per_sender[1].values()) == [2, 2, 0, 3]


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    """Of six stages with one peer at least, each other peer in one of them or in none, with a capacity."""
    places = [*range(STAGES), *draw(st.lists(st.integers(-2, STAGES - 1), min_size=8, max_size=8))]
    capacities = draw(st.lists(st.integers(1, 2), min_size=len(places), max_size=len(places)))
    order = draw(st.permutations(range(len(places))))
    members = [Member(process(f"p{n:02}"), places[k], capacities[n]) for n, k in enumerate(order)]
    return Roster(tuple(tuple(m for m in members if m.stage == stage) for stage in range(STAGES)), TRAINERS)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_however_many_members_there_are_one_message_names_them() -> None:
    said = opened(6000)
    for who, seen in ((said.roster.stages[1][0], said.seen_from(1, ())), (TRAINERS[1], said)):
        assert announce(said, (who,), ()) == [Send(who.process, seen)]


def test_a_peer_hears_of_its_neighbours_and_of_how_many_there_are() -> None:
    said = opened(60)
    for stage, near in ((0, {0, 1}), (3, {2, 3, 4}), (5, {4, 5})):
        [(_, told)] = messages(announce(said, said.roster.stages[stage][:1], ()), OpenStep)
        assert {m.stage for m in told.roster.peers} == near
        assert (told.roster.trainers, told.digest, told.voters) == (TRAINERS, said.roster.digest, 63)
    [(_, first)] = messages(announce(said, said.roster.stages[0][:1], tied_ends(STAGES)), OpenStep)
    assert {m.stage for m in first.roster.peers} == {0, 1, 5}, "they share a weight"
    shared = (SharedWeights("shared-0", (0, 1, 2)), SharedWeights("shared-1", (2, 3, 4)))
    [(_, told)] = messages(announce(said, said.roster.stages[2][:1], shared), OpenStep)
    assert {m.stage for m in told.roster.peers} == {0, 1, 2, 3, 4}, "blocks on them share their weights"


def test_who_serves_another_stage_now_is_told_in_full() -> None:
    base, said = opened(12), opened(12, LATER)
    change = RosterDelta.after(base, said)
    stayed, moved = said.roster.stages[2]
    actions = announce(said, (stayed, moved), (), change, {stayed.process: 2, moved.process: 4})
    assert [to for to, _ in messages(actions, RosterDelta)] == [stayed.process]
    assert [to for to, _ in messages(actions, OpenStep)] == [moved.process]


@given(rosters(), rosters(), st.integers(0, STAGES - 1), st.sets(st.integers(0, STAGES - 1)))
def test_changes_bring_a_part_to_the_part_of_the_next_roster(
    before: Roster, now: Roster, stage: int, sharing: set[int]
) -> None:
    shared = (SharedWeights("shared-0", tuple(sorted(sharing))),)
    base, said = OpenStep(1, EPOCH, before, LINEAGE), OpenStep(2, LATER, now, LINEAGE, exponent=20)
    change = RosterDelta.after(base, said)
    assert change is not None
    assert change.unfolded(base.seen_from(stage, shared)) == said.seen_from(stage, shared)


# --- what a peer makes of it ------------------------------------------------------------------------------------------


def serving(stage: int) -> PeerMachine:
    """A peer that has loaded a stage."""
    me = process("p00002")
    peer = PeerMachine(
        me, LeaderLease(LEADER), Plan(STAGES, 2), PeerSettings(Join("peer", "1.0", "run", Member(me, -1)))
    )
    peer.handle(Received(LEADER, Granted(1, stage, 0, ())), 0.0)
    peer.handle(StateLoaded(stage, 0, "digest", 4, ((f"stage-{stage}", 10),)), 0.0)
    return peer


def test_a_peer_that_was_told_its_part_serves_and_one_that_missed_what_a_change_builds_on_joins_again() -> None:
    base, said = opened(12), opened(12, LATER)
    change = RosterDelta.after(base, said)
    assert change is not None
    [told, lacking] = serving(2), serving(2)
    told.handle(Received(LEADER, base.seen_from(2, ())), 1.0)
    assert told.phase == "member"
    assert of_type(lacking.handle(Received(LEADER, change), 1.0), Rejoin)


def test_a_peer_reports_a_large_roster_in_full_and_none_to_who_has_it() -> None:
    said = opened(3000)
    peer = serving(2)
    peer.handle(Received(LEADER, said.seen_from(2, ())), 1.0)
    for second in range(2, 6):
        peer.lease.lose(second)
    actions = peer.handle(Received(TRAINERS[1].process, Elect(2, TRAINERS[1], "another")), 6.0)
    [(_, report)] = messages(actions, ElectionReport)
    assert report.opened == said.seen_from(2, ())
    actions = peer.handle(Received(TRAINERS[1].process, Elect(2, TRAINERS[1], said.digest)), 6.0)
    [(_, report)] = messages(actions, ElectionReport)
    assert report.opened.roster == Roster()


# --- what an heir makes of it -----------------------------------------------------------------------------------------


def report(who: Member, knows: EpochView, known: str) -> ElectionReport:
    role = "trainer" if who.stage < 0 else "peer"
    return knows.report(2, Join(role, "1.0", "run", who), who, ready=True, version=0, draining=False, known=known)


def candidacy(own: OpenStep) -> Candidacy:
    """Trainer t1, which has heard of this epoch."""
    tried = Candidacy(TRAINERS[1], 2, EpochView(own), 100.0)
    tried.begin(report(TRAINERS[1], EpochView(own), ""), 100.0)
    return tried


def test_an_heir_learns_of_a_later_epoch_from_one_that_was_told_its_changes() -> None:
    own, said = opened(30), opened(30, LATER, but=7)
    change = RosterDelta.after(own, said)
    assert change is not None
    [who, *_] = said.roster.stages[3]
    base = own.seen_from(3, ())
    told = report(who, EpochView(change.unfolded(base), change, base.digest), own.digest)
    assert told.opened.roster == Roster(), "it would be a part of it"
    tried = candidacy(own)
    tried.report(who.process, told)
    assert tried.latest() == said
    tried = candidacy(own)
    forged = replace(told, change=replace(change, gone=()))
    assert tried.report(who.process, forged) == []
    assert tried.latest() == own, "it does not give the digest that it names"


def test_an_heir_puts_an_epoch_together_from_the_parts_that_others_know() -> None:
    own, said = opened(30), opened(30, LAST, but=7)
    tried = candidacy(own)
    told = [report(m, EpochView(said.seen_from(m.stage, ())), own.digest) for m in said.roster.peers]
    tried.report(told[0].member.process, told[0])
    first = tried.latest()
    assert {m.stage for m in first.roster.peers} == {0, 1}
    assert first.voters == 32, "a majority is one of all, known or not"
    for each in told[1:9]:  # those of stages 0 and 1
        assert not tried.elected(200.0)
        tried.report(each.member.process, each)
    assert not tried.elected(200.0), "10 of 32, though of the 13 that are known"
    for each in told[9:]:
        tried.report(each.member.process, each)
    assert tried.latest().roster == said.roster
    assert tried.elected(200.0)


def test_who_has_heard_an_epoch_in_full_is_believed_before_those_who_know_a_part() -> None:
    said = opened(12)
    parts = [said.seen_from(stage, ()) for stage in (0, 5)]
    gathered = GatheredRoster(parts[0])
    for part in (*parts, said, *parts):
        gathered.add(part)
    assert gathered.opened() == said


def test_in_whatever_order_it_is_heard_of_a_newcomer_shrinks_no_electorate() -> None:
    peers, trainers = tuple(member(name) for name in "abc"), (member("t0", -1), member("t1", -1))
    whole = OpenStep(1, EPOCH, Roster((peers,), trainers), LINEAGE)
    came = member("n")
    when_it_came = replace(whole, roster=Roster(((peers[0], came),), trainers), newcomers=(came.process,))
    for first, second in ((whole, when_it_came), (when_it_came, whole)):
        gathered = GatheredRoster(first)
        gathered.add(second)
        assert electorate_of(gathered.opened()).size == 5
