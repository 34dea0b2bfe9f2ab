"""Access control of one process: which processes may connect to it, and with which role."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from blake3 import blake3

from swarmflow.authority.certificates import (
    PROOF_BYTES_MAX,
    Certificate,
    CertifiedKey,
    check_credential,
    check_proof,
    is_statement_of,
)
from swarmflow.authority.policy import AccessPolicy
from swarmflow.core.protocol.types import Role
from swarmflow.errors import AuthorityError
from swarmflow.latest import Latest

PROOFS_MAX = 64  # that are made, or checked, once: many processes quote the same
CHECKED_MAX = 4096  # credentials whose signatures need not be checked again: a process opens several streams


class AccessControl:
    """Checks the credentials of others against the policy of a run, and has that of this process.

    Until it knows the policy, it admits nobody without a certificate.
    """

    def __init__(self, run_id: str, key: CertifiedKey | None, now: Callable[[], float] = time.time) -> None:
        """key: of this process; None: it has no certificate. now: returns the Unix time."""
        self.run_id = run_id
        self.policy: AccessPolicy | None = None
        self._key = key
        self._now = now
        self._checked = lru_cache(maxsize=CHECKED_MAX)(self._check)
        # By a statement's hash, since it may be long, and its proof; the latest last.
        self._proven = Latest[tuple[bytes, bytes], Certificate | None](PROOFS_MAX)
        self._prove = lru_cache(maxsize=PROOFS_MAX)(self._new_proof)

    @property
    def role(self) -> Role | None:
        """The role that the certificate of this process gives it; None: it has none."""
        return None if self._key is None else self._key.certificate.role

    def credential(self, name: str) -> bytes:
        """Return what this process shows to others, under its libp2p name; empty: it has no certificate."""
        return b"" if self._key is None else self._key.bind(name)

    def admit(self, name: str, credential: bytes) -> Certificate | None:
        """Return the certificate of the process with this libp2p name; None: it has none, and needs none.

        credential: as it has shown it; empty: nothing. Raises AuthorityError where it may not connect.
        """
        certificate = self._certificate(name, credential)
        if certificate is not None and certificate.has_expired(self._now()):
            raise AuthorityError(f"its certificate {certificate.id} has expired: ask for a new invite")
        return certificate

    def refusal(self, certificate: Certificate | None) -> str:
        """Return why a process with this certificate may not take part by the policy; empty: it may.

        certificate: one that was checked; None: the process has none.
        """
        if certificate is None:
            open_to_all = self.policy is not None and self.policy.peers == "anyone"
            return "" if open_to_all else "the run is for invited peers: join with an invite from its owner"
        if self.policy is not None and certificate.id in self.policy.revoked:
            return f"its certificate {certificate.id} was revoked: ask the run's owner for a new invite"
        return ""

    def sign(self, name: str, data: bytes) -> tuple[bytes, bytes]:
        """Return the credential of this process and its signature of a statement; both empty without a certificate."""
        return (b"", b"") if self._key is None else (self._key.bind(name), self._key.sign(data))

    def check_trainer(self, name: str, credential: bytes, signature: bytes, data: bytes) -> None:
        """Raises AuthorityError unless the process with this libp2p name is a trainer and has signed a statement.

        Its certificate may have expired since: who is in, stays.
        """
        certificate = self._certificate(name, credential)
        if certificate is None or certificate.role != "trainer" or not is_statement_of(certificate, data, signature):
            raise AuthorityError("it is not signed by a trainer of the run")

    def prove(self, statement: bytes) -> bytes:
        """Return the proof that this process has made a statement about the run; empty without a certificate."""
        return self._prove(statement)

    def is_proven(self, statement: bytes, proof: bytes) -> bool:
        """Return whether a trainer of the run has made a statement.

        The certificate of that trainer may have expired since; where it was revoked, nothing of it counts any more.
        """
        certificate = self._proof_of(statement, proof) if 0 < len(proof) <= PROOF_BYTES_MAX else None
        revoked = self.policy.revoked if self.policy is not None else ()
        return certificate is not None and certificate.role == "trainer" and certificate.id not in revoked

    def adopt(self, policy: AccessPolicy) -> bool:
        """Apply a policy of the run from now on if it is newer than the present one; return whether it is."""
        if self.policy is not None and policy.number <= self.policy.number:
            return False
        self.policy = policy
        return True

    def _certificate(self, name: str, credential: bytes) -> Certificate | None:
        """Return the certificate of a process, which may have expired. Raises as `admit`."""
        certificate = self._checked(name, credential) if credential else None
        if reason := self.refusal(certificate):
            raise AuthorityError(reason)
        return certificate

    def _check(self, name: str, credential: bytes) -> Certificate:
        return check_credential(credential, self.run_id, name)

    def _proof_of(self, statement: bytes, proof: bytes) -> Certificate | None:
        key = blake3(statement).digest(), proof
        if key in self._proven:
            self._proven.move_to_end(key)
            return self._proven[key]
        try:
            self._proven[key] = check_proof(proof, self.run_id, statement)
        except AuthorityError:
            self._proven[key] = None
        return self._proven[key]

    def _new_proof(self, statement: bytes) -> bytes:
        return b"" if self._key is None else self._key.prove(statement)
