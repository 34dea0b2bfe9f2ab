"""Lies about hops: of others, with handovers that were borrowed from another hop, or with none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from swarmflow.core.pipeline.hop import Hop
from swarmflow.core.protocol.actions import Send
from swarmflow.core.protocol.messages import (
    Adopt,
    Backward,
    Done,
    Forward,
    HopHandover,
    NotFinite,
    Overflow,
    Recalled,
    RelayTensor,
)
from swarmflow.core.protocol.types import Attempt, Microbatch, ProcessId

HopReport = Done | Overflow | NotFinite
HopOffer = Forward | Adopt
TENSORS = (Backward, Recalled, Forward, RelayTensor)  # whose bodies a liar may choose where the hop was its own
OWN_SHARE = 0.5  # of the reports: about a hop that was handed to the liar
Handovers = tuple[HopHandover, ...]


@dataclass(slots=True)
class Handed:
    """Which microbatches were handed to whom, from a trainer on: what a liar makes of those is its own affair."""

    _pairs: set[tuple[ProcessId, Microbatch]] = field(default_factory=set)

    def note(self, sender: ProcessId, action: Send, trainer: bool) -> None:
        """Record what a message hands over, if its sender had it. trainer: the sender is one, and has them all."""
        message, to = action.message, action.to
        if isinstance(message, RelayTensor):
            to, message = message.to, message.forward or message
        if isinstance(message, HopOffer) and (trainer or self.to(sender, message.microbatch)):
            self._pairs.add((to, message.microbatch))

    def to(self, process: ProcessId, microbatch: Microbatch) -> bool:
        """Return whether somebody has handed a microbatch to a process."""
        return (process, microbatch) in self._pairs


def hop_report(draw: Random, report: Any, own: Mapping[Microbatch, Hop]) -> Any:  # noqa: ANN401
    """Return a report about a hop of the liar, or about one of others with handovers of its own."""
    if not own or (isinstance(report, NotFinite) and report.index < 0):
        return report
    hop = draw.choice(list(own.values()))
    changes: dict[str, Any] = {"handovers": hop.handovers}
    if draw.random() < OWN_SHARE:
        attempt = hop.handovers[0].attempt if hop.handovers else hop.attempt
        changes |= {"microbatch": hop.microbatch, "attempt": attempt, "index": hop.microbatch.index}
    return replace(report, **{name: value for name, value in changes.items() if hasattr(report, name)})


def offer(
    draw: Random,
    made: Any,  # noqa: ANN401
    stage: int,
    own: Mapping[Microbatch, Hop],
    its: Mapping[Microbatch, Hop],
    shown: list[Handovers],
) -> Any:  # noqa: ANN401
    """Return an offer of a hop to a peer of a stage. own: of the liar. its: of the receiver. shown: by others."""
    if isinstance(made, RelayTensor):
        inner = made.forward
        return made if inner is None else replace(made, forward=offer(draw, inner, stage, own, its, shown))
    hop, held = own.get(made.microbatch), its.get(made.microbatch)
    borrowed = [*(each.handovers for each in own.values()), *shown]
    handovers = draw.choice(borrowed) if borrowed and draw.random() < 0.5 else ()
    if hop is not None and draw.random() < OWN_SHARE:
        handovers = hop.handovers
    attempt = made.attempt
    if held is not None and draw.random() < 0.5:
        attempt = Attempt(held.attempt.reassignment, held.attempt.repair + 1)
    return replace(made, stage=stage, attempt=attempt, handovers=handovers)
