"""The trainer that leads a baseline: who is there, on which stage, and when an iteration begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    Aggregate,
    Alive,
    BaselineGone,
    BaselineGranted,
    BaselineJoin,
    BaselineMessage,
    BaselineOpen,
    BaselineReady,
    Learnt,
    Path,
    Present,
    Updated,
)
from swarmflow.baselines.pipelines import Line, Lines
from swarmflow.core.leading.rebalance import Server, rebalance
from swarmflow.core.types import Plan, ProcessId


def columns(lines: tuple[Line, ...]) -> tuple[tuple[ProcessId, ...], ...]:
    """Who serves each stage in some pipeline."""
    return tuple(tuple(sorted(p for p in column if p is not None)) for column in zip(*lines, strict=True))


@dataclass(slots=True)
class BaselineMember:
    """A peer that joined. stage: that it serves or loads (ready); -1: it has none yet."""

    process: ProcessId
    wish: int
    speed: float
    capacity: int
    stage: int = -1
    ready: bool = False
    settled_s: float = 0.0
    last_received_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BaselineLeaderSettings:
    """What the leader goes by.

    silence_s: after which a peer is taken for dead, 0: connections tell. peers_first: that the first iteration waits
    for. rebalance_s: how often a peer may be moved, 0: never. negotiate_s: how long flows are negotiated before the
    first iteration, and newcomers are placed by their capacity (GWTF); 0: they are not, and it is by their speed.
    """

    plan: Plan
    iterations: int
    peers_first: int
    rebalance_s: float
    silence_s: float
    negotiate_s: float = 0.0


@dataclass(slots=True)
class BaselineLeader:
    """Never dies.

    on_learnt: told at the end of each iteration of its number, the paths of its microbatches and its stages' sizes.
    phase: `gathering` until every stage has a peer, `running`, `updating`, and `finished` in the end.
    """

    runtime: BaselineRuntime
    settings: BaselineLeaderSettings
    lines: Lines
    on_learnt: Callable[[int, dict[int, Path], tuple[int, ...]], None]
    phase: str = "gathering"
    opened: BaselineOpen | None = None
    known: dict[ProcessId, BaselineMember] = field(default_factory=dict)
    trainers: list[ProcessId] = field(default_factory=list)
    _iterations: int = 0
    _paths: dict[int, Path] = field(default_factory=dict)
    _updating: dict[ProcessId, None] = field(default_factory=dict)
    _moved_s: float = 0.0
    _negotiated: bool | None = None

    def start(self) -> None:
        """Begin to lead."""
        if self.settings.silence_s > 0:
            self.runtime.after(1.0, self._watch)

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """A process says something to its leader."""
        if sender in self.known:
            self.known[sender].last_received_s = self.runtime.now_s
        match message:
            case BaselineJoin():
                self._join(sender, message)
            case BaselineReady() if sender in self.known:
                self._ready(self.known[sender], message)
            case Learnt() if self.phase == "running":
                self._learnt(message)
            case Updated():
                self._updating.pop(sender, None)
                self._end_if_all()
            case Alive():
                pass

    def lost(self, process: ProcessId) -> None:
        """A peer is dead."""
        if self.known.pop(process, None) is None:
            return
        self._tell_gone(process)
        self._updating.pop(process, None)
        self._end_if_all()
        self._refill()
        self._revise()

    @property
    def waiting_for(self) -> str:
        """In words."""
        empty = [str(stage) for stage, members in enumerate(self._stages()) if not members]
        if empty:
            return f"a peer for stage {', '.join(empty)}"
        if self.phase == "running":
            missing = [str(i) for i in range(self.settings.plan.microbatches) if i not in self._paths]
            return f"microbatches {', '.join(missing)}"
        return f"{len(self._updating)} peers to update" if self.phase == "updating" else "peers to begin with"

    # --- who is there -------------------------------------------------------------------------------------------------

    def _join(self, process: ProcessId, message: BaselineJoin) -> None:
        if message.speed <= 0:
            self.trainers.append(process)
            self._begin_if_ready()
            return
        entry = BaselineMember(
            process, message.wish, message.speed, message.capacity, last_received_s=self.runtime.now_s
        )
        self.known[process] = entry
        candidates = [entry]
        if self.settings.negotiate_s > 0:  # the highest capacity to the most utilised stage (GWTF, V-B)
            waits = not self._iterations and len(self.known) < self.settings.peers_first
            candidates = [] if waits else sorted(self._peers(-1), key=lambda e: (e.wish < 0, -e.capacity))
        for candidate in candidates:
            self._place(candidate)

    def _place(self, entry: BaselineMember) -> None:
        planned = self.lines.place(entry.process.name)
        entry.stage = entry.wish if entry.wish >= 0 else self._emptiest() if planned is None else planned
        entry.settled_s = self.runtime.now_s
        self._grant(entry)

    def _grant(self, entry: BaselineMember) -> None:
        """Donors begin in turn, as in swarmflow. The leader has a copy of everything, in the baselines' favour."""
        peers = [e for e in self._peers(entry.stage) if e is not entry]
        found = sorted(e.process for e in peers if e.ready)
        turn = sum(not e.ready for e in peers) % len(found) if found else 0
        donors = (*found[turn:], *found[:turn], self.runtime.me) if self._iterations else ()
        entry.ready = False
        self.runtime.send(entry.process, BaselineGranted(entry.stage, donors))

    def _emptiest(self) -> int:
        """The stage of the highest load: its cost by the speed of its peers, those that load it included."""
        peers = [self._peers(stage) for stage in range(self.settings.plan.stages)]
        speeds = [sum(e.speed for e in stage) for stage in peers]
        loads = [cost / speed if speed > 0 else float("inf") for cost, speed in zip(self._costs, speeds, strict=True)]
        if self.settings.negotiate_s <= 0:
            return max(range(len(peers)), key=lambda stage: (loads[stage], -stage))
        # GWTF: of the highest utilisation; as each flow passes every stage, that is of the least capacity. Those who
        # asked for a stage, if nobody else serves it, are the data nodes, which hold the first one (II).
        free = [stage for stage, some in enumerate(peers) if not some or any(e.wish < 0 for e in some)]
        held = [sum(e.capacity for e in stage) for stage in peers]
        return min(free or range(len(peers)), key=lambda stage: (held[stage], -loads[stage], stage))

    @property
    def _costs(self) -> tuple[float, ...]:
        return self.settings.plan.costs or (1.0,) * self.settings.plan.stages

    def _peers(self, stage: int) -> list[BaselineMember]:
        return [entry for entry in self.known.values() if entry.stage == stage]

    def _stages(self) -> tuple[tuple[ProcessId, ...], ...]:
        stages = range(self.settings.plan.stages)
        return tuple(tuple(sorted(e.process for e in self._peers(s) if e.ready)) for s in stages)

    def _ready(self, entry: BaselineMember, message: BaselineReady) -> None:
        if message.stage != entry.stage:
            return
        entry.ready = True
        if self._negotiated is not None:
            self._tell_present()
        self._begin_if_ready()
        self._revise()

    def _revise(self) -> None:
        """Newcomers wait for the next iteration, unless nobody else serves their stage or a pipeline has a hole."""
        if self.phase != "running" or self.opened is None:
            return
        ready = self._stages()
        lines = self.lines.form(ready, begins=False)
        here = [tuple(p for p in stage if self._serves(p, s)) for s, stage in enumerate(self.opened.stages)]
        stages = columns(lines) if lines else tuple(some or ready[s] for s, some in enumerate(here))
        before = self.opened.stages
        if lines != self.opened.lines or any(p not in before[s] for s, stage in enumerate(stages) for p in stage):
            self._open(self.opened.iteration, self.opened.revision + 1, stages, lines, self.opened.given)

    def _refill(self) -> None:
        """A stage that nobody serves or loads gets a peer of the largest other one."""
        for stage in range(self.settings.plan.stages):
            if self._peers(stage) or not self._iterations:
                continue
            spare = [e for e in self.known.values() if e.wish < 0 and len(self._peers(e.stage)) > 1]
            if spare:
                self._move(max(spare, key=lambda e: (len(self._peers(e.stage)), e.process)), stage)

    def _move(self, entry: BaselineMember, stage: int) -> None:
        self.runtime.count("moves")
        entry.stage, entry.settled_s = stage, self.runtime.now_s
        self._tell_gone(entry.process)
        self._updating.pop(entry.process, None)
        self._grant(entry)

    def _rebalance(self) -> None:
        """SWARM's Algorithm 2, at most one move a period and between two iterations only: nothing is lost by it."""
        stages = [[e for e in self._peers(s) if e.ready] for s in range(self.settings.plan.stages)]
        period_s, now_s = self.settings.rebalance_s, self.runtime.now_s
        settled = all(e.ready for e in self.known.values()) and all(stages)
        fixed = self.opened is not None and bool(self.opened.lines)
        if period_s <= 0 or now_s - self._moved_s < period_s or fixed or not settled:
            return
        servers = [
            [Server(e.process, e.speed, e.wish < 0 and now_s - e.settled_s >= period_s) for e in stage]
            for stage in stages
        ]
        move = rebalance(self._costs, servers)
        if move is not None:
            self._moved_s = now_s
            self._move(self.known[move.process], move.stage)

    def _watch(self) -> None:
        for entry in list(self.known.values()):
            if self.runtime.now_s - entry.last_received_s > self.settings.silence_s:
                self.lost(entry.process)
        self.runtime.after(1.0, self._watch)

    def _tell_gone(self, process: ProcessId) -> None:
        for other in (*self.known, *self.trainers):
            if other != process:
                self.runtime.send(other, BaselineGone(process))

    # --- iterations ---------------------------------------------------------------------------------------------------

    def _begin_if_ready(self) -> None:
        first = 0 if self._iterations else self.settings.peers_first
        if self.phase != "gathering" or sum(e.ready for e in self.known.values()) < first:
            return
        stages = self._stages()
        if self.trainers and all(stages) and self._has_negotiated():
            self._begin(stages)

    def _has_negotiated(self) -> bool:
        if self.settings.negotiate_s > 0 and self._negotiated is None:
            self._negotiated = False
            self._tell_present()
            self.runtime.after(self.settings.negotiate_s, self._end_negotiation)
        return self.settings.negotiate_s <= 0 or self._negotiated is True

    def _end_negotiation(self) -> None:
        self._negotiated = True
        self._begin_if_ready()

    def _tell_present(self) -> None:
        present = Present(self._stages(), tuple(sorted(self.trainers)))
        for process in (*(p for stage in present.stages for p in stage), *present.trainers):
            self.runtime.send(process, present)

    def _begin(self, stages: tuple[tuple[ProcessId, ...], ...]) -> None:
        self.phase = "running"
        self._paths.clear()
        lines = self.lines.form(stages, begins=True)
        given = self.lines.give(self.settings.plan.microbatches)
        self._open(self._iterations, 0, columns(lines) if lines else stages, lines, given)
        self._iterations += 1

    def _open(
        self,
        iteration: int,
        revision: int,
        stages: tuple[tuple[ProcessId, ...], ...],
        lines: tuple[Line, ...],
        given: tuple[int, ...],
    ) -> None:
        self.opened = BaselineOpen(iteration, revision, stages, tuple(sorted(self.trainers)), lines, given)
        for process in (*(p for stage in stages for p in stage), *self.opened.trainers):
            self.runtime.send(process, self.opened)

    def _learnt(self, message: Learnt) -> None:
        assert self.opened is not None
        if message.trip.iteration != self.opened.iteration or message.trip.index in self._paths:
            return
        self._paths[message.trip.index] = message.path
        if message.trip.line >= 0:
            self.lines.learnt(message.trip.line, message.seconds)
        if len(self._paths) == self.settings.plan.microbatches:
            self._aggregate(self.opened)

    def _aggregate(self, opened: BaselineOpen) -> None:
        self.phase = "updating"
        stages = [tuple(p for p in stage if self._serves(p, number)) for number, stage in enumerate(opened.stages)]
        groups = [(f"stage-{number}", members) for number, members in enumerate(stages)]
        if self.settings.plan.tied and len(stages) > 1:
            groups.append(("tied", stages[0] + stages[-1]))
        self._updating = dict.fromkeys(p for members in stages for p in members)
        for process in self._updating:
            mine = tuple((name, members) for name, members in groups if process in members)
            self.runtime.send(process, Aggregate(opened.iteration, mine))
        self._end_if_all()

    def _serves(self, process: ProcessId, stage: int) -> bool:
        entry = self.known.get(process)
        return entry is not None and entry.ready and entry.stage == stage

    def _end_if_all(self) -> None:
        if self.phase != "updating" or self._updating or self.opened is None:
            return
        self.phase = "gathering"
        self.on_learnt(self.opened.iteration, dict(self._paths), tuple(len(stage) for stage in self.opened.stages))
        if self._iterations >= self.settings.iterations:
            self.phase = "finished"
            return
        self._rebalance()
        self._begin_if_ready()
