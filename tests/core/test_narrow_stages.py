"""A stage of few peers, for which the others wait, gets another peer as soon as one can be had."""

from __future__ import annotations

from swarmflow.core.commit.piece_owners import adjacent_peers
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.serving.peer_state import LOADERS_SHARE
from swarmflow.core.membership.levelling import PlacedPeer, best_stage, level
from swarmflow.core.membership.placement import is_narrow
from swarmflow.core.membership.step_estimate import StageDemand, power_of_one, together
from swarmflow.core.protocol.messages import MemberEntered, OpenStep
from swarmflow.core.protocol.types import Member, Roster
from tests.core.peer_bench import Bench as PeerBench
from tests.core.samples import EPOCH, LINEAGE, member, messages, process
from tests.core.test_leader import Bench as LeaderBench

PEER = power_of_one(1.0, 8.0, 100.0)
NEED = StageDemand(1.0, 1000.0, 1.0, 1.0)


def members(stage: int, count: int) -> tuple[Member, ...]:
    return tuple(member(f"m{stage}{number}", stage) for number in range(count))


def test_a_stage_is_narrow_where_others_have_more_peers() -> None:
    stages = [members(stage, count) for stage, count in enumerate((1, 2, 3, 0))]
    assert [is_narrow(stages, stage) for stage in range(4)] == [True, True, False, False]
    assert is_narrow([members(0, 1), members(1, 2)], 0), "all that a peer may know of a larger swarm"
    assert not is_narrow([members(0, 2), members(1, 2)], 0)


def test_who_has_loaded_a_small_stage_of_fewer_peers_takes_work_at_once() -> None:
    for here, others, at_once in ((1, 3, True), (1, 1, False), (3, 4, True), (4, 4, False), (5, 6, False)):
        bench = LeaderBench(stages=2)
        stages = [1] * others + [0] * here
        first = [(process(f"r{number}"), stage) for number, stage in enumerate(stages)]
        for answer in (bench.join, bench.ready):
            for peer, stage in first:
                answer(peer, stage)
        assert bench.leader.step is not None
        bench.join(process("new"), 0)
        entered = messages(bench.ready(process("new"), 0), MemberEntered)
        assert {message.member.process for _, message in entered} == ({process("new")} if at_once else set())
        assert (process("new") in bench.leader.step.members.opened.peer_ids) == at_once


def test_a_peer_gives_its_link_to_those_that_load_a_narrow_stage() -> None:
    bench = PeerBench()
    bench.serve()
    peer = bench.peer
    for mates, others, state, updates in ((1, 3, 1, 1), (2, 3, 0, 0.5), (3, 3, 0, 0), (1, 2, 1, 1), (1, 1, 0, 0)):
        roster = Roster((members(0, mates), members(1, others)), (member("t0", -1),))
        peer.epoch_view = EpochView(OpenStep(1, EPOCH, roster, LINEAGE))
        assert peer.loaders_share(updates=False) == state * LOADERS_SHARE
        assert peer.loaders_share(updates=True) == updates * LOADERS_SHARE


def test_a_stage_is_loaded_by_no_more_peers_than_can_give_it() -> None:
    needs, powers = [NEED, NEED], [PEER, together([PEER] * 3)]
    assert best_stage(needs, powers, PEER)[0] == best_stage(needs, powers, PEER, (1.0, 3.0))[0] == 0
    assert best_stage(needs, powers, PEER, (0.0, 3.0))[0] == 1
    assert best_stage(needs, powers, PEER, (0.0, 0.0))[0] == 0, "somewhere it has to go"
    stages = [
        [PlacedPeer(process(f"p{stage}{number}"), PEER, True) for number in range(count)]
        for stage, count in enumerate((1, 6))
    ]
    assert {move.stage for move in level(needs, stages, 4)} == {0}
    assert len(level(needs, stages, 4)) > len(level(needs, stages, 4, (1.0, 6.0))) == 1
    assert not level(needs, stages, 4, (0.0, 6.0))


def test_who_gives_its_link_to_others_sums_for_no_other_stage() -> None:
    roster = Roster((members(0, 2), members(1, 1), members(2, 3)), ())
    alone = process("m10")
    assert alone in adjacent_peers(roster)["stage-0"]
    assert alone not in adjacent_peers(roster, {alone})["stage-0"]
    assert set(adjacent_peers(roster, {alone})["stage-1"]) == {each.process for each in roster.peers} - {alone}
