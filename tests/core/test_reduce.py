"""The all-reduce: whatever the order of delivery, every member ends with the same sum, made in rank order."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.commit.reduce import HELD_PIECES, PIECE_ELEMENTS, Reduction
from swarmflow.core.protocol.actions import Action, Release, Seal, Send, StorePiece, SumPiece
from swarmflow.core.protocol.messages import ReducePart, ReduceSum
from swarmflow.core.protocol.piece_format import INT64
from swarmflow.core.protocol.types import Group, ProcessId, Ref, Slice
from tests.core.samples import EPOCH, process

Value = tuple[ProcessId, ...]  # a sum, as the sequence of its addends: the order shows


@dataclass
class Net:
    """Members of one group on a network that delivers in any order but keeps that of each connection.

    owners: who sums, if not the members in turn. idle: who has nothing to add.
    """

    members: tuple[ProcessId, ...]
    pieces: int
    random: Random
    owners: tuple[ProcessId, ...] = ()
    idle: frozenset[ProcessId] = frozenset()
    machines: dict[ProcessId, Reduction] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)
    held: defaultdict[ProcessId, set[int]] = field(default_factory=lambda: defaultdict(set))
    most_held: int = 0
    buffers: dict[tuple[ProcessId, int], Value] = field(default_factory=dict)
    sealed: set[ProcessId] = field(default_factory=set)
    queues: dict[tuple[ProcessId, ProcessId], deque[tuple[ReducePart | ReduceSum, Value | None]]] = field(
        default_factory=dict
    )
    keys: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, slow: tuple[ProcessId, ProcessId] | None = None) -> None:
        """slow: a connection that delivers only when nothing else does."""
        elements = self.pieces * PIECE_ELEMENTS - 5
        groups = (Group("g", self.members, self.owners, elements, 1),)
        for me in dict.fromkeys((*self.members, *self.owners)):
            known = {"g": elements} if me in self.members else {}
            self.machines[me] = Reduction(me, EPOCH, 1, known)
        for me, machine in self.machines.items():
            self.perform(me, machine.begin(groups, me not in self.idle))
        while ready := sorted(pair for pair, queue in self.queues.items() if queue):
            others = [pair for pair in ready if pair != slow]
            sender, receiver = self.random.choice(others or ready)
            message, value = self.queues[sender, receiver].popleft()
            if value is None:
                assert isinstance(message, ReducePart)
                self.perform(receiver, self.machines[receiver].part(sender, message, None))
                continue
            ref = Ref(next(self.keys))
            self.values[ref.key] = value
            self.held[receiver].add(ref.key)
            self.most_held = max(self.most_held, len(self.held[receiver]))
            machine = self.machines[receiver]
            answer = machine.part if isinstance(message, ReducePart) else machine.summed
            self.perform(receiver, answer(sender, message, ref))  # type: ignore[arg-type]  # as the line above chose

    def perform(self, me: ProcessId, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(to, ReducePart() | ReduceSum() as message, (Slice() as body,)):
                    value = self.buffers[me, body.start // PIECE_ELEMENTS] if body.reduced else (me,)
                    self.queues.setdefault((me, to), deque()).append((message, value))
                case Send(to, ReducePart() as message, ()):
                    self.queues.setdefault((me, to), deque()).append((message, None))
                case Send(to, ReduceSum() as message, (Ref() as body,)):
                    self.queues.setdefault((me, to), deque()).append((message, self.values[body.key]))
                case Release(refs):
                    self.held[me] -= {ref.key for ref in refs}
                case SumPiece():
                    parts = [(me,) if ref is None else self.values[ref.key] for ref in action.parts]
                    total, apart = tuple(itertools.chain(*parts)), None
                    assert action.apart == (me not in self.members)
                    if action.apart:
                        apart = Ref(next(self.keys))
                        self.values[apart.key] = total
                        self.held[me].add(apart.key)
                    else:
                        self.buffers[me, action.piece] = total
                    self.perform(me, self.machines[me].reduced(1, "g", action.piece, str(total), apart))
                case StorePiece():
                    self.held[me].discard(action.sum.key)
                    self.buffers[me, action.piece] = self.values[action.sum.key]
                    self.perform(me, self.machines[me].reduced(1, "g", action.piece, ""))
                case Seal():
                    assert me not in self.sealed
                    self.sealed.add(me)
                    held = range(self.pieces if me in self.members else 0)
                    sums = tuple(str(self.buffers[me, piece]) for piece in held)
                    assert dict(action.pieces).get("g", ()) == sums, "each with the digest that its owner gave it"
                case _:
                    pytest.fail(f"unexpected {action}")


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(1, 40), st.randoms(use_true_random=False))
def test_every_member_ends_with_the_same_sum(count: int, pieces: int, random: Random) -> None:
    members = tuple(process(f"m{number}") for number in range(count))
    net = Net(members, pieces, random)
    net.run()
    assert net.sealed == set(members)
    assert net.buffers == {(me, piece): members for me in members for piece in range(pieces)}
    assert not any(net.held.values()), "parts were kept after the sum"


@settings(max_examples=60)
@given(st.integers(2, 5), st.integers(0, 3), st.integers(1, 40), st.randoms(use_true_random=False))
def test_others_may_sum_and_who_has_nothing_to_add_sends_nothing(
    count: int, helpers: int, pieces: int, random: Random
) -> None:
    members = tuple(process(f"m{number}") for number in range(count))
    everybody = (*members, *(process(f"x{number}") for number in range(helpers)))
    owners = tuple(random.choice(everybody) for _ in range(random.randint(1, 9)))
    idle = frozenset(random.sample(members, random.randint(0, count - 1)))
    net = Net(members, pieces, random, owners, idle)
    net.run()
    givers = tuple(member for member in members if member not in idle)
    assert net.sealed >= set(members)
    assert net.buffers == {(me, piece): givers for me in members for piece in range(pieces)}
    assert not any(net.held.values()), "parts were kept after the sum"


def test_who_sums_for_others_alone_seals_its_own_at_once() -> None:
    me, a, b = process("me"), process("a"), process("b")
    groups = (Group("own", (me,), ballot=1), Group("g", (a, b), (me,), 10, 1))
    assert Reduction(me, EPOCH, 1, {"own": 10}).begin(groups) == [Seal(EPOCH, 1, ("own",), ("own",))]


def test_the_window_bounds_what_an_owner_holds_for_a_late_member() -> None:
    members = tuple(process(f"m{number}") for number in range(4))
    net = Net(members, 60 * len(members), Random(1))
    net.run(slow=(members[0], members[2]))
    assert net.sealed == set(members)
    assert net.most_held <= HELD_PIECES < 60 * (len(members) - 1)


@pytest.mark.parametrize(("count", "window"), [(2, 40), (4, 40), (13, 10), (40, 8)])
def test_few_members_send_further_ahead_than_many(count: int, window: int) -> None:
    members = tuple(process(f"m{number}") for number in range(count))
    group, elements = Group("g", members), {"g": 100 * count * PIECE_ELEMENTS}
    sends = Reduction(members[0], EPOCH, 1, elements).begin((group,))
    assert sum(isinstance(send, Send) and send.to == members[1] for send in sends) == window


def test_who_is_alone_seals_at_once() -> None:
    me = process("a")
    assert Reduction(me, EPOCH, 1, {"g": 10}).begin((Group("g", (me,), ballot=3),)) == [Seal(EPOCH, 3, ("g",), ("g",))]


def test_what_does_not_belong_is_released() -> None:
    a, b, stranger = process("a"), process("b"), process("x")
    machine = Reduction(a, EPOCH, 1, {"g": 4 * PIECE_ELEMENTS})
    machine.begin((Group("g", (a, b), ballot=1),))
    for sender, message in (
        (stranger, ReducePart(EPOCH, 1, "g", 0)),  # not a member
        (b, ReducePart(EPOCH, 1, "g", 1)),  # not a piece of mine
        (b, ReducePart(EPOCH, 1, "g", 99)),  # no piece at all
        (b, ReducePart(EPOCH, 1, "other", 0)),
    ):
        assert machine.part(sender, message, Ref(7)) == [Release((Ref(7),))]
    for sender, total in ((b, ReduceSum(EPOCH, 1, "g", 0, "x")), (stranger, ReduceSum(EPOCH, 1, "g", 1, "x"))):
        assert machine.summed(sender, total, Ref(7)) == [Release((Ref(7),))]
    machine.part(b, ReducePart(EPOCH, 1, "g", 0), Ref(8))
    assert machine.part(b, ReducePart(EPOCH, 1, "g", 0), Ref(9)) == [Release((Ref(9),))], "each addend counts once"


def test_a_body_of_another_size_does_not_fit() -> None:
    a, b = process("a"), process("b")
    machine = Reduction(a, EPOCH, 1, {"g": PIECE_ELEMENTS + 3})
    machine.begin((Group("g", (a, b), ballot=1),))
    assert machine.fits(ReducePart(EPOCH, 1, "g", 0), Ref(1, 4 * PIECE_ELEMENTS))
    assert machine.fits(ReduceSum(EPOCH, 1, "g", 1, "x"), Ref(1, 12))
    for piece, size_bytes in ((0, 12), (1, 13), (2, 12), (-1, 12)):
        assert not machine.fits(ReducePart(EPOCH, 1, "g", piece), Ref(1, size_bytes))
    assert not machine.fits(ReducePart(EPOCH, 1, "other", 0), Ref(1, 4 * PIECE_ELEMENTS))


def test_integers_take_8_bytes_an_element() -> None:
    a, b = process("a"), process("b")
    machine = Reduction(a, EPOCH, 1, {"g": PIECE_ELEMENTS + 3}, piece=INT64)
    machine.begin((Group("g", (a, b), ballot=1),))
    assert machine.fits(ReducePart(EPOCH, 1, "g", 0), Ref(1, 8 * PIECE_ELEMENTS))
    assert machine.fits(ReduceSum(EPOCH, 1, "g", 1, "x"), Ref(1, 24))
    assert not machine.fits(ReducePart(EPOCH, 1, "g", 0), Ref(1, 4 * PIECE_ELEMENTS))


def test_a_part_or_a_sum_that_does_not_decode_may_come_again() -> None:
    a, b, c = process("a"), process("b"), process("c")
    machine = Reduction(a, EPOCH, 1, {"g": 2 * PIECE_ELEMENTS})
    machine.begin((Group("g", (a, b, c), ballot=1),))
    machine.part(b, ReducePart(EPOCH, 1, "g", 0), Ref(7))
    assert machine.part(c, ReducePart(EPOCH, 1, "g", 0), Ref(8))
    assert machine.failed(2, "g", 0, (Ref(7),)) == ((), []), "of another reduction"
    assert machine.failed(1, "g", 0, (Ref(7),)) == ((b,), [Release((Ref(7),))])
    assert machine.awaits() == (b,)
    [again] = machine.part(b, ReducePart(EPOCH, 1, "g", 0), Ref(9))
    assert isinstance(again, SumPiece)
    assert again.parts == (None, Ref(9), Ref(8))
    machine.reduced(1, "g", 0, "x")
    machine.summed(b, ReduceSum(EPOCH, 1, "g", 1, "y"), Ref(10))
    assert machine.failed(1, "g", 1, ()) == ((b,), [])
    assert machine.awaits() == (b,)
    [store] = machine.summed(b, ReduceSum(EPOCH, 1, "g", 1, "z"), Ref(11))
    assert isinstance(store, StorePiece)


def test_what_is_void_releases_its_parts() -> None:
    a, b, c = process("a"), process("b"), process("c")
    machine = Reduction(a, EPOCH, 1, {"g": 3 * PIECE_ELEMENTS})
    machine.begin((Group("g", (a, b, c), ballot=1),))
    assert machine.part(b, ReducePart(EPOCH, 1, "g", 0), Ref(8)) == []
    assert machine.keep(()) == [Release((Ref(8),))]
