"""Standing for leader: who has to follow, and how long the others are waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarmflow.core.election.candidacy import Candidacy
from swarmflow.core.protocol.actions import Connect
from swarmflow.core.protocol.messages import Elect, Join
from swarmflow.core.protocol.types import Roster
from tests.core.followers import (
    BEGAN_S,
    LATER,
    OPENED,
    PEERS,
    T0,
    T1,
    T2,
    TRAINERS,
    A,
    B,
    C,
    D,
    N,
    candidacy,
    epoch_view,
    peers,
    report,
)
from tests.core.samples import member, messages, of_type

JOIN = Join("trainer", "1.0", "run", TRAINERS[2])


def test_everybody_of_the_epoch_is_asked_once_but_the_dead() -> None:
    tried = Candidacy(TRAINERS[1], 2, epoch_view(OPENED, D), BEGAN_S)
    actions = tried.begin(report(TRAINERS[1]), BEGAN_S)
    assert messages(actions, Elect) == [(to, Elect(2, TRAINERS[1], OPENED.roster.digest)) for to in (A, B, C, T0, T2)]
    [connect] = of_type(actions, Connect)
    assert [peer.process for peer in connect.members] == [A, B, C, T0, T2]


def test_who_has_not_answered_is_asked_again_each_second() -> None:
    tried = candidacy(report(PEERS[0][0]))
    assert tried.next_deadline() == BEGAN_S + 1.0
    assert tried.tick(BEGAN_S + 0.9) == []
    assert [to for to, _ in messages(tried.tick(BEGAN_S + 1.0), Elect)] == [B, C, D, T0, T2]
    assert tried.tick(BEGAN_S + 1.1) == []


def test_a_stage_that_has_not_answered_is_waited_for_longer_unless_it_is_known_to_be_lost() -> None:
    told = [*peers(C, D), report(TRAINERS[2]), report(TRAINERS[0])]
    tried = candidacy(*told)
    assert not tried.elected(BEGAN_S + 6.0), "without them the run goes back to the last checkpoint"
    assert tried.elected(BEGAN_S + 6.1)
    tried = candidacy(*told)
    tried.report(C, report(PEERS[1][0]))
    assert tried.elected(BEGAN_S + 2.1), "one of them has what the stage needs"
    tried = candidacy(*told)
    for dead in (C, D):
        tried.lost(dead)
    assert tried.elected(BEGAN_S)


def test_an_answer_in_another_term_does_not_count() -> None:
    tried = candidacy()
    assert tried.report(A, report(PEERS[0][0], term=1)) == []
    assert list(tried.reports) == [T1]


def test_a_majority_of_those_named_is_needed_and_half_is_none() -> None:
    everybody = replace(OPENED, roster=Roster(PEERS, TRAINERS[:2]))  # 6 processes
    tried = Candidacy(TRAINERS[1], 2, epoch_view(everybody), BEGAN_S)
    tried.begin(report(TRAINERS[1], opened=everybody), BEGAN_S)
    for who in PEERS[0]:
        tried.report(who.process, report(who, opened=everybody))
    for silent in (C, D, T0):
        tried.lost(silent)
    assert not tried.elected(BEGAN_S + 60.0), "3 of 6"
    tried.report(C, report(PEERS[1][0], opened=everybody))
    assert tried.elected(BEGAN_S)


def test_strangers_do_not_make_a_majority() -> None:
    tried = candidacy(report(PEERS[0][0]), report(PEERS[0][1]), report(member("x")), report(member("y")))
    assert not tried.elected(BEGAN_S + 60.0), "3 of those named"


def test_a_majority_leaves_the_others_a_little_time() -> None:
    tried = candidacy(*peers())
    assert not tried.elected(BEGAN_S + 2.0), "the leader and a trainer may answer yet"
    assert tried.elected(BEGAN_S + 2.1)


def test_who_is_lost_is_not_waited_for() -> None:
    tried = candidacy(*peers())
    tried.lost(T0)
    assert not tried.elected(BEGAN_S)
    tried.lost(T2)
    assert tried.elected(BEGAN_S)


def test_newcomers_are_learnt_of_from_those_who_heard_of_them() -> None:
    tried = candidacy()
    told = replace(report(PEERS[0][0]), newcomers=(member("n", 1),))
    assert tried.report(A, told) == [], "one of seven may lie"
    assert tried.report(A, told) == [], "it is one still"
    assert [to for to, _ in messages(tried.report(B, replace(told, member=PEERS[0][1])), Elect)] == [N]
    for silent in (B, C, D, T0, T2):
        tried.lost(silent)
    assert not tried.elected(BEGAN_S), "no majority yet"
    for told in peers(A):
        tried.report(told.member.process, told)
    assert not tried.elected(BEGAN_S), "the newcomer is waited for"
    tried.report(N, report(member("n", 1)))
    assert tried.elected(BEGAN_S)


def test_a_trainers_word_of_a_newcomer_is_enough_and_none_of_who_has_no_vote_is() -> None:
    tried = candidacy()
    for who in PEERS[0]:
        told = replace(report(replace(who, votes=False)), newcomers=(member("n", 1),))
        assert tried.report(who.process, told) == []
    assert [to for to, _ in messages(tried.report(T2, replace(told, member=TRAINERS[2], join=JOIN)), Elect)] == [N]


def test_who_has_no_certificate_elects_nobody_whatever_roster_it_shows() -> None:
    """A candidate that has missed the last OpenStep puts its roster together from the parts that others show."""
    whole = replace(LATER, roster=Roster((PEERS[0], PEERS[1], ()), TRAINERS))
    made_up = tuple(member(f"s{i}") for i in range(9))
    part = replace(whole, roster=Roster((made_up, (), ()), TRAINERS), whole=whole.digest, named=whole.voters)
    tried = Candidacy(TRAINERS[1], 2, epoch_view(replace(whole, epoch=OPENED.epoch)), BEGAN_S)
    tried.begin(report(TRAINERS[1], opened=replace(whole, epoch=OPENED.epoch)), BEGAN_S)
    for who in made_up:
        tried.report(who.process, report(replace(who, votes=False), opened=part))
    assert tried.latest().voters == len(PEERS[0] + PEERS[1] + TRAINERS)
    assert not tried.elected(BEGAN_S + 60.0)


def test_a_part_of_a_roster_that_is_known_as_a_whole_names_nobody_new() -> None:
    tried = candidacy()
    part = replace(OPENED, roster=Roster(((member("x"),), ()), TRAINERS), whole=OPENED.digest, named=OPENED.voters)
    assert tried.report(A, report(PEERS[0][0], opened=part)) == []


def test_a_later_epoch_that_somebody_has_heard_of_is_the_one_at_hand() -> None:
    later = replace(LATER, roster=Roster((*PEERS[:1], (*PEERS[1], member("n", 1))), TRAINERS[1:]))
    tried = candidacy()
    told = report(PEERS[0][0], opened=later)
    assert [to for to, _ in messages(tried.report(A, told), Elect)] == [N], "named there for the first time"
    assert tried.latest() == later
    for who in (*PEERS[0][1:], PEERS[1][0]):
        tried.report(who.process, report(who))
    assert not tried.elected(BEGAN_S + 3.0), "4 of the 7 that it names, one of whom may lie"
    tried.report(D, report(PEERS[1][1]))
    assert tried.elected(BEGAN_S + 3.0)


@pytest.mark.parametrize(
    ("late", "sustained"),
    [
        ({"version": LATER.epoch.step}, True),
        ({"version": LATER.epoch.step - 1}, False),  # has not heard of the last commit either
        ({"version": LATER.epoch.step, "ready": False}, False),  # loads it yet
    ],
)
def test_who_has_not_heard_of_the_last_step_holds_its_stage_if_it_has_the_version_before(
    late: dict[str, Any], sustained: bool
) -> None:
    """The leader died while it opened the step: one member has its OpenStep, the others of its half have not."""
    told = report(PEERS[0][0], opened=LATER), replace(report(PEERS[1][0]), **late)
    assert candidacy(*told).sustained() == sustained
