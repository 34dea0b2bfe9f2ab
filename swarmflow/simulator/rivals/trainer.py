"""A trainer of a baseline; the first one leads."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.types import ProcessId
from swarmflow.simulator.rivals.hands import Hands
from swarmflow.simulator.rivals.leader import Leader
from swarmflow.simulator.rivals.negotiation import Negotiation
from swarmflow.simulator.rivals.source import Source
from swarmflow.simulator.rivals.words import Alive, Gone, Join, Learnt, Negotiate, Opened, Present, Ready, Updated, Word


@dataclass(slots=True)
class Trainer:
    """One life of a trainer. lead: what it leads with, if it does. flows: where they are negotiated."""

    hands: Hands
    leader: ProcessId
    source: Source
    lead: Leader | None
    flows: Negotiation | None = None

    def start(self) -> None:
        """Join."""
        self.hands.send(self.leader, Join(-1, 0.0))
        if self.lead is not None:
            self.lead.start()

    def heard(self, sender: ProcessId, word: Word) -> None:
        """A message came."""
        match word:
            case Join() | Ready() | Alive() | Learnt() | Updated():
                if self.lead is not None:
                    self.lead.heard(sender, word)
            case Opened():
                self.source.open(word)
            case Present() | Negotiate():
                if self.flows is not None:
                    self.flows.heard(sender, word)
            case Gone():
                self._gone(word.process)
            case _:
                self.source.heard(sender, word)

    def lost(self, process: ProcessId) -> None:
        """A connection broke."""
        self._gone(process)
        if self.lead is not None:
            self.lead.lost(process)

    def _gone(self, process: ProcessId) -> None:
        self.source.lost(process)
        if self.flows is not None:
            self.flows.lost(process)
