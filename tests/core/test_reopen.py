"""Rosters told by what has changed: whoever has heard of the epoch before comes to the very same one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.protocol.messages import OpenStep, RosterDelta
from swarmflow.core.protocol.types import Epoch, Member, Roster
from tests.core.samples import EPOCH, LINEAGE, process

LEADER = process("t0")
LATER = EPOCH.following


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    """Three stages and the trainers, each process in one of them or in none, with a capacity that may change."""
    places = draw(st.lists(st.integers(-2, 2), min_size=12, max_size=12))
    capacities = draw(st.lists(st.integers(1, 2), min_size=12, max_size=12))
    members = [Member(process(f"p{n:02}"), place, capacities[n]) for n, place in enumerate(places)]
    stages = tuple(tuple(member for member in members if member.stage == stage) for stage in range(3))
    return Roster(stages, tuple(member for member in members if member.stage == -1))


@given(rosters(), rosters())
def test_what_has_changed_tells_it_all(before: Roster, now: Roster) -> None:
    base, said = OpenStep(1, EPOCH, before, LINEAGE), OpenStep(2, LATER, now, LINEAGE, exponent=20)
    change = RosterDelta.after(base, said)
    assert change is not None
    assert change.unfolded(base) == said
    assert (before.digest == now.digest) == (before == now)


def test_where_little_has_changed_little_is_told() -> None:
    members = tuple(Member(process(f"p{n:03}"), 0) for n in range(100))
    base, roster = OpenStep(1, EPOCH, Roster((members,)), LINEAGE), Roster((members[1:],))
    change = RosterDelta.after(base, OpenStep(1, LATER, roster, LINEAGE))
    assert change == RosterDelta(1, LATER, EPOCH, (members[0].process,), (), LINEAGE, whole=roster.digest, named=99)


def test_who_comes_in_amid_a_step_is_told_in_full() -> None:
    roster = Roster(((Member(LEADER, 0),),))
    base = OpenStep(1, EPOCH, roster, LINEAGE)
    assert RosterDelta.after(base, OpenStep(1, Epoch(0, 9), roster, LINEAGE, newcomers=(LEADER,))) is None
