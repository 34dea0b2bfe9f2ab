"""Whatever donors do, and in whatever order: no piece of a load is forgotten."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from swarmflow.compute.state_root import Span
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.runtime.execution.piece_requests import PieceGiver, PieceRequest
from swarmflow.runtime.execution.piece_table import MISSING, STEAL_S, PieceTable

PIECE = 100
SPANS = [Span(group, PIECE * n, PIECE * (n + 1)) for group in ("own", "tied") for n in range(2)]
DONORS = 2


class Load(RuleBasedStateMachine):
    """A stage of two groups is loaded from donors that answer, fail, owe an answer or have nothing newer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PieceTable(SPANS[:1])
        self.donors = [PieceGiver(Member(ProcessId(f"donor-{n}", 1), 0)) for n in range(DONORS)]
        self.version = 3  # of the donors
        self.now = 0.0
        self.asked: list[PieceRequest] = []
        self.changing: list[tuple[PieceRequest, list[int]]] = []

    @initialize(pieces=st.integers(1, len(SPANS)), version=st.sampled_from((MISSING, 2)))
    def begin(self, pieces: int, version: int) -> None:
        self.table = PieceTable(SPANS[:pieces])
        self.table.set_version(version)

    @rule(donor=st.integers(0, DONORS - 1), knows=st.booleans(), later=st.booleans())
    def ask(self, donor: int, knows: bool, later: bool) -> None:
        """knows: a version; else it may have something newer than all pieces. later: who owes an answer is late."""
        self.now += 1.5 * STEAL_S * later
        newest = max(self.table.newest, self.version) + (not knows)
        if (request := self.table.next(self.donors[donor], newest, self.now)) is not None:
            assert request.places
            self.asked.append(request)

    @rule()
    def donors_go_on(self) -> None:
        self.version += 1

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def nothing_comes(self, data: st.DataObject) -> None:
        self.table.ended(self._take(data))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def answer_comes(self, data: st.DataObject) -> None:
        request = self._take(data)
        places = self.table.lacking(request)
        if request.have == MISSING:
            places = places[:1]
        elif len(places) < len(request.places) or request.have >= self.version:
            places = []
        if not places:
            self.table.ended(request)
            return
        self.table.begin_change(places)
        self.changing.append((request, places))

    @precondition(lambda self: self.changing)
    @rule(fails=st.booleans())
    def change_ends(self, fails: bool) -> None:
        request, places = self.changing.pop()
        self.table.end_change(places, MISSING if fails else self.version)
        self.table.ended(request)

    @precondition(lambda self: not self.changing)
    @rule(place=st.integers(0, len(SPANS) - 1))
    def piece_is_wrong(self, place: int) -> None:
        self.table.fetch_anew([place % len(self.table.spans)])

    def teardown(self) -> None:
        """A donor that answers at once completes the load from wherever it stands."""
        while self.changing:
            self.change_ends(fails=False)
        for owed in self.asked:
            self.table.ended(owed)
        self.version = max(self.version, self.table.newest) + 1
        while (request := self.table.next(self.donors[0], self.version, self.now)) is not None:
            places = self.table.lacking(request)
            self.table.begin_change(places)
            self.table.end_change(places, self.version)
            self.table.ended(request)
        assert self.table.all_at(self.version), "no piece was forgotten"
        assert self.table.elements_missing() == self.table.elements_behind(self.version) == 0

    def _take(self, data: st.DataObject) -> PieceRequest:
        return self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))


TestLoad = Load.TestCase
TestLoad.settings = settings(max_examples=150, stateful_step_count=40)


def test_pieces_that_are_here_are_asked_for_together_and_missing_ones_alone() -> None:
    table, donor = PieceTable(SPANS), PieceGiver(Member(ProcessId("donor", 1), 0))
    first = table.next(donor, 1, 0.0)
    assert first is not None
    assert first.places == (0,)
    table.set_version(0)
    found = [table.next(donor, 1, 0.0) for _ in range(3)]
    assert [request and table.span_of(request) for request in found] == [
        Span("own", 0, 2 * PIECE),
        Span("tied", 0, 2 * PIECE),
        None,
    ]


def test_a_late_request_is_made_to_one_other_donor() -> None:
    table = PieceTable(SPANS[:1])
    slow, quick, third = (PieceGiver(Member(ProcessId(name, 1), 0)) for name in ("slow", "quick", "third"))
    asked = table.next(slow, 1, 0.0)
    assert asked is not None
    assert table.next(quick, 1, STEAL_S) is None
    assert not table.late(STEAL_S)
    stolen = table.next(quick, 1, 1.1 * STEAL_S)
    assert stolen is not None
    assert (stolen.places, stolen.have) == (asked.places, asked.have)
    assert table.late(1.1 * STEAL_S) == {slow}
    assert table.next(third, 1, 1.1 * STEAL_S) is None


def test_a_piece_that_another_donor_has_brought_further_is_asked_for_although_the_slow_one_still_owes_it() -> None:
    table = PieceTable(SPANS[:1])
    slow, quick = (PieceGiver(Member(ProcessId(name, 1), 0)) for name in ("slow", "quick"))
    table.set_version(0)
    assert table.next(slow, 1, 0.0) is not None
    stolen = table.next(quick, 1, 1.1 * STEAL_S)
    assert stolen is not None
    table.begin_change(stolen.places)
    table.end_change(stolen.places, 1)
    table.ended(stolen)
    for _ in range(2):  # it has nothing newer at first
        asked = table.next(quick, 2, 1.2 * STEAL_S)
        assert asked is not None
        assert (asked.places, asked.have) == (stolen.places, 1)
        table.ended(asked)
