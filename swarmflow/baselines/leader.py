"""The trainer that leads a baseline: when an iteration begins and ends, and which peers take part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    Aggregate,
    Alive,
    BaselineJoin,
    BaselineMessage,
    BaselineOpen,
    BaselineReady,
    Learnt,
    Path,
    Present,
    Updated,
)
from swarmflow.baselines.pipelines import Pipeline, PipelineLayout
from swarmflow.baselines.placement import BaselineLeaderSettings, BaselineMember, BaselinePlacement
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.transitions import Transitions


class BaselinePhase(StrEnum):
    """What the swarm of a baseline does, as its leader sees it."""

    GATHERING = "gathering"  # until every stage has a peer
    RUNNING = "running"  # microbatches are computed
    UPDATING = "updating"  # every microbatch is learnt, and the peers sum their gradients and update
    FINISHED = "finished"  # the last iteration is over


PHASES = Transitions(
    "iteration of a baseline",
    BaselinePhase.GATHERING,
    {
        BaselinePhase.GATHERING: {BaselinePhase.RUNNING: "every stage has a peer"},
        BaselinePhase.RUNNING: {BaselinePhase.UPDATING: "every microbatch is learnt"},
        BaselinePhase.UPDATING: {
            BaselinePhase.GATHERING: "every peer has updated",
            BaselinePhase.FINISHED: "every peer has updated after the last iteration",
        },
        BaselinePhase.FINISHED: {},
    },
)


class NegotiationState(StrEnum):
    """The negotiation of flows before the first iteration, as the leader sees it."""

    EXPECTED = "expected"  # its peers are not there, or flows are never negotiated
    RUNNING = "running"
    OVER = "over"  # its time is up; peers go on to negotiate beside the training


NEGOTIATIONS = Transitions(
    "negotiation before a baseline's first iteration",
    NegotiationState.EXPECTED,
    {
        NegotiationState.EXPECTED: {NegotiationState.RUNNING: "every stage has a peer"},
        NegotiationState.RUNNING: {NegotiationState.OVER: "its time is up"},
        NegotiationState.OVER: {},
    },
)


def columns(pipelines: tuple[Pipeline, ...]) -> tuple[tuple[ProcessId, ...], ...]:
    """Return the peers that serve each stage in some pipeline."""
    return tuple(tuple(sorted(p for p in column if p is not None)) for column in zip(*pipelines, strict=True))


@dataclass(slots=True)
class BaselineLeader:
    """Opens iterations, and ends them when every microbatch is learnt and every peer has updated. It never dies."""

    runtime: BaselineRuntime
    settings: BaselineLeaderSettings
    layout: PipelineLayout
    # Called at the end of each iteration with its number, the paths of its microbatches and the sizes of its stages.
    on_learnt: Callable[[int, dict[int, Path], tuple[int, ...]], None]
    placement: BaselinePlacement = field(init=False)
    phase: BaselinePhase = field(init=False, default=PHASES.initial)
    negotiation: NegotiationState = field(init=False, default=NEGOTIATIONS.initial)
    opened: BaselineOpen | None = field(init=False, default=None)  # the current iteration, or the last one
    aggregated_s: float = field(init=False, default=0.0)  # when the peers were last told to sum their gradients
    _iterations: int = field(init=False, default=0)  # that were begun
    _paths: dict[int, Path] = field(init=False, default_factory=dict)  # of the microbatches that are learnt
    _updating: dict[ProcessId, None] = field(init=False, default_factory=dict)  # peers that have not updated yet

    def __post_init__(self) -> None:
        self.placement = BaselinePlacement(self.runtime, self.settings, self.layout)

    def start(self) -> None:
        """Begin to lead."""
        if self.settings.silence_s > 0:
            self.runtime.after(1.0, self._watch)

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """Handle a message to the leader."""
        entry = self.placement.known.get(sender)
        if entry is not None:
            entry.last_received_s = self.runtime.now_s
        match message:
            case BaselineJoin():
                self._join(sender, message)
            case BaselineReady() if entry is not None:
                self._ready(entry, message)
            case Learnt() if self.phase is BaselinePhase.RUNNING:
                self._learnt(message)
            case Updated():
                self._updating.pop(sender, None)
                self._end_if_all()
            case Alive():
                pass

    def lost(self, process: ProcessId) -> None:
        """Go on without a dead peer."""
        if self.placement.known.pop(process, None) is None:
            return
        self.placement.announce_gone(process)
        self._updating.pop(process, None)
        for moved in self.placement.refill():
            self._updating.pop(moved, None)
        self._end_if_all()
        self._revise()

    @property
    def waiting_for(self) -> str:
        """What the leader waits for, in words."""
        empty = [str(stage) for stage, members in enumerate(self.placement.serving()) if not members]
        if empty:
            return f"a peer for stage {', '.join(empty)}"
        match self.phase:
            case BaselinePhase.RUNNING:
                missing = [str(i) for i in range(self.settings.plan.microbatches) if i not in self._paths]
                return f"microbatches {', '.join(missing)}"
            case BaselinePhase.UPDATING:
                return f"{len(self._updating)} peers to update"
            case _:
                return "peers to begin with"

    # --- members ------------------------------------------------------------------------------------------------------

    def _join(self, process: ProcessId, message: BaselineJoin) -> None:
        if message.speed <= 0:
            self.placement.trainers.append(process)
            self._begin_if_ready()
        else:
            self.placement.join(process, message)

    def _ready(self, entry: BaselineMember, message: BaselineReady) -> None:
        if message.stage != entry.stage:
            return
        entry.ready = True
        if self.negotiation is not NegotiationState.EXPECTED:
            self._announce_present()
        self._begin_if_ready()
        self._revise()

    def _watch(self) -> None:
        for process in self.placement.silent():
            self.lost(process)
        self.runtime.after(1.0, self._watch)

    def _revise(self) -> None:
        """Newcomers wait for the next iteration, unless their stage has no other peer or a pipeline has a hole."""
        if self.phase is not BaselinePhase.RUNNING or self.opened is None:
            return
        ready = self.placement.serving()
        pipelines = self.layout.form(ready, begins=False)
        here = [tuple(p for p in stage if self.placement.serves(p, s)) for s, stage in enumerate(self.opened.stages)]
        stages = columns(pipelines) if pipelines else tuple(some or ready[s] for s, some in enumerate(here))
        before = self.opened.stages
        if pipelines != self.opened.pipelines or any(
            p not in before[s] for s, stage in enumerate(stages) for p in stage
        ):
            self._open(self.opened.iteration, self.opened.revision + 1, stages, pipelines, self.opened.given)

    # --- negotiation --------------------------------------------------------------------------------------------------

    def _has_negotiated(self) -> bool:
        """Whether an iteration may begin; begins the negotiation where there is one."""
        if self.settings.negotiate_s <= 0:
            return True
        if self.negotiation is NegotiationState.EXPECTED:
            self.negotiation = NEGOTIATIONS.move(self.negotiation, NegotiationState.RUNNING)
            self._announce_present()
            self.runtime.after(self.settings.negotiate_s, self._end_negotiation)
        return self.negotiation is NegotiationState.OVER

    def _end_negotiation(self) -> None:
        self.negotiation = NEGOTIATIONS.move(self.negotiation, NegotiationState.OVER)
        self._begin_if_ready()

    def _announce_present(self) -> None:
        present = Present(self.placement.serving(), tuple(sorted(self.placement.trainers)))
        for process in (*(p for stage in present.stages for p in stage), *present.trainers):
            self.runtime.send(process, present)

    # --- iterations ---------------------------------------------------------------------------------------------------

    def _begin_if_ready(self) -> None:
        first = 0 if self._iterations else self.settings.peers_first
        if self.phase is not BaselinePhase.GATHERING or sum(e.ready for e in self.placement.known.values()) < first:
            return
        stages = self.placement.serving()
        if self.placement.trainers and all(stages) and self._has_negotiated():
            self._begin(stages)

    def _begin(self, stages: tuple[tuple[ProcessId, ...], ...]) -> None:
        assert not self._updating, "peers still update for the iteration before"
        self.phase = PHASES.move(self.phase, BaselinePhase.RUNNING)
        self._paths.clear()
        pipelines = self.layout.form(stages, begins=True)
        given = self.layout.give(self.settings.plan.microbatches)
        self._open(self._iterations, 0, columns(pipelines) if pipelines else stages, pipelines, given)
        self._iterations += 1
        self.placement.started = True

    def _open(
        self,
        iteration: int,
        revision: int,
        stages: tuple[tuple[ProcessId, ...], ...],
        pipelines: tuple[Pipeline, ...],
        given: tuple[int, ...],
    ) -> None:
        self.opened = BaselineOpen(
            iteration, revision, stages, tuple(sorted(self.placement.trainers)), pipelines, given
        )
        for process in (*(p for stage in stages for p in stage), *self.opened.trainers):
            self.runtime.send(process, self.opened)

    def _learnt(self, message: Learnt) -> None:
        assert self.opened is not None
        if message.trip.iteration != self.opened.iteration or message.trip.index in self._paths:
            return
        self._paths[message.trip.index] = message.path
        if message.trip.pipeline >= 0:
            self.layout.learnt(message.trip.pipeline, message.seconds)
        if len(self._paths) == self.settings.plan.microbatches:
            self._aggregate(self.opened)

    def _aggregate(self, opened: BaselineOpen) -> None:
        self.phase = PHASES.move(self.phase, BaselinePhase.UPDATING)
        self.aggregated_s = self.runtime.now_s
        stages = [tuple(p for p in stage if self.placement.serves(p, s)) for s, stage in enumerate(opened.stages)]
        groups = [(f"stage-{number}", members) for number, members in enumerate(stages)]
        for weights in self.settings.plan.shared:
            groups.append((weights.group, tuple(one for stage in weights.stages for one in stages[stage])))
        self._updating = dict.fromkeys(p for members in stages for p in members)
        for process in self._updating:
            mine = tuple((name, members) for name, members in groups if process in members)
            self.runtime.send(process, Aggregate(opened.iteration, mine))
        self._end_if_all()

    def _end_if_all(self) -> None:
        if self.phase is not BaselinePhase.UPDATING or self._updating or self.opened is None:
            return
        last = self._iterations >= self.settings.iterations
        self.phase = PHASES.move(self.phase, BaselinePhase.FINISHED if last else BaselinePhase.GATHERING)
        self.on_learnt(self.opened.iteration, dict(self._paths), tuple(len(stage) for stage in self.opened.stages))
        if last:
            return
        if not self.opened.pipelines:  # pipelines are fixed
            self.placement.rebalance()
        self._begin_if_ready()
