"""Folders that processes keep their own files in."""

from __future__ import annotations

from pathlib import Path

from swarmflow.errors import NetworkError


def state_folder(path: Path) -> Path:
    """A folder for a process's own files, made when it is not there. Raises NetworkError when it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NetworkError(f"the state folder {path} cannot be made: {error.strerror}") from None
    return path
