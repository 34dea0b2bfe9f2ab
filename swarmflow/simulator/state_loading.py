"""How a pretended device gets the state of a stage: loaded from donors, or resumed from what is in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.commit.reduce import groups_of_stage
from swarmflow.core.protocol.actions import LoadState, Resume
from swarmflow.core.protocol.events import StateLoaded, StateNotLoaded
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.simulator.arithmetic import Weights, initial
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.storage import ASK_AGAIN_S

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device
    from swarmflow.simulator.world import World


@dataclass(slots=True)
class StateLoading:
    """Carries out the grants of a device's machine.

    A newer grant ends the load of an earlier one, or has it go on from other donors. What has been loaded follows the
    updates of its donors.
    """

    device: Device
    world: World = field(init=False)
    process: ProcessId = field(init=False)
    capacity: int = field(init=False, default=0)  # microbatches whose graphs fit beside the stage that it serves
    _load: int = field(init=False, default=0)  # the number of the latest load
    _action: LoadState | None = field(init=False, default=None)  # the latest one, None: it resumes
    _loading: bool = field(init=False, default=False)  # whether that load is under way

    def __post_init__(self) -> None:
        self.world, self.process = self.device.world, self.device.process

    def load(self, action: LoadState) -> None:
        """Begin to load a stage from its donors, or follow the updates since then."""
        if not self.world.hardware.capacity(self.process.name, action.stage):
            raise InvariantViolated(f"{self.process} is granted stage {action.stage}, for which it has no memory")
        follows = action.follows and self._action is not None and self._action.stage == action.stage
        self._action = action
        if follows and self._loading:
            return
        self._load += 1
        self._loading = True
        self.device.kept = None
        self.device.storage.let_go()
        load, then = self._load, partial(self._loaded, self._load, self.world.clock.now_s)
        self.device.storage.load(action.stage, partial(self._donors, load), then, follows)

    def _donors(self, load: int) -> tuple[Member, ...]:
        """Return the donors of a load, as the leader has named them last; none of one that is over."""
        return self._action.donors if self._action is not None and load == self._load else ()

    def resume(self, action: Resume) -> None:
        """Begin to serve what is in memory."""
        self._load += 1
        self._action, self._loading = None, False
        self.world.clock.after(0.0, partial(self._resumed, action, self._load))

    def _goes_on(self, load: int, then: Callable[[], None]) -> bool:
        """Return whether a load is still the latest one. A frozen process goes on with `then` when it wakes."""
        asleep_s = self.world.hosts[self.process].frozen_until_s - self.world.clock.now_s
        if load == self._load and asleep_s > 0:
            self.world.clock.after(asleep_s, then)
        return load == self._load and asleep_s <= 0 and self.world.alive(self.process)

    def _loaded(self, load: int, began_s: float) -> None:
        if not self._goes_on(load, partial(self._loaded, load, began_s)):
            return
        action = self._action
        assert action is not None, "it loads"
        if self.device.storage.waits_for(action.donors, action.stage, action.version, began_s):
            self.world.clock.after(ASK_AGAIN_S, partial(self._loaded, load, began_s))
            return
        weights = self._copy(action)
        self._loading = False
        if weights is None:
            self._action = None  # it begins anew
            failed = StateNotLoaded(action.stage, action.version, "no donor has it")
            self.world.clock.after(1.0, partial(self._failed, failed, load))
            return
        self._serve(weights)

    def _failed(self, failed: StateNotLoaded, load: int) -> None:
        if self._goes_on(load, partial(self._failed, failed, load)):
            self.world.deliver(self.process, failed)

    def _resumed(self, action: Resume, load: int) -> None:
        """Serve what is in memory. Until now it stays there: the same may be granted once more."""
        if not self._goes_on(load, partial(self._resumed, action, load)):
            return
        kept, self.device.kept = self.device.kept, None
        self.device.storage.let_go()
        assert kept is not None, "the machine says what is in memory"
        if kept.weights.damaged:
            failed = StateNotLoaded(action.stage, action.version, "it is damaged in memory")
            return self.world.deliver(self.process, failed)
        if action.update is not None:
            kept.update(self.world, action.update.epoch)
        self._serve(kept.weights)

    def _serve(self, weights: Weights) -> None:
        """Serve a stage from now on, and say so to the machine."""
        hardware, stage = self.world.hardware, weights.stage
        weights.accumulated.clear()
        self.device.weights = weights
        self.device.executor.reset()
        names = groups_of_stage(stage, self.world.settings.plan.shared)
        groups = tuple((group, hardware.elements(group)) for group in names)
        self.capacity = hardware.capacity(self.process.name, stage)
        what = stage, weights.version, weights.parameters, self.capacity
        self.world.deliver(self.process, StateLoaded(*what, groups, hardware.piece()))  # nothing may come between

    def _copy(self, action: LoadState) -> Weights | None:
        """Return a copy of the newest state that a donor has; version 0 needs no donor."""
        delay = self.world.settings.plan.delay
        if not action.donors and action.version == 0:
            return initial(action.stage, delay)
        newest = [self.device.storage.newest(donor, action.stage, action.version) for donor in action.donors]
        version, parameters = max((found for found in newest if found is not None), default=(-1, ""))
        return None if version < 0 else Weights(action.stage, version, parameters, delay)
