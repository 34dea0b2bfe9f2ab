"""Sizes, costs and the line through them."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count

import pytest

from experiments.swarm_scaling import large
from experiments.swarm_scaling.cases import (
    PAPER,
    PAPER_HOPS,
    PAPER_SIZES,
    THROUGHPUT,
    WITHIN,
    line,
    measure,
    rows,
    scenario,
)
from experiments.swarm_scaling.costs import Cost, Metered
from swarmflow.core.protocol.events import Tick
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.world import World


def test_watching_changes_nothing_and_counts_what_the_simulation_counts() -> None:
    scene = scenario(6)
    scene = replace(scene, model=replace(scene.model, microbatches=6))
    plain, watched = Simulation(scene, 3, "swarmflow"), Simulation(scene, 3, "swarmflow")
    assert isinstance(watched.world, World)
    metered = Metered(time.thread_time)
    watched.world.machines = metered
    expected, report = plain.run(), watched.run()
    assert (report.virtual_s, report.happened) == (expected.virtual_s, expected.happened)
    sent = sum(number for kind, number in report.messages.items() if kind != "state")  # which no machine sends
    assert metered.peers.messages + metered.leader.messages >= sent > 0, "those to itself are no messages"
    assert metered.peers.messages > metered.leader.messages > 0
    assert metered.peers.sent_bytes >= 200 * metered.peers.messages
    assert metered.peers.cpu_s > 0


def test_the_throughput_is_below_the_best_and_the_rows_name_the_size() -> None:
    found = measure(8, 0)
    assert 0.5 * found.best < found.throughput <= found.best
    assert found.best == pytest.approx(2 / 6.944)
    # Forty microbatches at each of the two peers of the first stage, which waits for nobody; the others have three.
    assert found.bound_s == pytest.approx(40 * 6.944, abs=0.01)
    assert 0.98 * found.bound_s < found.work_s < found.seconds, "computing times vary by 5%, and their sum by less"
    named = list(rows(found))
    assert {row.setting for row in named} == {"8 peers"}
    assert len({row.metric for row in named}) == len(named)
    again = measure(8, 0)
    assert (again.seconds, again.metered.peers.messages) == (found.seconds, found.metered.peers.messages)


def test_the_papers_size_is_among_the_sizes_and_its_figures_in_the_rows() -> None:
    assert set(PAPER) <= set(PAPER_SIZES)
    found = replace(measure(8, 0), peers=400, hops=PAPER_HOPS)
    papers = {row.metric: row.paper for row in rows(found)}
    assert papers[THROUGHPUT] == 17.6
    assert papers[WITHIN] == pytest.approx(91.67, abs=0.01)


def test_the_line_through_points() -> None:
    assert list(line([1.0, 2.0, 5.0], [3.0, 5.0, 11.0])) == pytest.approx([2.0, 1.0])
    assert list(line([0.0, 1.0, 2.0], [0.0, 1.0, 0.0])) == pytest.approx([0.0, 0.0])


def test_one_decision_of_many_is_timed_and_stands_for_the_others() -> None:
    ticking = count()
    cost = Cost(lambda: float(next(ticking)), timed=4)
    for _ in range(8):
        cost.watch(lambda machine, event, now: [], None, Tick(), 0.0)
    assert (cost.decisions, cost.cpu_s) == (8, 8.0)
    assert next(ticking) == 4, "it was looked at twice for each of two decisions"


def test_a_large_swarm_comes_to_the_end_of_its_step_and_its_costs_are_compared() -> None:
    found = large.measure(32, 0)
    assert found.virtual_s > 32 * (1.7 + 3.3 / 2), "a microbatch passes every stage, forth and back"
    named = [row.metric for row in large.rows(found)]
    assert len(set(named)) == len(named)
    life = found.metered.lives[0]
    assert len(found.metered.lives) == large.KEPT
    assert min(life.again_s(time.thread_time)) > 0.0, "it decided the same without the others"
    with pytest.raises(SwarmflowError, match="on the same events"):
        replace(life, events=life.events[1:]).again_s(time.thread_time)
    assert list(large.fits([found])) == []
    compared = {row.metric: row.mean for row in large.fits([found, replace(found, peers=64)])}
    assert compared["log n grows by a factor of"] == pytest.approx(6 / 5)
    assert compared["Peer: messages sent a second: grows by a factor of"] == pytest.approx(1 / 2)
    assert compared["Leader: messages sent a second: more for twice the peers"] == pytest.approx(0.0, abs=1e-9)
