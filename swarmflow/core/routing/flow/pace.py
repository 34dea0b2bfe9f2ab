"""The compute time of a microbatch on this process, measured from the actions that start work to their results."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Reset, RunBackward, RunForward, RunLoss
from swarmflow.core.protocol.events import BackwardComputed, Event, ForwardComputed, LossComputed, Replayed
from swarmflow.core.routing.smoothing import smoothed

_FORTH, _BACK = "forth", "back"
_BEGINS = {RunForward: _FORTH, RunLoss: _FORTH, RunBackward: _BACK}
_ENDS = {ForwardComputed: _FORTH, LossComputed: _FORTH, BackwardComputed: _BACK, Replayed: _BACK}


@dataclass(slots=True)
class Pace:
    """Measures the compute time. Work is sequential: what is given out while other work runs starts when that ends."""

    _given_s: dict[tuple[str, object], float] = field(init=False, default_factory=dict)  # start by (direction, key)
    _usual_s: dict[str, float] = field(init=False, default_factory=dict)  # smoothed time by direction
    _idle_from_s: float = field(init=False, default=0.0)  # when the last work ended

    @property
    def compute_s(self) -> float | None:
        """Return the smoothed time of forward and backward together; None: nothing has been computed yet."""
        return sum(self._usual_s[kind] for kind in (_FORTH, _BACK) if kind in self._usual_s) or None

    def watch(self, event: Event, actions: list[Action], now: float) -> None:
        """Measure from an event and the actions that the machine answers with."""
        ended = _ENDS.get(type(event))
        if ended is not None:
            self._ended((ended, getattr(event, "microbatch", None)), now)
        for action in actions:
            if isinstance(action, Reset):  # a step begins: work given out for another step is void
                self._given_s.clear()
            begun = _BEGINS.get(type(action))
            if begun is not None:
                self._given_s[begun, getattr(action, "microbatch", None)] = now

    def _ended(self, key: tuple[str, object], now: float) -> None:
        given_s = self._given_s.pop(key, None)
        if given_s is not None:
            self._usual_s[key[0]] = smoothed(self._usual_s.get(key[0]), now - max(given_s, self._idle_from_s))
        self._idle_from_s = now
