"""What a peer has done for a run and what it uses, in words."""

from __future__ import annotations

from swarmflow.terminal.formats import count, duration, size
from swarmflow.terminal.shown_run import ShownSummary

_REACHES = {
    "public": "reached directly",
    "punched": "reached through hole punching",
    "relay": "reached through a relay",
    "local": "reached from its own network alone",
}


def contribution(summary: ShownSummary) -> str:
    """Return what a peer has done, uses and how it is reached, in one line."""
    parts = [f"has done {count(summary.microbatches)} microbatches", f"{count(summary.tokens)} tokens"]
    parts.append(f"{duration(summary.compute_s)} of computing")
    if summary.wasted_s >= 1:
        parts.append(f"{duration(summary.wasted_s)} of it in vain")
    parts += [f"sent {size(summary.sent_bytes)}", f"received {size(summary.received_bytes)}"]
    if summary.memory_bytes:
        parts.append(f"{size(summary.memory_bytes)} of memory")
    if summary.reach in _REACHES:
        parts.append(_REACHES[summary.reach])
    return ", ".join(parts)
