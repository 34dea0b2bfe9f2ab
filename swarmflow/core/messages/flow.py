"""The message in which the negotiation of flows travels."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.flow.messages import FlowMessage
from swarmflow.core.types import ProcessId


@dataclass(frozen=True, slots=True)
class Negotiate:
    """A message of the negotiation of flows (core/flow/messages.py)."""

    stage: int  # that its sender serves; -1: a trainer
    flow: FlowMessage
    origin: ProcessId | None = None  # the sender, where the receiver serves two stages away: a relay passes it on
    to: ProcessId | None = None  # the receiver, in that case
