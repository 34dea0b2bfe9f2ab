"""Makes the processes of a pretended swarm: each has a new identity, a machine, a device, and what its disk holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from swarmflow.core.durability.memories import Former
from swarmflow.core.election.leader_lease import FIRST_TERM, LeaderLease
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Holding, Member, ProcessId, Snapshot
from swarmflow.simulator.device import Device
from swarmflow.simulator.host import Host
from swarmflow.simulator.kept import KeptState
from swarmflow.simulator.machines import TrainerStart

if TYPE_CHECKING:
    from swarmflow.simulator.world import World

FIND_AGAIN_S = 0.5  # how soon a process that found no leader looks for one again


@dataclass(slots=True)
class Launcher:
    """Makes processes that know no more than their disk, their memory and the leader that they found."""

    world: World
    latest: dict[str, ProcessId] = field(init=False, default_factory=dict)  # the life of each name that began last
    _looking: set[str] = field(init=False, default_factory=set)  # names of processes that look for a leader
    _incarnations: Random = field(init=False)
    _lineages: Random = field(init=False)

    def __post_init__(self) -> None:
        self._incarnations = Random(f"incarnations {self.world.seed}")
        self._lineages = Random(f"lineages {self.world.seed}")

    def runs(self, name: str) -> bool:
        """Return whether a process of this name runs, or looks for a leader: its folder is locked then."""
        latest = self.latest.get(name)
        return name in self._looking or (latest is not None and self.world.alive(latest))

    def look_again(self, name: str, start: Callable[[], object]) -> None:
        """Start a process a little later; until then it looks for a leader."""
        self._looking.add(name)

        def again() -> None:
            self._looking.remove(name)
            start()

        self.world.clock.after(FIND_AGAIN_S, again)

    def trainer(self, name: str, leader: ProcessId | None) -> tuple[Host, TrainerMachine]:
        """Make a trainer, which reads no disk but its own.

        leader: the one that it follows; None: it leads, from the newest version on its disk.
        """
        world = self.world
        process = self._new_process(name)
        me, plan = Member(process, -1), world.settings.plan
        rules = world.settings.of_leader(self._new_lineage)
        world.disks.set_aside(name)
        newest = max(world.disks.trainers.setdefault(name, {0}))
        roots, parts = world.disks.roots(newest), world.disks.holdings(name)
        leads = None
        if leader is None:
            world.directory.add(process)
            known, former = world.disks.known(name), self._former(name)
            leads = Leader(me, plan, rules, FIRST_TERM, newest, newest, roots, known, former)
            leads.safe.copies.record(me, parts)
        lease = LeaderLease(leader or process, timeouts=plan.timeouts)
        copies = (Holding(Snapshot(newest, roots), tuple(range(plan.stages))),) if roots else ()
        join = Join("trainer", "sim", "run", me, copies=(*copies, *parts))
        machine = world.machines.trainer(TrainerStart(lease, plan, rules, join, newest, roots, leads))
        return Host(process, machine, Device(world, process), world.clock.now_s), machine

    def peer(self, name: str, wish: int, kept: KeptState | None, leader: ProcessId) -> Host:
        """Make a peer. kept: what it has in memory; None: it has what lies in its folder."""
        world = self.world
        world.disks.set_aside(name)
        if kept is None and name in world.disks.left:
            kept = world.disks.left[name].copied()
        process = self._new_process(name)
        member = Member(process, wish, world.hardware.capacity(name, wish))
        join = Join(
            "peer",
            "sim",
            "run",
            member,
            world.hardware.speed(name),
            world.settings.rebalance_s,
            keeps=world.settings.keeps,
            copies=world.disks.holdings(name),
            held=kept.held if kept is not None else None,
            upload_rate=world.hardware.upload_rate(name),
            unfit=tuple(s for s in range(world.settings.plan.stages) if not world.hardware.capacity(name, s)),
        )
        lease = LeaderLease(leader, timeouts=world.settings.plan.timeouts)
        machine = world.machines.peer(process, lease, world.settings.plan, world.settings.of_peer(join))
        return Host(process, machine, Device(world, process, kept=kept), world.clock.now_s, wish)

    def _former(self, name: str) -> Former:
        """Return what a trainer finds in its folder: how far the run had come in its last epoch, and its members."""
        world = self.world
        lives = reversed([machine for process, machine in world.trainers.items() if process.name == name])
        view = next((machine.epoch_view for machine in lives if machine.epoch_view is not None), None)
        if view is None or not world.disks.remembered:
            return Former()
        names = frozenset(process.name for process in view.opened.roster.peer_ids)
        return Former(view.epoch.step, names, view.epoch.generation)

    def _new_lineage(self) -> str:
        return f"{self._lineages.getrandbits(64):016x}"

    def _new_process(self, name: str) -> ProcessId:
        self.latest[name] = ProcessId(name, 1 + self._incarnations.getrandbits(62))  # no order, as in the runtime
        return self.latest[name]
