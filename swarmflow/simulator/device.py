"""A pretended computer: one thing is computed at a time, and what is computed is recorded instead."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.actions import (
    Abandon,
    Action,
    Apply,
    Discard,
    DropCopies,
    Forget,
    FormMicrobatch,
    KeepCopies,
    LoadState,
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
)
from swarmflow.core.events import (
    Applied,
    BackwardComputed,
    ComputeFailed,
    Event,
    ForwardComputed,
    LossComputed,
    MicrobatchFormed,
    PieceReduced,
    Progressed,
    Replayed,
    Sealed,
    StateLoaded,
    StateNotLoaded,
    Validated,
)
from swarmflow.core.messages import Held
from swarmflow.core.reduce import PIECE_ELEMENTS
from swarmflow.core.types import Microbatch, ProcessId, Ref, Slice
from swarmflow.simulator.arithmetic import Gradient, Sum, Weights, digest, initial
from swarmflow.simulator.causes import COMPUTE
from swarmflow.simulator.kept import KeptState
from swarmflow.simulator.measure import Spent
from swarmflow.simulator.spoiling import SPOILT, spoiling, spoilt, without_norm
from swarmflow.simulator.stalls import Stalls
from swarmflow.simulator.storage import ASK_AGAIN_S, Storage

if TYPE_CHECKING:
    from swarmflow.simulator.world import World

SLOWNESS = 30.0
TOKENS = 10  # of a pretended microbatch
FLIPPED: Gradient = Counter({-2: 1})  # what a flipped bit adds to a sum; it is finite
Computing = RunForward | RunLoss | RunBackward | RunReplay | Apply
# As in the runtime: a gradient goes before an activation, and of each kind the first microbatches go first.
_URGENCY: dict[type, int] = {Apply: 0, RunBackward: 1, RunReplay: 1, RunLoss: 2, RunForward: 2}
_WORK: dict[type, str] = {
    Apply: "update",
    RunBackward: "backward",
    RunReplay: "replay",
    RunLoss: "loss",
    RunForward: "forward",
}


def _purpose(action: Computing) -> str:
    """What it is computed for, as Spent has it: what is computed for others, or to be undone, is there already."""
    match action:
        case RunReplay(weight=1):
            return "replay"
        case RunReplay() | RunForward(again=True):
            return "again"
    return _WORK[type(action)]


@dataclass(slots=True)
class Device:
    """What the runtime does with a machine's actions, pretended. Until slow_until_s it takes SLOWNESS times as long.

    flips_sum, flips_parameters: a bit flips in the next sum that it is sent, or in what its next update gives. stalls:
    what it does not do at all.
    """

    world: World
    process: ProcessId
    weights: Weights | None = None
    slow_until_s: float = 0.0
    flips_sum: bool = False
    flips_parameters: bool = False
    spent: Spent = field(default_factory=Spent)
    busy_since_s: float | None = None
    stalls: Stalls = field(default_factory=Stalls)
    _queue: list[tuple[int, int, int, Computing, int, int]] = field(default_factory=list)
    _queued: int = 0
    _discards: Counter[Microbatch] = field(default_factory=Counter)
    _run: int = 0
    _load: int = 0
    _careful: bool = False
    _sealed: dict[str, Sum] = field(default_factory=dict)
    kept: KeptState | None = None
    storage: Storage = field(init=False)

    def __post_init__(self) -> None:
        self.storage = Storage(self.world, self.process)

    def perform(self, action: Action) -> None:
        """Do it, and answer with the event that the action names."""
        if self.stalls.left and self.stalls.swallow(action):
            return
        match action:
            case RunForward() | RunLoss() | RunBackward() | RunReplay() | Apply():
                self._compute(action)
            case Discard():
                self._discards[action.microbatch] += 1
            case Reset():
                self._run += 1
                self._weights().accumulated, self._careful = Counter(), action.careful
                self._discards.clear()
            case SumPiece() | StorePiece():
                self._reduce(action)
            case Seal():
                self._seal(action)
            case LoadState():
                self._load += 1
                self.kept = None
                self.storage.let_go()
                states = [(list(action.donors), action.stage)]
                then = partial(self._loaded, action, self._load, self.world.clock.now_s)
                self.storage.fetch(states, then, Progressed("load"))
            case Resume():
                self._load += 1
                self.world.clock.after(0.0, partial(self._resume, action, self._load))
            case StoreState():
                kept = self.keep(action.held)
                self._run += 1  # it computes nothing more
                self.storage.store(kept)
            case Forget():
                self.storage.forgotten.add(action.process)
            case FormMicrobatch():
                bytes_of = self.world.hardware.boundary_bytes
                refs = (self._store("tokens", bytes_of(0, "tokens")), self._store("targets", bytes_of(0, "targets")))
                self._answer(MicrobatchFormed(action.microbatch, *refs))
            case WriteCheckpoint():
                states = [(list(members), stage) for stage, members in enumerate(action.roster.stages)]
                then = partial(self.storage.write, action, self.storage.abandoned, self.world.clock.now_s)
                self.storage.fetch(states, then, Progressed("save"))
            case Abandon():
                self.storage.abandoned += action.what == "save"
            case KeepCopies():
                states = [([action.holder], stage) for stage in action.stages]
                self.storage.fetch(states, partial(self.storage.keep, action))
            case DropCopies():
                self.storage.drop(action)
            case Validate():
                self.world.clock.after(self.world.hardware.load_s() or 0.0, partial(self._validate, action))
            case Release() if self._alive():  # with a process that has ended in the same breath all is gone
                for ref in action.refs:
                    del self._stored[ref.key]

    def read(self, body: Slice) -> Gradient | Sum:
        """The bytes of a slice of a gradient, to be sent."""
        weights = self._weights()
        if body.reduced:
            return weights.reduced[body.group, body.start // PIECE_ELEMENTS]
        return weights.accumulated.copy()

    def die(self) -> None:
        """What was computed and not committed is lost."""
        self.spent.die(self._part_s(), self.world.meter)
        self.busy_since_s = None

    @property
    def busy_s(self) -> float:
        """Seconds that it has computed in its life, whatever it was."""
        return self.spent.busy_s + self._part_s()

    def _part_s(self) -> float:
        return 0.0 if self.busy_since_s is None else self.world.clock.now_s - self.busy_since_s

    @property
    def _stored(self) -> dict[int, object]:
        return self.world.hosts[self.process].stored

    def _alive(self) -> bool:
        return self.world.hosts[self.process].alive

    def _store(self, value: object, size_bytes: int = 0) -> Ref:
        return self.world.store(self.process, value, size_bytes)

    def _answer(self, event: Event) -> None:
        self.world.clock.after(0.0, partial(self.world.deliver, self.process, event))

    def _weights(self) -> Weights:
        if self.weights is None:
            raise RuntimeError(f"{self.process} computes without a stage")
        return self.weights

    # --- computing ----------------------------------------------------------------------------------------------------

    def _compute(self, action: Computing) -> None:
        self._queued += 1
        index, discards = -1, 0
        if not isinstance(action, Apply):
            index, discards = action.microbatch.index, self._discards[action.microbatch]
        heapq.heappush(self._queue, (_URGENCY[type(action)], index, self._queued, action, self._run, discards))
        if self.busy_since_s is None:
            self._begin()

    def _begin(self) -> None:
        """Take up the most urgent work that is still wanted."""
        while self._queue:
            _, _, _, action, run, discards = heapq.heappop(self._queue)
            if self._wanted(action, run, discards):
                stage = self._weights().stage
                seconds = self.world.hardware.compute_s(self.process.name, stage, _WORK[type(action)])
                if self.world.clock.now_s < self.slow_until_s:
                    seconds *= SLOWNESS
                self.busy_since_s = self.world.clock.now_s
                self.world.clock.after(seconds, partial(self._end, action, run, discards, seconds), COMPUTE)
                return

    def _end(self, action: Computing, run: int, discards: int, seconds: float) -> None:
        if not self._alive():
            return
        self.busy_since_s = None
        index = -1 if isinstance(action, Apply) else action.microbatch.index
        self.spent.add(_purpose(action), index, seconds)
        if self._wanted(action, run, discards):
            match action:
                case Apply():
                    self._apply(action)
                case _ if (failed := self._failed(action)) is not None:
                    self.world.deliver(self.process, failed)
                case RunReplay():
                    self._replayed(action)
                case _:
                    self._computed(action)
        if self.busy_since_s is None:  # what followed from it may have begun the next
            self._begin()

    def _wanted(self, action: Computing, run: int, discards: int) -> bool:
        return run == self._run and (isinstance(action, Apply) or discards == self._discards[action.microbatch])

    def _computed(self, action: RunForward | RunLoss | RunBackward) -> None:
        microbatch, stage = action.microbatch, self._weights().stage
        event: Event
        if isinstance(action, RunForward):
            self.world.counts["recomputed" if action.again else "forward"] += 1
            size_bytes = self.world.hardware.boundary_bytes(stage, "activation")
            event = ForwardComputed(microbatch, self._store("activation", size_bytes))
        else:
            self._weights().accumulated[microbatch.index] += 1
            self._spoil()
            self.world.counts["backward"] += 1
            gradient = self._gradient()
            if isinstance(action, RunLoss):
                event = LossComputed(microbatch, float(TOKENS), TOKENS, gradient)
            else:
                event = BackwardComputed(microbatch, gradient)
        self.world.deliver(self.process, event)

    def _replayed(self, action: RunReplay) -> None:
        microbatch, accumulated = action.microbatch, self._weights().accumulated
        if action.weight == 0:
            self.world.counts["recomputed"] += 1
            self.world.deliver(self.process, Replayed(microbatch, 0, self._gradient()))
            return
        accumulated[microbatch.index] += action.weight
        self._spoil()
        if accumulated[microbatch.index] == 0:
            del accumulated[microbatch.index]
        self.world.counts["undone" if action.weight < 0 else "backward"] += 1
        gradient = self._gradient() if action.weight > 0 else None
        self.world.deliver(self.process, Replayed(microbatch, action.weight, gradient))

    def _failed(self, action: RunForward | RunLoss | RunBackward | RunReplay) -> Event | None:
        """What is wrong with it: the network has brought bytes that are none, or its result is not finite."""
        share = self.world.settings.unusable
        if share > 0 and self.world.random.random() < share:
            return ComputeFailed(action.microbatch, "it does not decode")
        return spoilt(self.world, self.process, action, self._careful)

    def _spoil(self) -> None:
        if spoiling(self.world, self.process).hides(self.world.clock.now_s, self._careful):
            self._weights().accumulated[SPOILT] = 1

    def _gradient(self) -> Ref | None:
        stage = self._weights().stage
        return self._store("gradient", self.world.hardware.boundary_bytes(stage, "gradient")) if stage > 0 else None

    # --- a step's end -------------------------------------------------------------------------------------------------

    def _reduce(self, action: SumPiece | StorePiece) -> None:
        weights = self._weights()
        if isinstance(action, SumPiece):
            total = Sum.of([self._addend(part) for part in action.parts])
        else:
            value = self._stored.pop(action.sum.key)
            assert isinstance(value, Sum)
            total = value
        done = PieceReduced(action.epoch, action.ballot, action.group, action.piece)
        if isinstance(action, StorePiece) and self.flips_sum:
            self.flips_sum, total = False, Sum.of([total.counts, FLIPPED])
        if isinstance(action, SumPiece) and action.apart:
            done = replace(done, sum=self._store(total, 4 * (action.stop - action.start)))
        else:
            weights.reduced[action.group, action.piece] = total
        self._answer(done)

    def _addend(self, part: Ref | None) -> Gradient:
        value = self._weights().accumulated if part is None else self._stored[part.key]
        assert isinstance(value, Counter)
        return value

    def _seal(self, action: Seal) -> None:
        weights = self._weights()
        self._sealed = {}
        for group in action.groups:
            if group in action.alone:
                self._sealed[group] = Sum.of([weights.accumulated])
                continue
            pieces = -(-self.world.hardware.elements(group) // PIECE_ELEMENTS)
            sums = [weights.reduced[group, piece] for piece in range(pieces)]
            # Pieces of one gradient that were made of different addends must not pass for a gradient.
            odd = next((part for part in sums if part.name != sums[0].name), sums[0])
            self._sealed[group] = odd
        if (broken := without_norm(action.epoch, self._sealed, weights.accumulated)) is not None:
            return self._answer(broken)
        results = tuple((group, 1.0, value.name) for group, value in sorted(self._sealed.items()))
        self._answer(Sealed(action.epoch, action.ballot, results))

    def _apply(self, action: Apply) -> None:
        weights = self._weights()
        gradient = self._sealed[f"stage-{weights.stage}"]
        self.spent.commit(set(weights.accumulated), self.world.meter)
        weights.apply(action.epoch, gradient)
        if self.flips_parameters:
            self.flips_parameters, weights.parameters = False, digest("flipped", weights.parameters)
        else:
            self.world.witness(self.process, weights.stage, weights.version, weights.parameters, gradient)
        self.world.deliver(self.process, Applied(action.epoch, weights.parameters))

    def keep(self, held: Held | None) -> KeptState | None:
        """This life is over, and leaves this to the next one."""
        if held is None or self.weights is None:
            return self.kept if held is not None else None
        kept = KeptState(self.process, held, self.weights, self._sealed)
        kept.end_update(self.world)
        return kept

    # --- states -------------------------------------------------------------------------------------------------------

    def _goes_on(self, load: int, then: Callable[[], None]) -> bool:
        """Whether a load has not been ended by a newer grant. Who is stopped goes on when it wakes: by `then`."""
        asleep_s = self.world.hosts[self.process].frozen_until_s - self.world.clock.now_s
        if load == self._load and asleep_s > 0:
            self.world.clock.after(asleep_s, then)
        return load == self._load and asleep_s <= 0 and self._alive()

    def _loaded(self, action: LoadState, load: int, began_s: float) -> None:
        if not self._goes_on(load, partial(self._loaded, action, load, began_s)):
            return
        if self.storage.waits_for(action.donors, action.stage, action.version, began_s):
            self.world.clock.after(ASK_AGAIN_S, partial(self._loaded, action, load, began_s))
            return
        weights = self._copy(action)
        if weights is None:
            failed = StateNotLoaded(action.stage, action.version, "no donor has it")
            self.world.clock.after(1.0, partial(self._load_failed, failed, load))
            return
        self.weights = weights
        self._run += 1
        self._is_loaded(weights)

    def _load_failed(self, failed: StateNotLoaded, load: int) -> None:
        if self._goes_on(load, partial(self._load_failed, failed, load)):
            self.world.deliver(self.process, failed)

    def _resume(self, action: Resume, load: int) -> None:
        """Serve what is kept. Until then it stays what is kept: the same may be granted once more."""
        if not self._goes_on(load, partial(self._resume, action, load)):
            return
        kept, self.kept = self.kept, None
        self.storage.let_go()
        assert kept is not None, "the machine says what is in memory"
        if action.update is not None:
            kept.update(self.world, action.update.epoch)
        self.weights = kept.weights
        self._run += 1
        self._is_loaded(self.weights)

    def _is_loaded(self, weights: Weights) -> None:
        hardware, stage = self.world.hardware, weights.stage
        groups = tuple((group, hardware.elements(group)) for group in (f"stage-{stage}", "tied"))
        capacity = hardware.capacity(self.process.name, stage)
        loaded = StateLoaded(stage, weights.version, weights.parameters, capacity, groups)
        self.world.deliver(self.process, loaded)  # at once: nothing may come between

    def _copy(self, action: LoadState) -> Weights | None:
        if not action.donors and action.version == 0:
            return initial(action.stage)
        held = [self.storage.held(donor, action.stage, action.version) for donor in action.donors]
        parameters = next((found for found in held if found is not None), None)
        return None if parameters is None else Weights(action.stage, action.version, parameters)

    def _validate(self, action: Validate) -> None:
        """A measurement that goes through somebody who is gone, or brings nothing back, does not end."""
        stages = [[self.world.hosts[member.process] for member in stage] for stage in action.roster.stages]
        hosts = [host for stage in stages for host in stage]
        giving = tuple(host.process for host in hosts if host.device.stalls.gives)
        if all(host.alive for host in hosts) and all(any(h.process in giving for h in stage) for stage in stages):
            self.world.deliver(self.process, Progressed("validation", giving))
            if len(giving) == len(hosts):
                self.world.deliver(self.process, Validated(action.version, 1.0))
