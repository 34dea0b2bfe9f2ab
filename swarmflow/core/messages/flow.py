"""The message in which the negotiation of flows travels."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.flow.messages import FlowMessage
from swarmflow.core.types import ProcessId


@dataclass(frozen=True, slots=True)
class Negotiate:
    """One payload of the negotiation (core/flow/messages.py). stage: that its sender serves; -1: a trainer.

    origin, to: who says it and who is meant, where these two stand two stages apart: who gets it passes it on.
    """

    stage: int
    payload: FlowMessage
    origin: ProcessId | None = None
    to: ProcessId | None = None
