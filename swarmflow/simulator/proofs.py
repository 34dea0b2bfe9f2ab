"""Pretended signatures: who sends a lie has no way to make another process' own."""

from __future__ import annotations

from hashlib import blake2b

from swarmflow.core.protocol.types import ProcessId

_KEY = b"of the trainers"


def sign(statement: bytes) -> bytes:
    """Return a trainer's proof of a statement."""
    return blake2b(statement, digest_size=8, key=_KEY).digest()


def is_proven(statement: bytes, proof: bytes) -> bool:
    """Return whether a trainer has made a statement."""
    return proof == sign(statement)


def sign_as(process: ProcessId, statement: bytes) -> bytes:
    """Return a process' signature of a statement."""
    return hash((process, statement)).to_bytes(8, "big", signed=True)  # many a step: 20 times as fast as a digest


def is_signed_by(process: ProcessId, statement: bytes, signature: bytes) -> bool:
    """Return whether a process has made a statement."""
    return signature == sign_as(process, statement)
