"""What other processes may take of this one: streams, and memory for what arrives on them (docs/security.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from swarmflow.runtime.transport.allowance import Allowance
from swarmflow.runtime.transport.door import DoorLimits
from swarmflow.runtime.transport.frames import FrameLimits
from swarmflow.runtime.transport.hello import LANES
from swarmflow.runtime.transport.node import CONNECTIONS_HIGH
from swarmflow.runtime.transport.receive_budget import BudgetLimits

# A process opens its four lanes at once, perhaps those of its next life, and again after each loss. Behind one address
# may be a quarter of the processes that the daemon keeps connections to, and all of them may start at once.
DOOR: Final = DoorLimits(
    unfinished_of_process=8,
    unfinished_of_address=128,
    unfinished=512,
    streams_of_process=4 * len(LANES),
    streams_of_address=CONNECTIONS_HIGH,
    streams=len(LANES) * CONNECTIONS_HIGH,
    process=Allowance(burst=64, per_s=4.0),
    address=Allowance(burst=CONNECTIONS_HIGH, per_s=64.0),
)
# Each stream of a process (four, and four more before its incarnation is known) brings one frame at a time, most of
# them shorter than this together.
IN_FLIGHT_BYTES: Final = 1 << 26
FRAMES_AT_ONCE: Final = 16  # read of one stream before others have their turn: about a millisecond of small messages


ADDRESSED_MAX: Final = 4 * CONNECTIONS_HIGH  # processes whose addresses are remembered: those that were dialled last
# Only trainers send whole rosters. A peer's longest message is its report to a candidate: of the roster it has its own
# stage and those beside it, 22,000 members with one address, and each microbatch that it has done with its handovers.
REPORT_BYTES: Final = 1 << 22
HANDOVER_BYTES: Final = 256


def peer_limits(limits: FrameLimits, stages: int, microbatches: int) -> FrameLimits:
    """Return the limits of frames from those without the certificate of a trainer, in a run of so many of each.

    Bytes that decode to many small objects take 25 times their size, and 70 ms a MiB.
    """
    longest = max(REPORT_BYTES, microbatches * (stages + 1) * HANDOVER_BYTES)
    return replace(limits, header_bytes_max=min(limits.header_bytes_max, longest))


def budget_limits(tensor_bytes: int) -> BudgetLimits:
    """Return the limits of memory for frames in flight. tensor_bytes: of the run's largest frame; 0: not known yet."""
    of_process = max(IN_FLIGHT_BYTES, 2 * tensor_bytes)
    return BudgetLimits(of_process, 4 * of_process, 16 * of_process)
