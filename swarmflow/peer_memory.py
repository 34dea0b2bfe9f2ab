"""What a peer takes of a memory limit beside its stage: its processes, and what is kept for repairs."""

from __future__ import annotations

# Of a peer and its daemon on a CPU, as its memory budget counts them: 475 MB before its first stage, and 200 MB for the
# modules that are imported with that and the buffers of messages and of the codec. A tiny stage takes 525 MB in all.
PROCESS_BYTES = 680_000_000
LEAST_BYTES = 480_000_000  # with less a peer does not even start
JOURNAL_BYTES = 1 << 30  # kept for repairs where the user gives no --journal-bytes-max
JOURNAL_SHARE = 8  # of a limit on a CPU: the journal gets one part in so many, unless the user gives its size


def journal_bytes(limit_bytes: int) -> int:
    """Return what is kept for repairs under a limit on a CPU."""
    return min(JOURNAL_BYTES, limit_bytes // JOURNAL_SHARE)


def limit_for(rest_bytes: int) -> int:
    """Return the least limit on a CPU that has room for so much beside what is kept for repairs."""
    return min(rest_bytes + JOURNAL_BYTES, -(-rest_bytes * JOURNAL_SHARE // (JOURNAL_SHARE - 1)))
