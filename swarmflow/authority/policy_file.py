"""The policy of a run in a file, from which a process goes on when it starts again."""

from __future__ import annotations

import logging
from pathlib import Path

from swarmflow.authority.policy import AccessPolicy
from swarmflow.errors import AuthorityError
from swarmflow.files import read_sealed, write_sealed

log = logging.getLogger("swarmflow")


class PolicyFile:
    """Holds the newest policy that was given to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen_ns = 0  # modification time of the file when `changed` read it last

    def read(self, run_id: str) -> AccessPolicy | None:
        """Return the policy of a run; None: there is none that its owner has signed."""
        try:
            data = read_sealed(self.path, set_aside_corrupt=False)
            return AccessPolicy.decode(data, run_id) if data is not None else None
        except (OSError, AuthorityError) as error:
            log.debug("%s is of no use for run %s: %s", self.path, run_id, error)
            return None

    def keep(self, policy: AccessPolicy, run_id: str) -> None:
        """Keep a policy of a run, unless the file has a newer one. A disk that refuses is logged."""
        kept = self.read(run_id)
        if kept is None or kept.number < policy.number:
            try:
                self.write(policy)
            except OSError as error:
                log.warning("the run's policy is not kept in %s: %s", self.path, error.strerror)

    def write(self, policy: AccessPolicy) -> None:
        """Replace what the file holds. Raises OSError."""
        write_sealed(self.path, policy.encode())

    def changed(self, run_id: str) -> AccessPolicy | None:
        """Return the policy of a run where the file was written since the last call, else None."""
        try:
            written_ns = self.path.stat().st_mtime_ns
        except OSError:
            return None
        if written_ns == self._seen_ns:
            return None
        self._seen_ns = written_ns
        return self.read(run_id)
