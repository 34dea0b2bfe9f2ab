"""The memory that the cgroups of this process leave it, which is how Linux limits containers and services."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class _Hierarchy:
    """A tree of cgroups. folder: where it is mounted. limit, used: names of files. cached: of lines of memory.stat."""

    folder: str
    limit: str
    used: str
    cached: tuple[str, ...]


_V2 = _Hierarchy("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = _Hierarchy(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def memory_left(root: Path = Path("/")) -> list[int]:
    """Return the bytes that the cgroup of this process leaves it, and each one above, where they have a limit.

    root: of the file system.
    """
    try:
        text = (root / "proc/self/cgroup").read_bytes().decode(errors="surrogateescape")
    except OSError:  # this is no Linux
        return []
    left = []
    for _, controllers, place in (line.split(":", 2) for line in text.split("\n") if line.count(":") > 1):
        hierarchy = _V2 if not controllers else _V1 if "memory" in controllers.split(",") else None
        if hierarchy is not None:
            top = root / hierarchy.folder
            # In a container the place may be that of the host, of which the container sees the last folder as the top.
            own = top / place.lstrip("/")
            folders = [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
            left += [bytes_left for folder in folders if (bytes_left := _left(folder, hierarchy)) is not None]
    return left


def _left(folder: Path, hierarchy: _Hierarchy) -> int | None:
    """Return the bytes that one cgroup leaves; None: it has no limit, or is not there."""
    try:
        limit = int((folder / hierarchy.limit).read_text(encoding="ascii"))
        used = int((folder / hierarchy.used).read_text(encoding="ascii"))
        counts = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        # As in what Linux says is available of the machine's memory: cached files give way.
        cached = sum(int(counts.get(name, 0)) for name in hierarchy.cached)
    except (OSError, ValueError):  # the limit may be `max`
        return None
    return max(0, limit - max(0, used - cached))
