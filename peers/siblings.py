"""The other peers of a host with several devices, by their libp2p names, which connections prove.

Each writes its name into a folder that their parent has made for this alone (peers/host.py).
"""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger("swarmflow")


def announce_to_siblings(folder: Path | None, name: str) -> None:
    """Let the others know the name of this process. folder: None: it runs alone."""
    if folder is None:
        return
    try:
        (folder / name).touch()
    except OSError as error:
        log.warning("the peers of this host's other devices do not learn of this one: %s", error.strerror)


def siblings(folder: Path | None) -> frozenset[str]:
    """Return the names of the peers of this host, this one among them; empty where it runs alone."""
    try:
        return frozenset(path.name for path in folder.iterdir()) if folder is not None else frozenset()
    except OSError:  # the parent is gone, and so will this peer be
        return frozenset()
