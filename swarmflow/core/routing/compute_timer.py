"""The compute time of a microbatch on this process, measured from the action that starts work to its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Reset, RunBackward, RunForward, RunLoss
from swarmflow.core.protocol.events import (
    BackwardComputed,
    Event,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Replayed,
)
from swarmflow.core.routing.smoothing import smoothed

UNKNOWN_S = 1.0  # of a forward pass of which nothing is known: what is queued counts, whatever it takes
BACKWARD = 2.0  # times a forward pass, before any was timed

_FORTH, _BACK = "forth", "back"
_BEGINS = {RunForward: _FORTH, RunLoss: _FORTH, RunBackward: _BACK}
_ENDS = {ForwardComputed: _FORTH, LossComputed: _FORTH, BackwardComputed: _BACK, Replayed: _BACK}


@dataclass(slots=True)
class ComputeTimer:
    """Measures the compute time. Work is sequential: work issued while other work runs starts when that ends.

    A pass in two parts takes the time of both: between them others may run.
    """

    # (direction, microbatch) -> when the work was issued
    _issued_s: dict[tuple[str, object], float] = field(init=False, default_factory=dict)
    _smoothed_s: dict[str, float] = field(init=False, default_factory=dict)  # smoothed compute time, by direction
    _part_s: dict[tuple[str, object], float] = field(init=False, default_factory=dict)  # of what has a part to come
    _last_end_s: float = field(init=False, default=0.0)  # when the last work ended

    @property
    def forward_s(self) -> float | None:
        """Return the smoothed time of a forward pass; None: nothing has been computed yet."""
        return self._smoothed_s.get(_FORTH)

    @property
    def compute_s(self) -> float | None:
        """Return the smoothed time of forward and backward together; None: nothing has been computed yet."""
        return sum(self._smoothed_s[each] for each in (_FORTH, _BACK) if each in self._smoothed_s) or None

    def seconds(self, forth: int, back: int) -> float:
        """Return the expected time of so many forward and backward passes."""
        forward_s = self.forward_s or UNKNOWN_S
        return forth * forward_s + back * self._smoothed_s.get(_BACK, BACKWARD * forward_s)

    def watch(self, event: Event, actions: list[Action], now: float) -> None:
        """Take an event, which may end work, and the actions that answer it, which may start work."""
        direction = _ENDS.get(type(event))
        if direction is not None:
            self._work_ended((direction, getattr(event, "microbatch", None)), now)
        elif isinstance(event, InputGradientComputed):
            self._part_ended(event.microbatch, now)
        for action in actions:
            if isinstance(action, Reset):  # a step begins: work issued for another step is void
                self._issued_s.clear()
                self._part_s.clear()
            direction = _BEGINS.get(type(action))
            if direction is not None:
                self._issued_s[direction, getattr(action, "microbatch", None)] = now

    def _work_ended(self, key: tuple[str, object], now: float) -> None:
        """Record the end of work. key: (direction, microbatch)."""
        issued_s, part_s = self._issued_s.pop(key, None), self._part_s.pop(key, 0.0)
        if issued_s is not None:
            seconds = part_s + now - max(issued_s, self._last_end_s)
            self._smoothed_s[key[0]] = smoothed(self._smoothed_s.get(key[0]), seconds)
        self._last_end_s = now

    def _part_ended(self, microbatch: object, now: float) -> None:
        """Record the end of the first part of a pass; the second one may begin at once."""
        for key in ((_FORTH, microbatch), (_BACK, microbatch)):
            issued_s = self._issued_s.get(key)
            if issued_s is not None:
                self._part_s[key], self._issued_s[key] = now - max(issued_s, self._last_end_s), now
        self._last_end_s = now
