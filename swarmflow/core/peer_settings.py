"""What a peer was started with."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.messages import Join


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What the process was started with. join: what it says of itself (member.stage -1: any stage)."""

    join: Join
    drain_s: float = 30.0
    heartbeat_s: float = 1.0
    rejoin_s: float = 5.0
    stay: bool = False
    journal_bytes_max: int = 1 << 30
    late_min_s: float = 15.0
