"""Errors that a user can cause or meet: each is one clear line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence


class SwarmflowError(Exception):
    """Base of every error that the command line prints as one line; the process then exits with `exit_code`."""

    exit_code = 1


class ConfigError(SwarmflowError):
    """A key of RUN.toml or an option of the command line is unknown, impossible or does not fit the others."""

    exit_code = 2


class DataError(SwarmflowError):
    """The corpus or its tokenizer is missing, empty or does not fit the model."""


class ModelError(SwarmflowError):
    """The model's folder, configuration or cut cannot be used."""


class NetworkError(SwarmflowError):
    """The network could not be joined, or an address, port or invite is of no use."""


class AuthorityError(NetworkError):
    """A key, certificate or policy is missing, expired, revoked, or not what the run's owner has signed."""


class PortTakenError(NetworkError):
    """Another process listens on this port."""


class FrameError(SwarmflowError):
    """A frame from the network is malformed, truncated, oversized or replayed; it is refused and counted."""


class CheckpointError(SwarmflowError):
    """A checkpoint is missing, incomplete, corrupt or belongs to another run."""


class TakenError(CheckpointError):
    """A folder is another process's by now: whoever had it cannot go on, and need not try again."""


class CorruptError(CheckpointError):
    """What lies on a disk is not what was written: of another digest, size or form, or not there any more.

    Only this lets it be set aside: what a disk merely refuses to give may be read at the next time.
    """


class NoRoomError(CheckpointError):
    """A disk has too little room. path: the folder that is written to."""

    def __init__(self, line: str, path: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(line)
        self.path, self.needed_bytes, self.free_bytes = path, needed_bytes, free_bytes


class WrongCopyError(CheckpointError):
    """What was copied is not what it should be: its digest is another one."""


class ForeignFileError(SwarmflowError):
    """Something is in the way that swarmflow did not write, and that it therefore neither removes nor overwrites."""

    exit_code = 2


class IncompatibleError(SwarmflowError):
    """A process runs other software, or another run, than the swarm that it asks to join."""


def raise_all(problems: Sequence[SwarmflowError]) -> None:
    """Raise the one problem there is, or one error that tells of all; nothing without any."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
        raise SwarmflowError(f"{len(problems)} problems: {lines}")
