"""What a peer remembers of its run from one start to the next."""

from __future__ import annotations

import logging
from pathlib import Path

from swarmflow.errors import NetworkError
from swarmflow.files import write_whole
from swarmflow.runtime.invite import TRAINERS_MAX, Invite

log = logging.getLogger("swarmflow")


class Memory:
    """Files in a peer's state folder. run: the id of the run that it has joined. trainers: where its trainers were.

    The trainers of an invite may be gone for good when everybody starts again, while others go on with the run.
    """

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._trainers = folder / "trainers"
        self._kept: tuple[str, ...] = ()

    def joined(self, run_id: str) -> bool:
        """Whether an earlier life had found this run: it is there, or will be again, and can be waited for."""
        return self._run.is_file() and self._run.read_text(encoding="utf-8") == run_id

    def join(self, run_id: str) -> None:
        """The run is found."""
        if not self.joined(run_id):
            self._trainers.unlink(missing_ok=True)  # those of another run
            self._write(self._run, run_id)

    def completed(self, invite: Invite) -> Invite:
        """The invite, with the trainers that were known last beside its own."""
        known = self._trainers.read_text(encoding="utf-8").split() if self._trainers.is_file() else []
        if not known or not self.joined(invite.run_id):
            return invite
        trainers = tuple(dict.fromkeys((*known[: TRAINERS_MAX // 2], *invite.trainers)))
        try:
            return Invite(invite.run_id, invite.name, trainers[:TRAINERS_MAX])
        except NetworkError as error:
            log.warning("%s is of no use: %s", self._trainers, error)
            return invite

    def keep_trainers(self, addresses: tuple[str, ...]) -> None:
        """Remember multiaddrs of the run's trainers. Raises NetworkError when the disk refuses."""
        if addresses and addresses != self._kept:
            self._write(self._trainers, "\n".join(addresses))
            self._kept = addresses

    def _write(self, path: Path, text: str) -> None:
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise NetworkError(f"{path} cannot be written: {error.strerror}") from None
