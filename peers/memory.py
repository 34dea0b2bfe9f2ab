"""What a peer remembers of its run from one start to the next."""

from __future__ import annotations

import logging
from pathlib import Path

from swarmflow.errors import NetworkError
from swarmflow.files import read_sealed, write_sealed
from swarmflow.runtime.addresses import lasting
from swarmflow.runtime.invite import TRAINERS_MAX, Invite

log = logging.getLogger("swarmflow")


class JoinedRun:
    """Files in a peer's state folder. run: the id of the run that it has joined. trainers: where its trainers were.

    The trainers of an invite may be gone for good when everybody starts again, while others go on with the run.
    """

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._trainers = folder / "trainers"
        self._kept: tuple[str, ...] = ()
        self._refused = False

    def joined(self, run_id: str) -> bool:
        """Whether an earlier life had found this run: it is there, or will be again, and can be waited for."""
        return _read(self._run) == run_id.encode()

    def join(self, run_id: str) -> None:
        """The run is found."""
        if not self.joined(run_id):
            try:
                self._trainers.unlink(missing_ok=True)  # those of another run
                write_sealed(self._run, run_id.encode())
            except OSError as error:
                raise NetworkError(f"{self._run} cannot be written: {error.strerror}") from None

    def completed(self, invite: Invite) -> Invite:
        """The invite, with the trainers that were known last beside its own."""
        known = self._known()
        if not known or not self.joined(invite.run_id):
            return invite
        trainers = tuple(dict.fromkeys((*known[: TRAINERS_MAX // 2], *invite.trainers)))
        return Invite(invite.run_id, invite.name, trainers[:TRAINERS_MAX])

    def keep_trainers(self, addresses: tuple[str, ...]) -> None:
        """Remember multiaddrs of the run's trainers, but for those that are none.

        Call it again and again: what a disk refuses is tried again.
        """
        if addresses == self._kept:
            return
        good = lasting(addresses)
        try:
            if good:
                write_sealed(self._trainers, "\n".join(good).encode())
        except OSError as error:
            if not self._refused:
                log.warning("%s cannot be written: %s; it is tried again", self._trainers, error.strerror)
            self._refused = True
        else:
            self._kept, self._refused = addresses, False

    def _known(self) -> tuple[str, ...]:
        return lasting((_read(self._trainers) or b"").decode("utf-8", "replace").split())


def _read(path: Path) -> bytes | None:
    try:
        return read_sealed(path)
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror)
        return None
