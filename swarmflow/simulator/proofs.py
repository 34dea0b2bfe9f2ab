"""Pretended signatures of trainers: who sends a lie has no way to make one."""

from __future__ import annotations

from hashlib import blake2b

_KEY = b"of the trainers"


def sign(statement: bytes) -> bytes:
    """Return a trainer's proof of a statement."""
    return blake2b(statement, digest_size=8, key=_KEY).digest()


def is_proven(statement: bytes, proof: bytes) -> bool:
    """Return whether a trainer has made a statement."""
    return proof == sign(statement)
