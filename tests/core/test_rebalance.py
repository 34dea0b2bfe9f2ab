"""Rebalancing: large stages are levelled as small ones are, and it comes to rest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.membership.rebalance import StagePeer, rebalance
from swarmflow.core.protocol.types import ProcessId

Stages = list[list[StagePeer]]


def alike(*sizes: int) -> Stages:
    """Stages of so many equal peers."""
    return [[StagePeer(ProcessId(f"p{s}-{n:03}", 1), 1.0, True) for n in range(size)] for s, size in enumerate(sizes)]


def levelled(costs: list[float], stages: Stages) -> int:
    """Make the moves that are asked for, until there is none; how many there were."""
    moves = 0
    while (move := rebalance(costs, stages)) is not None:
        for servers in stages:
            for server in [server for server in servers if server.process == move.process]:
                servers.remove(server)
                mover = server
        stages[move.stage].append(mover)
        moves += 1
        assert moves <= 1000, "it never comes to rest"
    return moves


def test_speeds_that_differ_too_much_to_be_subtracted_are_no_reason_to_fail() -> None:
    speeds = [[1e15, 1e-9], [100.0]]
    stages = [[StagePeer(ProcessId(f"{s}-{n}", 1), speed, True) for n, speed in enumerate(s)] for s in speeds]
    move = rebalance((1.0, 1.0), stages)
    assert move is None, "the slow one brings nothing, and alone it would do too little"


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_equal_peers_end_evenly_however_many_there_are(sizes: list[int]) -> None:
    stages = alike(*sizes)
    moves = levelled([1.0] * len(sizes), stages)
    assert max(map(len, stages)) - min(map(len, stages)) <= 1
    wanted = sum(sizes) // len(sizes)
    assert moves == max(sum(max(0, wanted - size) for size in sizes), sum(max(0, size - wanted - 1) for size in sizes))


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.2, 5.0), min_size=2, max_size=4),
    st.lists(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), min_size=4, max_size=4),
)
def test_unequal_peers_come_to_rest_and_no_stage_ends_busier_than_the_busiest_was(
    costs: list[float], speeds: list[list[float]]
) -> None:
    stages = [
        [StagePeer(ProcessId(f"p{s}-{n}", 1), speed, True) for n, speed in enumerate(some)]
        for s, some in enumerate(speeds[: len(costs)])
    ]
    before = max(cost / sum(server.speed for server in some) for cost, some in zip(costs, stages, strict=True))
    levelled(costs, stages)
    after = max(cost / sum(server.speed for server in some) for cost, some in zip(costs, stages, strict=True))
    assert after <= before * (1 + 1e-12)
    assert all(stages)
