"""A pretended computer: one thing is computed at a time, and what is computed is recorded instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.actions import (
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
    RunBackward,
    RunForward,
    RunLoss,
    RunReplay,
    Seal,
    StorePiece,
    SumPiece,
    Validate,
    WriteCheckpoint,
)  # fmt: skip
from swarmflow.core.events import (
    Applied,
    BackwardComputed,
    CheckpointWritten,
    ComputeFailed,
    CopiesChanged,
    Event,
    ForwardComputed,
    LossComputed,
    MicrobatchFormed,
    PieceReduced,
    Replayed,
    Sealed,
    StateLoaded,
    StateNotLoaded,
    Validated,
)  # fmt: skip
from swarmflow.core.reduce import PIECE_ELEMENTS
from swarmflow.core.types import Member, Microbatch, ProcessId, Ref, Slice
from swarmflow.simulator.arithmetic import Gradient, Weights, digest_of, initial

if TYPE_CHECKING:
    from swarmflow.simulator.world import World

GROUP_PIECES = 3  # of each pretended flat gradient: enough for several owners
SLOWNESS = 30.0
ANSWER_S = 60.0  # how long the runtime waits for a part of a state
ASK_AGAIN_S = 0.25
TOKENS = 10  # of a pretended microbatch


@dataclass(slots=True)
class Device:
    """What the runtime does with a machine's actions, pretended. Until slow_until_s it takes SLOWNESS times as long."""

    world: World
    process: ProcessId
    weights: Weights | None = None
    slow_until_s: float = 0.0
    _free_at_s: float = 0.0
    _discards: Counter[Microbatch] = field(default_factory=Counter)
    _run: int = 0
    _load: int = 0
    _forgotten: set[ProcessId] = field(default_factory=set)
    _sealed: dict[str, Gradient] = field(default_factory=dict)

    def perform(self, action: Action) -> None:
        """Do it, and answer with the event that the action names."""
        match action:
            case RunForward() | RunLoss() | RunBackward():
                self._compute(partial(self._computed, action, self._run, self._discards[action.microbatch]))
            case Discard():
                self._discards[action.microbatch] += 1
            case RunReplay():
                self._compute(partial(self._replayed, action, self._run, self._discards[action.microbatch]))
            case Reset():
                self._run += 1
                self._weights().accumulated = Counter()
            case SumPiece() | StorePiece():
                self._reduce(action)
            case Seal():
                self._seal(action)
            case Apply():
                self._compute(partial(self._apply, action))
            case LoadState():
                self._load += 1
                delay_s = self.world.draw(self.world.settings.load_s)
                self.world.clock.after(delay_s, partial(self._loaded, action, self._load, self.world.clock.now_s))
            case Forget():
                self._forgotten.add(action.process)
            case FormMicrobatch():
                refs = (self._store("tokens"), self._store("targets"))
                self._answer(MicrobatchFormed(action.microbatch, *refs))
            case WriteCheckpoint():
                delay_s = self.world.draw(self.world.settings.load_s)
                self.world.clock.after(delay_s, partial(self._write, action, self.world.clock.now_s))
            case KeepCopies():
                self.world.clock.after(self.world.draw(self.world.settings.load_s), partial(self._keep, action))
            case DropCopies():
                self._drop(action)
            case Validate():
                self.world.clock.after(self.world.draw(self.world.settings.load_s), partial(self._validate, action))
            case Release():
                for ref in action.refs:
                    del self._stored[ref.key]

    def read(self, body: Slice) -> Gradient:
        """The bytes of a slice of a gradient, to be sent."""
        return self._weights().read(body, PIECE_ELEMENTS)

    @property
    def _stored(self) -> dict[int, object]:
        return self.world.hosts[self.process].stored

    def _store(self, value: object, size_bytes: int = 0) -> Ref:
        return self.world.store(self.process, value, size_bytes)

    def _answer(self, event: Event) -> None:
        self.world.clock.after(0.0, partial(self.world.post, self.process, event))

    def _weights(self) -> Weights:
        if self.weights is None:
            raise RuntimeError(f"{self.process} computes without a stage")
        return self.weights

    def _compute(self, done: Callable[[], None]) -> None:
        seconds = self.world.draw(self.world.settings.compute_s)
        if self.world.clock.now_s < self.slow_until_s:
            seconds *= SLOWNESS
        self._free_at_s = max(self._free_at_s, self.world.clock.now_s) + seconds
        self.world.clock.after(self._free_at_s - self.world.clock.now_s, done)

    def _computed(self, action: RunForward | RunLoss | RunBackward, run: int, discards: int) -> None:
        microbatch = action.microbatch
        if run != self._run or discards != self._discards[microbatch] or not self.world.hosts[self.process].alive:
            return
        event: Event
        if self._unusable():
            event = ComputeFailed(microbatch, "it does not decode")
        elif isinstance(action, RunForward):
            self.world.counts["forward" if action.keep else "recomputed"] += 1
            event = ForwardComputed(microbatch, self._store("activation", 100))
        else:
            self._weights().accumulated[microbatch.index] += 1
            self.world.counts["backward"] += 1
            gradient = self._gradient(microbatch)
            if isinstance(action, RunLoss):
                event = LossComputed(microbatch, float(TOKENS), TOKENS, gradient)
            else:
                event = BackwardComputed(microbatch, gradient)
        self.world.post(self.process, event)

    def _replayed(self, action: RunReplay, run: int, discards: int) -> None:
        microbatch = action.microbatch
        if run != self._run or discards != self._discards[microbatch] or not self.world.hosts[self.process].alive:
            return
        if self._unusable():
            self.world.post(self.process, ComputeFailed(microbatch, "it does not decode"))
            return
        if action.weight == 0:
            self.world.counts["recomputed"] += 1
            self.world.post(self.process, Replayed(microbatch, 0, self._gradient(microbatch)))
            return
        accumulated = self._weights().accumulated
        accumulated[microbatch.index] += action.weight
        if accumulated[microbatch.index] == 0:
            del accumulated[microbatch.index]
        self.world.counts["undone"] += action.weight < 0
        self.world.post(self.process, Replayed(microbatch, action.weight))

    def _unusable(self) -> bool:
        """Whether the network has brought bytes that are none."""
        share = self.world.settings.unusable
        return share > 0 and self.world.random.random() < share

    def _gradient(self, microbatch: Microbatch) -> Ref | None:
        return self._store("gradient", 100) if self._weights().stage > 0 else None

    def _reduce(self, action: SumPiece | StorePiece) -> None:
        weights = self._weights()
        total: Gradient = Counter()
        parts = action.parts if isinstance(action, SumPiece) else (action.sum,)
        for part in parts:
            value = weights.accumulated if part is None else self._stored[part.key]
            assert isinstance(value, Counter)
            total.update(value)
        if isinstance(action, StorePiece):
            del self._stored[action.sum.key]
        weights.reduced[action.group, action.piece] = total
        self._answer(PieceReduced(action.epoch, action.ballot, action.group, action.piece))

    def _seal(self, action: Seal) -> None:
        weights = self._weights()
        self._sealed = {}
        for group in action.groups:
            if group in action.alone:
                self._sealed[group] = weights.accumulated  # as it will be at the update, should anything be added
                continue
            pieces = [weights.reduced[group, piece] for piece in range(GROUP_PIECES)]
            self._sealed[group] = pieces[0]
        results = tuple((group, 1.0, digest_of(value)) for group, value in sorted(self._sealed.items()))
        self._answer(Sealed(action.epoch, action.ballot, results))

    def _apply(self, action: Apply) -> None:
        if not self.world.hosts[self.process].alive:
            return
        weights = self._weights()
        gradient = self._sealed[f"stage-{weights.stage}"]
        weights.apply(action.epoch, gradient)
        self.world.witness(self.process, weights.stage, weights.version, weights.parameters, gradient)
        self.world.post(self.process, Applied(action.epoch, weights.parameters))

    def _loaded(self, action: LoadState, load: int, began_s: float) -> None:
        if load != self._load:
            return
        if self._waits_for(action.donors, action.stage, action.version, began_s):
            self.world.clock.after(ASK_AGAIN_S, partial(self._loaded, action, load, began_s))
            return
        weights = self._copy(action)
        if weights is None:
            failed = StateNotLoaded(action.stage, action.version, "no donor has it")
            self.world.clock.after(1.0, partial(self.world.post, self.process, failed))
            return
        self.weights = weights
        self._run += 1
        elements = GROUP_PIECES * PIECE_ELEMENTS
        groups = ((f"stage-{action.stage}", elements), ("tied", elements))
        capacity = self.world.settings.capacity
        self._answer(StateLoaded(action.stage, weights.version, weights.parameters, capacity, groups))

    def _copy(self, action: LoadState) -> Weights | None:
        if not action.donors and action.version == 0:
            return initial(action.stage)
        held = [self._held(donor, action.stage, action.version) for donor in action.donors]
        parameters = next((found for found in held if found is not None), None)
        return None if parameters is None else Weights(action.stage, action.version, parameters)

    def _held(self, donor: Member, stage: int, version: int) -> str | None:
        """What a donor that answers gives of a stage's version."""
        host = self.world.hosts[donor.process]
        if not host.alive or host.frozen_until_s > self.world.clock.now_s:
            return None
        if self.world.on_disk(donor.process.name, version, stage):
            return self.world.durable[version][stage]
        weights = host.device.weights
        held = weights is not None and (weights.stage, weights.version) == (stage, version)
        return weights.parameters if held and weights is not None else None

    def _waits_for(self, donors: tuple[Member, ...], stage: int, version: int, began_s: float) -> bool:
        """Whether the donor whose turn it is is frozen: its connections stand, and it is waited for until given up."""
        now_s = self.world.clock.now_s
        for donor in donors:
            host = self.world.hosts[donor.process]
            if self._held(donor, stage, version) is not None:
                return False
            awaited = host.alive and donor.process not in self._forgotten and now_s - began_s < ANSWER_S
            if awaited and host.frozen_until_s > now_s:
                return True
        return False

    def _validate(self, action: Validate) -> None:
        """A measurement that goes through somebody who is gone does not end."""
        if all(self.world.hosts[member.process].alive for member in action.roster.members()):
            self.world.post(self.process, Validated(action.version, 1.0))

    def _write(self, action: WriteCheckpoint, began_s: float) -> None:
        if any(self._waits_for(m, stage, action.version, began_s) for stage, m in enumerate(action.roster.stages)):
            self.world.clock.after(ASK_AGAIN_S, partial(self._write, action, began_s))
            return
        copies: dict[int, str] = {}
        for stage, members in enumerate(action.roster.stages):
            for member in members:
                if (parameters := self._held(member, stage, action.version)) is not None:
                    copies[stage] = parameters
        ok = self.world.hosts[self.process].alive and len(copies) == len(action.roster.stages)
        if ok:
            self.world.durable[action.version] = copies
            self.world.disks[self.process.name].add(action.version)
        digests = self.world.digests(action.version) if ok else ()
        self.world.post(self.process, CheckpointWritten(action.version, ok, "" if ok else "a stage was lost", digests))

    def _keep(self, action: KeepCopies) -> None:
        if not self.world.hosts[self.process].alive:
            return
        version, name = action.snapshot.version, action.holder.process.name
        here = self.world.hosts[action.holder.process].alive and version in self.world.disks.get(name, ())
        if here:
            held = self.world.copies.setdefault(self.process.name, {})
            held.setdefault(version, set()).update(action.stages)
        failed = "" if here else "the holder is gone"
        self.world.post(self.process, CopiesChanged(self.world.holdings(self.process.name), failed))

    def _drop(self, action: DropCopies) -> None:
        held = self.world.copies.get(self.process.name, {})
        for version in [v for v in held if not action.oldest <= v <= action.newest]:
            del held[version]
        self._answer(CopiesChanged(self.world.holdings(self.process.name)))
