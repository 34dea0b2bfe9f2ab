"""The peers that have joined a baseline's leader, and the stage that each serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import BaselineGone, BaselineGranted, BaselineJoin
from swarmflow.baselines.pipelines import PipelineLayout
from swarmflow.core.membership.rebalance import StagePeer, rebalance
from swarmflow.core.protocol.types import Plan, ProcessId


@dataclass(slots=True)
class BaselineMember:
    """A peer that has joined."""

    process: ProcessId
    wish: int  # the stage that it asks for; -1: any
    speed: float
    capacity: int
    stage: int = -1  # that it serves, or loads; -1: it waits for one
    ready: bool = False  # it serves its stage
    settled_s: float = 0.0  # when it was granted its stage
    last_received_s: float = 0.0  # when its last message arrived


@dataclass(frozen=True, slots=True)
class BaselineLeaderSettings:
    """What the leader of a baseline is configured with."""

    plan: Plan
    iterations: int
    peers_first: int  # that the first iteration waits for
    rebalance_s: float  # how often a peer may be moved; 0: never
    silence_s: float  # without a message after which a peer counts as dead; 0: broken connections show it
    # How long flows are negotiated before the first iteration, where newcomers are placed by their capacity (GWTF);
    # 0: no flows are, and newcomers are placed by their speed.
    negotiate_s: float = 0.0


@dataclass(slots=True)
class BaselinePlacement:
    """Decides which stage each peer serves: where newcomers are placed, and which peers are moved."""

    runtime: BaselineRuntime
    settings: BaselineLeaderSettings
    layout: PipelineLayout
    known: dict[ProcessId, BaselineMember] = field(init=False, default_factory=dict)
    trainers: list[ProcessId] = field(init=False, default_factory=list)
    started: bool = field(init=False, default=False)  # the first iteration has begun: there are states to copy
    _moved_s: float = field(init=False, default=0.0)  # when a peer was last moved to balance the stages

    def join(self, process: ProcessId, message: BaselineJoin) -> None:
        """Place a newcomer, with those that have waited for it."""
        now_s = self.runtime.now_s
        entry = BaselineMember(process, message.wish, message.speed, message.capacity, last_received_s=now_s)
        self.known[process] = entry
        candidates = [entry]
        if self.settings.negotiate_s > 0:  # the highest capacity to the most utilised stage (GWTF, V-B)
            waits = not self.started and len(self.known) < self.settings.peers_first
            candidates = [] if waits else sorted(self.on_stage(-1), key=lambda e: (e.wish < 0, -e.capacity))
        for candidate in candidates:
            self._place(candidate)

    def _place(self, entry: BaselineMember) -> None:
        planned = self.layout.place(entry.process.name)
        entry.stage = entry.wish if entry.wish >= 0 else self._emptiest() if planned is None else planned
        entry.settled_s = self.runtime.now_s
        self._grant(entry)

    def _grant(self, entry: BaselineMember) -> None:
        """Donors begin in turn, as in swarmflow. The leader gives its copy of a stage that has no other donor."""
        peers = [e for e in self.on_stage(entry.stage) if e is not entry]
        found = sorted(e.process for e in peers if e.ready) or [self.runtime.me]
        turn = sum(not e.ready for e in peers) % len(found)
        donors = (*found[turn:], *found[:turn]) if self.started else ()
        entry.ready = False
        self.runtime.send(entry.process, BaselineGranted(entry.stage, donors))

    def _emptiest(self) -> int:
        """Return the stage of the highest load: its cost by the speed of its peers, those that load it included."""
        peers = [self.on_stage(stage) for stage in range(self.settings.plan.stages)]
        speeds = [sum(e.speed for e in stage) for stage in peers]
        loads = [cost / speed if speed > 0 else float("inf") for cost, speed in zip(self._costs, speeds, strict=True)]
        if self.settings.negotiate_s <= 0:
            return max(range(len(peers)), key=lambda stage: (loads[stage], -stage))
        # GWTF: the stage of the highest utilisation; as each flow passes every stage, that is the one of the least
        # capacity. A stage whose peers have all asked for it is that of the data nodes, which hold the first one (II).
        free = [stage for stage, some in enumerate(peers) if not some or any(e.wish < 0 for e in some)]
        held = [sum(e.capacity for e in stage) for stage in peers]
        return min(free or range(len(peers)), key=lambda stage: (held[stage], -loads[stage], stage))

    @property
    def _costs(self) -> tuple[float, ...]:
        return self.settings.plan.costs or (1.0,) * self.settings.plan.stages

    # --- queries ------------------------------------------------------------------------------------------------------

    def on_stage(self, stage: int) -> list[BaselineMember]:
        """Return the peers that serve a stage or load it."""
        return [entry for entry in self.known.values() if entry.stage == stage]

    def serving(self) -> tuple[tuple[ProcessId, ...], ...]:
        """Return the peers that serve each stage."""
        stages = range(self.settings.plan.stages)
        return tuple(tuple(sorted(e.process for e in self.on_stage(s) if e.ready)) for s in stages)

    def serves(self, process: ProcessId, stage: int) -> bool:
        """Whether a peer serves a stage."""
        entry = self.known.get(process)
        return entry is not None and entry.ready and entry.stage == stage

    def silent(self) -> list[ProcessId]:
        """Return the peers whose last message is too long ago."""
        now_s = self.runtime.now_s
        return [e.process for e in self.known.values() if now_s - e.last_received_s > self.settings.silence_s]

    # --- moving -------------------------------------------------------------------------------------------------------

    def refill(self) -> list[ProcessId]:
        """Move a peer of the largest stage to each one without any. Returns those that were moved."""
        moved: list[ProcessId] = []
        for stage in range(self.settings.plan.stages):
            if self.on_stage(stage) or not self.started:
                continue
            spare = [e for e in self.known.values() if e.wish < 0 and len(self.on_stage(e.stage)) > 1]
            if spare:
                entry = max(spare, key=lambda e: (len(self.on_stage(e.stage)), e.process))
                self._move(entry, stage)
                moved.append(entry.process)
        return moved

    def rebalance(self) -> None:
        """SWARM's Algorithm 2, at most one move a period and between two iterations only: nothing is lost by it."""
        stages = [[e for e in self.on_stage(s) if e.ready] for s in range(self.settings.plan.stages)]
        period_s, now_s = self.settings.rebalance_s, self.runtime.now_s
        settled = all(e.ready for e in self.known.values()) and all(stages)
        if period_s <= 0 or now_s - self._moved_s < period_s or not settled:
            return
        servers = [
            [StagePeer(e.process, e.speed, e.wish < 0 and now_s - e.settled_s >= period_s) for e in stage]
            for stage in stages
        ]
        move = rebalance(self._costs, servers)
        if move is not None:
            self._moved_s = now_s
            self._move(self.known[move.process], move.stage)

    def _move(self, entry: BaselineMember, stage: int) -> None:
        self.runtime.count("moves")
        entry.stage, entry.settled_s = stage, self.runtime.now_s
        self.announce_gone(entry.process)
        self._grant(entry)

    def announce_gone(self, process: ProcessId) -> None:
        """Send to every process that one is dead, or leaves its stage."""
        for other in (*self.known, *self.trainers):
            if other != process:
                self.runtime.send(other, BaselineGone(process))
