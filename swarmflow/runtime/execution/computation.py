"""One pass of a microbatch through a served stage: decoded, computed, and told to the event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where passes are computed, and where their seconds are accounted for."""

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
    compute: Callable[[Served, X], Y]  # in the compute thread
    done: Callable[[Y], None]  # on the event loop
    is_current: Callable[[], bool]  # whether its epoch is still the present one
    is_wanted: Callable[[], bool]  # the same, and no other peer computes the microbatch instead
    urgent: bool = False  # it goes before all others of its step

    def decode(self, decode: Callable[[GroupedStage], X], place: Workplace) -> None:
        """Decode what came over the wire, in the codec thread, and begin."""

        def work() -> X | ComputeFailed:
            try:
                return decode(self.served.stage)
            except FrameError as error:
                return ComputeFailed(self.microbatch, str(error))

        def decoded(value: X | ComputeFailed) -> None:
            if not self.is_current():
                return
            if isinstance(value, ComputeFailed):
                place.driver.post(value)
                return
            tensor: X = value
            self.begin(tensor, place)

        place.codec.submit(FIRST, work, decoded)

    def begin(self, value: X, place: Workplace) -> None:
        """Queue it for the compute thread."""

        def finished(outcome: tuple[Y, float] | Failure | None) -> None:
            if isinstance(outcome, Failure):
                if self.is_current():
                    place.driver.post(outcome)
            elif outcome is not None:
                self._finish(*outcome, place)

        place.compute.submit(self._urgency, lambda: self._work(value), finished)

    @property
    def _urgency(self) -> tuple[float, float, float]:
        order = -1.0 if self.urgent else _ORDER.get(self.direction, 1.0)
        return _PASSES, float(self.microbatch.epoch.step), order

    def _work(self, value: X) -> tuple[Y, float] | Failure | None:
        if not self.is_wanted():
            return None
        began_s = self.served.clock()
        try:
            result = self.compute(self.served, value)
        except ExponentOverflowError:
            return Overflowed(self.microbatch)
        except NotFiniteError as error:
            return ComputedNotFinite(self.microbatch.epoch, self.microbatch.index, error.value, error.layer)
        except IndexError as error:  # of a module: it is in the batch, and every other peer would fail with it too
            where = f"an operator that refuses an index ({one_line(error)[:60]})"
            return ComputedNotFinite(self.microbatch.epoch, self.microbatch.index, "activation", where)
        return result, self.served.clock() - began_s

    def _finish(self, result: Y, seconds: float, place: Workplace) -> None:
        metrics = place.driver.metrics
        metrics.compute_seconds.at(self.direction).inc(seconds)
        metrics.pass_seconds.at(self.direction).observe(seconds)
        metrics.microbatches.at(self.served.stage.layout.stage, self.direction).inc()
        if not self.is_current():
            place.account.wasted(seconds)
            return
        place.account.spent(self.microbatch, self.direction, seconds)
        self.done(result)
