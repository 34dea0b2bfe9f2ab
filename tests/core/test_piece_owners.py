"""The owners of the pieces of an all-reduce avoid slow links, and stay as they are where the gain is small."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from swarmflow.core.commit.piece_owners import MEMBERS_MAX, PORTIONS, choose_owners
from swarmflow.core.protocol.messages import LinkRateReport
from swarmflow.core.protocol.types import Group, ProcessId
from swarmflow.core.routing.link_rates import LinkTable
from tests.core.samples import process

ELEMENTS = 1 << 20
FAST, SLOW = 50e6, 5e6
A, B, C = process("a"), process("b"), process("c")
Matrix = dict[tuple[ProcessId, ProcessId], float]


def links_of(rates: Matrix, groups: list[Group]) -> LinkTable:
    """Return the table after each process has reported its links to all others."""
    links = LinkTable()
    ends = sorted({end for pair in rates for end in pair})
    for one in ends:
        elements = tuple((group.name, ELEMENTS) for group in groups if one in group.members)
        told = tuple((other, rate) for (teller, other), rate in rates.items() if teller == one)
        stage = next((int(group.name.partition("-")[2]) for group in groups if one in group.members), -1)
        links.learn(one, stage, LinkRateReport(elements, told))
    return links


def symmetric(rates: Matrix) -> Matrix:
    return rates | {(other, one): rate for (one, other), rate in rates.items()}


def longest_s(groups: list[Group], rates: Matrix) -> float:
    """Return the busy time of the busiest link or connection, computed independently of the product."""
    busy: defaultdict[object, float] = defaultdict(float)
    for group in groups:
        owners = group.owners or group.members
        for owner in owners:
            for member in group.members:
                if member != owner:
                    for one, other in ((member, owner), (owner, member)):
                        portion = ELEMENTS / len(owners)
                        busy[one, other] += portion / rates[one, other]
                        busy[one, "out"] += portion / max(rates[pair] for pair in rates if pair[0] == one)
                        busy[other, "in"] += portion / max(rates[pair] for pair in rates if pair[1] == other)
    return max(busy.values())


def least_s(groups: list[Group], beside: dict[str, list[ProcessId]], rates: Matrix) -> float:
    """Return the least busy time that any choice of owners gives, by a linear program."""
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


def test_a_helper_sums_for_two_members_with_a_slow_link() -> None:
    groups = [Group("stage-0", (A, B))]
    rates = symmetric({(A, B): SLOW, (A, C): FAST, (B, C): FAST})
    [group] = choose_owners(groups, (A, B), {"stage-0": [C]}, links_of(rates, groups))
    owners = Counter(group.owners)
    assert owners[C] > 0.8 * PORTIONS
    assert (group.members, group.elements) == ((A, B), ELEMENTS)


def test_with_equal_links_nothing_changes() -> None:
    groups = [Group("stage-0", (A, B))]
    rates = symmetric({(A, B): FAST, (A, C): FAST, (B, C): FAST})
    assert choose_owners(groups, (A, B), {"stage-0": [C]}, links_of(rates, groups)) == groups


def test_the_only_contributor_sums_most_of_it() -> None:
    groups = [Group("stage-0", (A, B, C))]
    rates = symmetric({(A, B): FAST, (A, C): FAST, (B, C): SLOW})
    [group] = choose_owners(groups, (A,), {"stage-0": []}, links_of(rates, groups))
    assert Counter(group.owners)[A] > PORTIONS / 2


def test_nothing_changes_without_measured_links() -> None:
    pair, many = Group("stage-0", (A, B)), Group("stage-0", tuple(process(f"m{n}") for n in range(MEMBERS_MAX + 1)))
    around = links_of(symmetric({(A, C): FAST, (B, C): FAST}), [pair])
    all_slow = links_of({(one, two): SLOW for one in many.members for two in many.members if one != two}, [many])
    for group, links in ((pair, LinkTable()), (pair, around), (many, all_slow)):
        assert choose_owners([group], group.members, {"stage-0": [C]}, links) == [group]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan"), 1e-310, 1e-40, 1e300])
def test_impossible_rates_are_ignored(rate: float) -> None:
    links = LinkTable()
    links.learn(A, 0, LinkRateReport((), ((B, rate),)))
    assert links.rates == {}


def test_a_wrong_gradient_length_is_ignored() -> None:
    groups = [Group("stage-0", (A, B))]
    rates = symmetric({(A, B): SLOW, (A, C): FAST, (B, C): FAST})
    links = links_of(rates, groups)
    links.learn(C, 1, LinkRateReport((("stage-0", 1),), ()))
    assert links.elements["stage-0"] == ELEMENTS
    for wrong in (1, -5):
        links.learn(B, 0, LinkRateReport((("stage-0", wrong),), ()))
        assert choose_owners(groups, (A, B), {"stage-0": [C]}, links) == groups


@pytest.mark.parametrize("seed", range(20))
def test_the_busy_time_is_close_to_the_least_possible(seed: int) -> None:
    draw = Random(seed)
    peers = [process(f"p{number:02d}") for number in range(draw.randint(9, 14))]
    stages = [peers[0:2], *(peers[2 + stage :: 4] for stage in range(4))]
    rates = symmetric({(one, two): draw.uniform(5e6, 50e6) for one in peers for two in peers if one < two})
    groups = [Group(f"stage-{number}", tuple(stage)) for number, stage in enumerate(stages) if len(stage) > 1]
    around = [[], *stages, []]
    beside = {f"stage-{number}": [*around[number], *around[number + 2]] for number in range(len(stages))}
    shared = choose_owners(groups, peers, beside, links_of(rates, groups))
    least, equal, ours = least_s(groups, beside, rates), longest_s(groups, rates), longest_s(shared, rates)
    assert least <= ours + 1e-9
    assert ours <= min(equal, 1.6 * least), f"least {least}, equal shares {equal}"
