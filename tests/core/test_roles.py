"""The role of a sender, by its certificate: orders, claims to lead and joins as a trainer need that of a trainer."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.core.machines.serving.inbound import INBOUND, Scope
from swarmflow.core.machines.trainer import _FROM_LEADER
from swarmflow.core.protocol.actions import Count, Forget, Rejoin
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import (
    FROM_TRAINERS,
    TO_LEADER,
    Elect,
    ElectionReport,
    Join,
    LeaderHeartbeat,
    StateRoot,
    Suspect,
)
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.types import Member, Role
from swarmflow.simulator.hostile import KINDS, Mint
from tests.core.samples import EPOCH, member, messages, of_type
from tests.core.test_refusing import LEADER, MATE, ME, PLAN, STRANGER, WHOLE, Peer

BOTH_DIRECTIONS = {Suspect, StateRoot}  # a peer sends them to the leader, and gets them from it
CANDIDATE = Member(STRANGER, -1)


def refused(message: object, role: Role | None) -> bool:
    return "without the certificate of a trainer" in (checks_of(PLAN).wrong(message, 0, role) or "")  # type: ignore[arg-type]


def test_whatever_a_machine_takes_from_its_leader_only_is_a_trainers_to_send() -> None:
    orders = {kind for kind, inbound in INBOUND.items() if inbound.scope is Scope.LEADER} | set(_FROM_LEADER)
    assert orders - BOTH_DIRECTIONS <= FROM_TRAINERS
    assert Elect in FROM_TRAINERS
    assert not FROM_TRAINERS & TO_LEADER


@pytest.mark.parametrize("role", ["peer", None])
def test_messages_of_every_class_are_refused_by_role_or_none_of_them_is(role: Role | None) -> None:
    mint = Mint(Random(0), PLAN, [ME, MATE], [EPOCH])
    for kind in KINDS:
        made = [mint.message(kind, 0.0) for _ in range(20)]
        assert not any(refused(message, "trainer") for message in made)
        if kind in (Join, ElectionReport):
            continue
        assert {refused(message, role) for message in made} == {kind in FROM_TRAINERS}


@pytest.mark.parametrize("role", ["peer", None])
def test_a_join_or_a_report_as_a_trainer_is_refused_and_one_as_a_peer_is_not(role: Role | None) -> None:
    for joins, needs in (("trainer", True), ("peer", False)):
        join = Join(joins, "1", "run", member("a"))
        report = ElectionReport(2, join, member("a"), True, 0, False, WHOLE.opened)
        assert [refused(join, role), refused(report, role)] == [needs, needs]


@pytest.mark.parametrize("role", ["peer", None])
def test_a_peer_follows_no_candidate_without_the_certificate_of_a_trainer(role: Role | None) -> None:
    peer = Peer()
    actions = peer.event(Received(STRANGER, Elect(99, CANDIDATE), (), role))
    assert not messages(actions, ElectionReport)
    assert Count("messages_refused", "Elect") in actions
    assert of_type(actions, Forget) == [Forget(STRANGER)]
    assert (peer.machine.leader, peer.machine.lease.term) == (LEADER, 1)


def test_an_order_in_the_leaders_name_from_who_lost_its_certificate_is_not_followed() -> None:
    """A heartbeat is handled ahead of all other messages, and its sender's role counts all the same."""
    peer, beat = Peer(), LeaderHeartbeat(1, EPOCH)
    assert not of_type(peer.event(Received(LEADER, beat, (), "trainer")), Rejoin)
    assert not of_type(peer.event(Received(STRANGER, beat, (), None)), Rejoin)
    [rejoin] = of_type(peer.event(Received(LEADER, beat, (), "peer")), Rejoin)
    assert "LeaderHeartbeat without the certificate of a trainer" in rejoin.reason
