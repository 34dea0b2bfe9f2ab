"""Who sums the pieces of an all-reduce: slow ways are gone around, and nothing is changed for a small gain."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from swarmflow.core.commit.piece_owners import LOTS, MEMBERS_MAX, LinkTable, shared_out
from swarmflow.core.protocol.messages import LinkRateReport
from swarmflow.core.protocol.types import Group, ProcessId
from tests.core.samples import process

ELEMENTS = 1 << 20
FAST, SLOW = 50e6, 5e6
A, B, C = process("a"), process("b"), process("c")
Matrix = dict[tuple[ProcessId, ProcessId], float]


def ways_of(rates: Matrix, groups: list[Group]) -> LinkTable:
    """Each tells of its ways to all others."""
    ways = LinkTable()
    ends = sorted({end for pair in rates for end in pair})
    for one in ends:
        elements = tuple((group.name, ELEMENTS) for group in groups if one in group.members)
        told = tuple((other, rate) for (teller, other), rate in rates.items() if teller == one)
        stage = next((int(group.name.partition("-")[2]) for group in groups if one in group.members), -1)
        ways.learn(one, stage, LinkRateReport(elements, told))
    return ways


def symmetric(rates: Matrix) -> Matrix:
    return rates | {(other, one): rate for (one, other), rate in rates.items()}


def longest_s(groups: list[Group], rates: Matrix) -> float:
    """What the shares come to, reckoned apart: the busiest way or connection, whose best way is what it carries."""
    busy: defaultdict[object, float] = defaultdict(float)
    for group in groups:
        owners = group.owners or group.members
        for owner in owners:
            for member in group.members:
                if member != owner:
                    for one, other in ((member, owner), (owner, member)):
                        lot = ELEMENTS / len(owners)
                        busy[one, other] += lot / rates[one, other]
                        busy[one, "out"] += lot / max(rates[pair] for pair in rates if pair[0] == one)
                        busy[other, "in"] += lot / max(rates[pair] for pair in rates if pair[1] == other)
    return max(busy.values())


def least_s(groups: list[Group], beside: dict[str, list[ProcessId]], rates: Matrix) -> float:
    """The least that any shares come to, by a linear program."""
    chosen = [(group, owner) for group in groups for owner in (*group.members, *beside[group.name])]
    lines: dict[object, np.ndarray] = {}
    for column, (group, owner) in enumerate(chosen):
        for member in group.members:
            for one, other in ((member, owner), (owner, member)) if member != owner else ():
                out = max(rates[pair] for pair in rates if pair[0] == one)
                into = max(rates[pair] for pair in rates if pair[1] == other)
                for line, rate in (((one, other), rates[one, other]), ((one, 0), out), ((other, 1), into)):
                    lines.setdefault(line, np.zeros(len(chosen) + 1))[column] += ELEMENTS / rate
    for row in lines.values():
        row[-1] = -1.0
    equal = [[float(group is of) for of, _ in chosen] + [0.0] for group in groups]
    found = linprog([0.0] * len(chosen) + [1.0], list(lines.values()), [0.0] * len(lines), equal, [1.0] * len(groups))
    return float(found.fun)


def test_a_slow_way_between_two_is_gone_around() -> None:
    groups = [Group("stage-0", (A, B))]
    rates = symmetric({(A, B): SLOW, (A, C): FAST, (B, C): FAST})
    [group] = shared_out(groups, (A, B), {"stage-0": [C]}, ways_of(rates, groups))
    owners = Counter(group.owners)
    assert owners[C] > 0.8 * LOTS
    assert (group.members, group.elements) == ((A, B), ELEMENTS)


def test_equal_ways_leave_all_as_it_is() -> None:
    groups = [Group("stage-0", (A, B))]
    rates = symmetric({(A, B): FAST, (A, C): FAST, (B, C): FAST})
    assert shared_out(groups, (A, B), {"stage-0": [C]}, ways_of(rates, groups)) == groups


def test_who_alone_has_something_to_add_sums_most_of_it() -> None:
    groups = [Group("stage-0", (A, B, C))]
    rates = symmetric({(A, B): FAST, (A, C): FAST, (B, C): SLOW})
    [group] = shared_out(groups, (A,), {"stage-0": []}, ways_of(rates, groups))
    assert Counter(group.owners)[A] > LOTS / 2


def test_nothing_is_decided_on_what_is_not_known() -> None:
    pair, many = Group("stage-0", (A, B)), Group("stage-0", tuple(process(f"m{n}") for n in range(MEMBERS_MAX + 1)))
    around = ways_of(symmetric({(A, C): FAST, (B, C): FAST}), [pair])
    all_slow = ways_of({(one, two): SLOW for one in many.members for two in many.members if one != two}, [many])
    for group, ways in ((pair, LinkTable()), (pair, around), (many, all_slow)):
        assert shared_out([group], group.members, {"stage-0": [C]}, ways) == [group]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan"), 1e-310, 1e-40, 1e300])
def test_what_no_way_carries_is_not_believed(rate: float) -> None:
    ways = LinkTable()
    ways.learn(A, 0, LinkRateReport((), ((B, rate),)))
    assert ways.rates == {}


def test_nobody_is_believed_what_it_says_of_another_stage_or_alone_of_its_own() -> None:
    groups = [Group("stage-0", (A, B))]
    rates = symmetric({(A, B): SLOW, (A, C): FAST, (B, C): FAST})
    ways = ways_of(rates, groups)
    ways.learn(C, 1, LinkRateReport((("stage-0", 1),), ()))
    assert ways.elements["stage-0"] == ELEMENTS
    for wrong in (1, -5):
        ways.learn(B, 0, LinkRateReport((("stage-0", wrong),), ()))
        assert shared_out(groups, (A, B), {"stage-0": [C]}, ways) == groups


@pytest.mark.parametrize("seed", range(20))
def test_the_shares_come_close_to_the_least_that_can_be(seed: int) -> None:
    draw = Random(seed)
    peers = [process(f"p{number:02d}") for number in range(draw.randint(9, 14))]
    stages = [peers[0:2], *(peers[2 + stage :: 4] for stage in range(4))]
    rates = symmetric({(one, two): draw.uniform(5e6, 50e6) for one in peers for two in peers if one < two})
    groups = [Group(f"stage-{number}", tuple(stage)) for number, stage in enumerate(stages) if len(stage) > 1]
    around = [[], *stages, []]
    beside = {f"stage-{number}": [*around[number], *around[number + 2]] for number in range(len(stages))}
    shared = shared_out(groups, peers, beside, ways_of(rates, groups))
    least, equal, ours = least_s(groups, beside, rates), longest_s(groups, rates), longest_s(shared, rates)
    assert least <= ours + 1e-9
    assert ours <= min(equal, 1.6 * least), f"least {least}, equal shares {equal}"
