"""What a process signs of its messages and checks of others': hops with its own key, the run's state as a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from hmac import compare_digest

from blake3 import blake3

from swarmflow.authority.access import AccessControl
from swarmflow.core.protocol import handovers
from swarmflow.core.protocol.messages import FROM_TRAINERS, Message
from swarmflow.core.protocol.messages.checks import MessageChecks
from swarmflow.core.protocol.proofs import with_proofs, without_unproven
from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.identity import IdentityKey, is_signed_by

KEPT_MAX = 16384  # signatures that need not be made or checked again: each peer on the way of a hop reports it
_HOP = b"swarmflow hop 1\0"  # begins what is signed, so that a signature of a hop is none of anything else

Bodies = Sequence[bytes | bytearray | memoryview]


class Signatures:
    """Signs and checks the messages of one process in one run."""

    def __init__(self, access: AccessControl, key: IdentityKey) -> None:
        self._access = access
        self._key = key
        self._run = _HOP + access.run_id.encode()
        self._sign = lru_cache(maxsize=KEPT_MAX)(self._make)
        self._is_signed = lru_cache(maxsize=KEPT_MAX)(self._check)

    def signed(self, message: Message, to: ProcessId, bodies: Bodies) -> Message:
        """Return a message to a process with this process' signature of the hop that it hands over, if it does."""
        if type(message) not in handovers.SIGNED:
            return message
        return handovers.signed(message, to, self._sign, partial(_digest, bodies))

    def with_proofs(self, message: Message) -> Message:
        """Return a message with proofs of what it says about the run's state, where this process is a trainer."""
        return with_proofs(message, self._access.prove) if self._access.role == "trainer" else message

    def checked(
        self, message: Message, sender: ProcessId, me: ProcessId, bodies: Bodies, checks: MessageChecks
    ) -> Message | None:
        """Return a message of another process; None where it lacks a signature that its sender answers for."""
        if type(message) not in handovers.CHECKED:
            return message
        return handovers.checked(message, sender, me, self._is_signed, partial(_digest, bodies), checks)

    def proven(self, message: Message, checks: MessageChecks) -> Message | None:
        """Return a message of another process without claims about the run's state that no trainer has signed.

        None: nothing of it can be used.
        """
        return message if type(message) in FROM_TRAINERS else without_unproven(message, self._access.is_proven, checks)

    def _make(self, statement: bytes) -> bytes:
        return self._key.sign(self._run + statement)

    def _check(self, process: ProcessId, statement: bytes, signature: bytes) -> bool:
        if process.name == self._key.name:  # Ed25519 signs the same bytes in the same way
            return compare_digest(signature, self._sign(statement))
        return is_signed_by(process.name, self._run + statement, signature)


def _digest(bodies: Bodies) -> bytes:
    return b"".join(blake3(body).digest() for body in bodies)
