"""A pretended computer: it carries out the actions of one process' machine in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.protocol.actions import (
    Abandon,
    Action,
    Apply,
    Discard,
    DropCopies,
    Forget,
    FormMicrobatch,
    HashState,
    KeepCopies,
    LoadState,
    PlanStages,
    Release,
    Reset,
    Resume,
    RunBackward,
    RunForward,
    RunLoss,
    RunReplay,
    Seal,
    StorePiece,
    StoreState,
    SumPiece,
    Validate,
    WriteCheckpoint,
    WriteStage,
)
from swarmflow.core.protocol.events import Event, MicrobatchFormed, Progressed, Validated
from swarmflow.core.protocol.messages import Held
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.arithmetic import Weights
from swarmflow.simulator.executor import Computing, Executor, RunWeights
from swarmflow.simulator.gradient_sums import GradientSums
from swarmflow.simulator.hop_results import HopResults
from swarmflow.simulator.kept import KeptState
from swarmflow.simulator.stalls import Stalls
from swarmflow.simulator.state_loading import StateLoading
from swarmflow.simulator.storage import Storage

if TYPE_CHECKING:
    from swarmflow.simulator.world import World


PLANNING_S = 0.1  # to work out which peer should serve which stage


@dataclass(slots=True)
class Device:
    """Carries out actions as the runtime does: each part of a device is responsible for one kind of work."""

    world: World
    process: ProcessId
    kept: KeptState | None = None  # what an earlier life left in memory, until it is resumed or replaced
    weights: Weights | None = field(init=False, default=None)  # None: it serves no stage yet
    stalls: Stalls = field(init=False, default_factory=Stalls)  # work that it leaves undone
    storage: Storage = field(init=False)
    loading: StateLoading = field(init=False)
    executor: Executor = field(init=False)
    results: HopResults = field(init=False)
    sums: GradientSums = field(init=False)

    def __post_init__(self) -> None:
        self.storage, self.loading = Storage(self.world, self.process), StateLoading(self)
        self.executor, self.results, self.sums = Executor(self), HopResults(self), GradientSums(self)

    def perform(self, action: Action) -> None:
        """Carry out an action; the event that it leads to follows at once or later."""
        if self.stalls.left and self.stalls.swallow(action):
            return
        match action:
            case RunForward() | RunLoss() | RunBackward() | RunReplay() | Apply():
                self.executor.submit(action)
            case Discard():
                self.executor.discard(action.microbatch)
            case Reset():
                self.executor.reset()
                self.stage_weights().accumulated.clear()
                self.results.careful, self.results.kept = action.careful, action.kept
            case SumPiece() | StorePiece():
                self.sums.reduce(action)
            case Seal():
                self.sums.seal(action)
            case HashState():
                self.sums.hash(action)
            case LoadState():
                self.loading.load(action)
            case Resume():
                self.loading.resume(action)
            case StoreState():
                kept = self.keep(action.held)
                self.executor.reset()  # it computes nothing more
                self.storage.store(kept)
            case Forget():
                self.storage.forgotten.add(action.process)
            case FormMicrobatch():
                self._form(action)
            case WriteCheckpoint():
                self.storage.fetch_checkpoint(action)
            case Abandon():
                self.storage.abandoned += action.what == "save"
            case WriteStage():
                self.storage.write_stage(action, self.stage_weights())
            case KeepCopies():
                self.storage.fetch_copies(action)
            case DropCopies():
                self.storage.drop(action)
            case PlanStages():
                self._plan(action)
            case Validate():
                self.world.clock.after(self.world.hardware.load_s() or 0.0, partial(self._validate, action))
            case Release() if self.world.alive(self.process):  # a process that has ended holds nothing any more
                stored = self.world.hosts[self.process].stored
                for ref in action.refs:
                    del stored[ref.key]

    def finish(self, action: Computing) -> None:
        """Have the result of a computation that has ended delivered to the machine."""
        match action:
            case Apply():
                self.sums.apply(action)
            case RunWeights():
                self.results.deliver_sum(action.of)
            case _:
                self.results.deliver(action)

    def stage_weights(self) -> Weights:
        """Return the weights of its stage. Raises RuntimeError where it serves none."""
        if self.weights is None:
            raise RuntimeError(f"{self.process} computes without a stage")
        return self.weights

    def answer(self, event: Event) -> None:
        """Deliver an event to the machine, after the events of this moment."""
        self.world.clock.after(0.0, partial(self.world.deliver, self.process, event))

    def keep(self, held: Held | None) -> KeptState | None:
        """Return what this life leaves to the next one. held: what the machine says of it; None: nothing."""
        if held is None or self.weights is None:
            return self.kept if held is not None else None
        kept = KeptState(self.process, held, self.weights, self.sums.sealed)
        kept.end_update(self.world)
        return kept

    def _form(self, action: FormMicrobatch) -> None:
        bytes_of = self.world.hardware.boundary_bytes
        refs = [self.world.store(self.process, kind, bytes_of(0, kind)) for kind in ("tokens", "targets")]
        self.answer(MicrobatchFormed(action.microbatch, refs[0], refs[1]))

    def _plan(self, action: PlanStages) -> None:
        planner = self.world.settings.planner
        assert planner is not None, "a leader plans only where there is a planner"
        self.world.clock.after(PLANNING_S, partial(self.world.deliver, self.process, planner(action)))

    def _validate(self, action: Validate) -> None:
        """Measure the loss. It does not end where a process is gone, or gives nothing back."""
        stages = [[self.world.hosts[member.process] for member in stage] for stage in action.roster.stages]
        hosts = [host for stage in stages for host in stage]
        giving = tuple(host.process for host in hosts if host.device.stalls.gives)
        if all(host.alive for host in hosts) and all(any(h.process in giving for h in stage) for stage in stages):
            self.world.deliver(self.process, Progressed("validation", giving))
            if len(giving) == len(hosts):
                self.world.deliver(self.process, Validated(action.version, 1.0))
