"""Folders that processes keep their own files in."""

from __future__ import annotations

import re
from pathlib import Path

from swarmflow.errors import NetworkError
from swarmflow.ownership import claim_folder, names

# What trainers and peers write into their state folders, and trainers of one output into its folder `state`.
STATE = names(
    r"identity\.key(\.lock|\.copy|\.\d+\.new)?", r"lock", r"port", r"run\.json(\.copy)?", r"run", r"trainers", r"known",
    r"begun", r"former", r"checkpoints", r"tokenizer", r"copies", r"left", r".*\.corrupt(\.\d+)?",
    r".+\.[0-9a-f]{8}\.tmp",
)  # fmt: skip
SHARED = names(r"leader\.lock", r"invite", r"cache", r"trainer-[0-9a-f]+", r".+\.[0-9a-f]{8}\.tmp")


def state_folder(path: Path, own_names: re.Pattern[str] = STATE) -> Path:
    """A folder for a process's own files, made when it is not there.

    Raises NetworkError when it cannot be, and ForeignFileError when something else is in it.
    """
    try:
        claim_folder(path, "state", own_names)
    except OSError as error:
        raise NetworkError(f"the state folder {path} cannot be made: {error.strerror}") from None
    return path
