"""One pass of a microbatch through a served stage: decoded, computed, and told to the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from swarmflow.compute.device_layer import DeviceLayer, Launched, StreamName
from swarmflow.compute.device_work import DeviceWork
from swarmflow.compute.exact import ExponentOverflowError
from swarmflow.compute.families import one_line
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.grouped_stage import GroupedStage
from swarmflow.core.protocol.events import ComputedNotFinite, ComputeFailed, Overflowed
from swarmflow.core.protocol.types import Microbatch
from swarmflow.errors import FrameError
from swarmflow.runtime.execution.account import Account, Direction
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.worker import Worker

# Urgency in the compute thread: an earlier step goes first; of one step an activation, which the stage after waits for,
# then a gradient, for which the stage before waits, and then what nobody waits for. Of each kind the first that came:
# by its number a microbatch of many would wait for all that come after it.
FIRST, _PASSES, LATER = (0.0,), 1.0, (2.0,)
_ORDER: dict[Direction, float] = {"forward": 0.0, "loss": 0.0, "weights": 2.0}  # 1.0: all others

X = TypeVar("X")
Y = TypeVar("Y")
Failure = Overflowed | ComputedNotFinite
Outcome = tuple[Y, float] | Failure | None  # what a pass gave and the seconds that it took; None: nobody wanted it


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where passes are computed, and where their seconds are accounted for."""

    layer: DeviceLayer
    compute: Worker
    codec: Worker
    driver: Driver
    account: Account


@dataclass(frozen=True, slots=True)
class Computation(Generic[X, Y]):
    """A pass of a microbatch, in either direction. Whatever is not current any more on its way is dropped."""

    microbatch: Microbatch
    direction: Direction
    served: Served
    compute: Callable[[Served, X, DeviceWork], Y]  # in the compute thread
    done: Callable[[Y], None]  # on the event loop
    is_current: Callable[[], bool]  # whether its epoch is still the present one
    is_wanted: Callable[[], bool]  # the same, and no other peer computes the microbatch instead
    urgent: bool = False  # it goes before all others of its step
    timed: Callable[[float], None] | None = None  # gets the seconds of the pass, where there is somebody to use them

    def decode(self, decode: Callable[[GroupedStage, DeviceWork], X], place: Workplace) -> None:
        """Decode what came over the wire, in the codec thread, and begin."""

        def failed(error: Exception) -> ComputeFailed:
            if isinstance(error, FrameError):
                return ComputeFailed(self.microbatch, str(error))
            raise error

        def body(work: DeviceWork) -> X:
            return decode(self.served.stage, work)

        def done(value: X, seconds: float) -> X | ComputeFailed:
            return value

        def work() -> Launched[X | ComputeFailed]:
            return place.layer.run(StreamName.COPY_IN, body, done, failed)

        def decoded(value: X | ComputeFailed) -> None:
            if not self.is_wanted():  # of a hop that was dropped: another sender may have brought it again
                return
            if isinstance(value, ComputeFailed):
                place.driver.post(value)
                return
            tensor: X = value
            self.begin(tensor, place)

        place.codec.launch(FIRST, work, decoded)

    def begin(self, value: X, place: Workplace) -> None:
        """Queue it for the compute thread."""

        def finished(outcome: Outcome[Y]) -> None:
            if isinstance(outcome, Failure):
                if self.is_current():
                    place.driver.post(outcome)
            elif outcome is not None:
                self._finish(*outcome, place)

        def work() -> Launched[Outcome[Y]]:
            return self._work(value, place.layer)

        place.compute.launch(self._urgency, work, finished)

    @property
    def _urgency(self) -> tuple[float, float, float]:
        order = -1.0 if self.urgent else _ORDER.get(self.direction, 1.0)
        return _PASSES, float(self.microbatch.epoch.step), order

    def _work(self, value: X, layer: DeviceLayer) -> Launched[Outcome[Y]]:
        if not self.is_wanted():
            return Launched(None, lambda: None, lambda: 0.0)

        def body(work: DeviceWork) -> Y:
            return self.compute(self.served, value, work)

        def done(result: Y, seconds: float) -> Outcome[Y]:
            return result, seconds

        return layer.run(StreamName.COMPUTE, body, done, self._failed)

    def _failed(self, error: Exception) -> Failure:
        """Return what the machine is told of a pass that failed; raise what it is not told of."""
        epoch, index = self.microbatch.epoch, self.microbatch.index
        if isinstance(error, ExponentOverflowError):
            return Overflowed(self.microbatch)
        if isinstance(error, NotFiniteError):
            return ComputedNotFinite(epoch, index, error.value, error.layer)
        if isinstance(
            error, IndexError
        ):  # of a module: it is in the batch, and every other peer would fail with it too
            where = f"an operator that refuses an index ({one_line(error)[:60]})"
            return ComputedNotFinite(epoch, index, "activation", where)
        raise error

    def _finish(self, result: Y, seconds: float, place: Workplace) -> None:
        metrics = place.driver.metrics
        metrics.compute_seconds.at(self.direction).inc(seconds)
        metrics.pass_seconds.at(self.direction).observe(seconds)
        metrics.microbatches.at(self.served.stage.layout.stage, self.direction).inc()
        if self.timed is not None:
            self.timed(seconds)
        if not self.is_current():
            place.account.wasted(seconds)
            return
        place.account.spent(self.microbatch, self.direction, seconds)
        self.done(result)
