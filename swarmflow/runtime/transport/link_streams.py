"""The streams between this process and one other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from swarmflow.authority.certificates import Certificate
from swarmflow.runtime.transport.door import Caller
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.lanes import OutboundLane

# A lane, and whether its dialler meant this incarnation. A message to any incarnation has a stream of its own, beside
# that of a process which knows whom it speaks with: neither of the two stands for the other's end.
Slot = tuple[LaneName, bool]


@dataclass(slots=True, eq=False)
class InboundStream:
    """A stream that another process opened. The end of one that is dropped or notified is not a new loss."""

    caller: Caller
    writer: asyncio.StreamWriter
    certificate: Certificate | None  # of the process; None: it has none, and needs none
    dropped: bool = False  # closed by this process on purpose
    notified: bool = False  # its loss has been reported, and nothing has arrived since

    def drop(self) -> None:
        """Close it on purpose."""
        self.dropped = True
        self.writer.transport.abort()


@dataclass(slots=True)
class LinkStreams:
    """All streams between this process and one other."""

    outbound: dict[LaneName, OutboundLane] = field(default_factory=dict)
    inbound: dict[Slot, InboundStream] = field(default_factory=dict)

    def caller(self, name: str) -> Caller:
        """Return the process of this name with the address from which its streams come, where it has opened one."""
        return next((stream.caller for stream in self.inbound.values()), Caller(name))
