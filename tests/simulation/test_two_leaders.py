"""Two sides of a partition never go on in one lineage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.simulator.faults import finish, peers_of
from swarmflow.simulator.moments import split_in_phase
from swarmflow.simulator.world import World
from tests.further import more_of, seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM, fill_disks

FOUR_EACH = replace(SWARM, settings=replace(SETTINGS, steps=45), peers=12)
Opened = dict[tuple[str, Epoch], set[ProcessId]]  # (lineage, epoch): who leads it


def most_of_it(world: World) -> set[str]:
    """The second trainer and three of four peers of each stage."""
    peers = [process.name for stage in range(3) for process in peers_of(world, stage)[1:4]]
    assert len(peers) == 9
    return {"t1", *peers}


def watch(world: World, opened: Opened) -> None:
    """Remember who leads which epoch of which lineage."""
    for process, machine in world.trainers.items():
        if machine.lead is not None and machine.lead.step is not None and world.hosts[process].alive:
            opened.setdefault((machine.lead.lineage.name, machine.lead.step.epoch), set()).add(process)
    if not world.ended:
        world.clock.after(0.05, lambda: watch(world, opened))


@pytest.mark.parametrize(
    ("phase", "notified"),
    [
        ("committing", False),
        *more_of(("working", True), ("working", False), ("preparing", True), ("preparing", False)),
        *more_of(("prepared", True), ("prepared", False), ("committing", True)),
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_both_sides_of_a_split_do_not_go_on_in_one_lineage(seed: int, phase: str, notified: bool) -> None:
    world = FOUR_EACH.start(seed)
    if phase == "prepared":
        fill_disks(world)
    opened: Opened = {}
    split_in_phase(world, phase, most_of_it, 60.0, notified=notified, since_s=SETTLED_S)
    watch(world, opened)
    finish(world)
    shared = sorted(epoch for (_, epoch), leaders in opened.items() if len(leaders) > 1)
    assert len(shared) <= 1, f"both leaders went on from {shared[0]} to {shared[-1]} in one lineage"
    assert world.counts["successions"] >= 1, "the larger side has another leader"
