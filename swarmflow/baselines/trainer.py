"""A trainer of a baseline; the first one leads."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.baselines.leader import BaselineLeader
from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    Alive,
    BaselineGone,
    BaselineJoin,
    BaselineMessage,
    BaselineNegotiate,
    BaselineOpen,
    BaselineReady,
    Learnt,
    Present,
    Updated,
)
from swarmflow.baselines.negotiation import GwtfNegotiation
from swarmflow.baselines.source import BaselineSource
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class BaselineTrainer:
    """One life of a trainer."""

    runtime: BaselineRuntime
    leader: ProcessId
    source: BaselineSource
    lead: BaselineLeader | None  # if this trainer leads
    flows: GwtfNegotiation | None = None  # where flows are negotiated

    def start(self) -> None:
        """Join."""
        self.runtime.send(self.leader, BaselineJoin(-1, 0.0))
        if self.lead is not None:
            self.lead.start()

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """Handle a message."""
        match message:
            case BaselineJoin() | BaselineReady() | Alive() | Learnt() | Updated():
                if self.lead is not None:
                    self.lead.received(sender, message)
            case BaselineOpen():
                self.source.open(message)
            case Present() | BaselineNegotiate():
                if self.flows is not None:
                    self.flows.received(sender, message)
            case BaselineGone():
                self._gone(message.process)
            case _:
                self.source.received(sender, message)

    def lost(self, process: ProcessId) -> None:
        """Handle a broken connection."""
        self._gone(process)
        if self.lead is not None:
            self.lead.lost(process)

    def _gone(self, process: ProcessId) -> None:
        self.source.lost(process)
        if self.flows is not None:
            self.flows.lost(process)
