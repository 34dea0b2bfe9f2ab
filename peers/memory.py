"""The memory of a peer's run from one start to the next, in files."""

from __future__ import annotations

import logging
from pathlib import Path

from swarmflow.authority.certificates import run_id_of
from swarmflow.authority.policy import AccessPolicy
from swarmflow.authority.policy_file import PolicyFile
from swarmflow.errors import NetworkError
from swarmflow.files import read_sealed, write_sealed
from swarmflow.runtime.transport.addresses import lasting
from swarmflow.runtime.transport.invite import TRAINERS_MAX, Invite

log = logging.getLogger("swarmflow")


class JoinedRun:
    """The files of a peer's state folder about its run: `run` (its id), `trainers` (their addresses) and `policy`.

    The trainers of an invite may be gone for good when a peer starts again, while others go on with the run.
    """

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._trainers = folder / "trainers"
        self._policy = PolicyFile(folder / "policy")
        self._kept: tuple[str, ...] = ()
        self._refused = False

    def joined(self, run_id: str) -> bool:
        """Whether an earlier life had found this run, which is then worth waiting for."""
        return _read(self._run) == run_id.encode()

    def join(self, run_id: str) -> None:
        """Record that the run is found."""
        if not self.joined(run_id):
            try:
                self._trainers.unlink(missing_ok=True)  # those of another run
                write_sealed(self._run, run_id.encode())
            except OSError as error:
                raise NetworkError(f"{self._run} cannot be written: {error.strerror}") from None

    def completed(self, invite: Invite) -> Invite:
        """Return the invite, with the trainers that were known last in addition to its own."""
        known = self._known()
        if not known or not self.joined(invite.run_id):
            return invite
        return invite.at((*known[: TRAINERS_MAX // 2], *invite.trainers))

    def keep_trainers(self, addresses: tuple[str, ...]) -> None:
        """Keep multiaddrs of the run's trainers; malformed ones are dropped.

        Call it regularly: a write that the disk refuses is tried again.
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

    def policy(self, run_id: str) -> AccessPolicy | None:
        """Return the policy of a run as last known."""
        return self._policy.read(run_id)

    def keep_policy(self, policy: AccessPolicy) -> None:
        """Keep a policy of the run: whoever was put out stays out when this peer starts again."""
        self._policy.keep(policy, run_id_of(policy.owner))

    def _known(self) -> tuple[str, ...]:
        return lasting((_read(self._trainers) or b"").decode("utf-8", "replace").split())


def _read(path: Path) -> bytes | None:
    try:
        return read_sealed(path)
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror)
        return None
