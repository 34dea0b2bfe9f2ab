"""Owners of runs, for tests: their keys, what these let processes do, and invites."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmflow.authority.access import AccessControl
from swarmflow.authority.owner import Owner
from swarmflow.runtime.transport.invite import Invite

OWNER = Owner(Ed25519PrivateKey.from_private_bytes(b"o" * 32))
OTHER = Owner(Ed25519PrivateKey.from_private_bytes(b"p" * 32))  # of another run
RUN_ID = OWNER.run_id


def trainer_access(owner: Owner = OWNER) -> AccessControl:
    """Return the access control of a trainer that does not know the run's policy yet."""
    return AccessControl(owner.run_id, owner.certify("trainer"))


def invite_of(*trainers: str, owner: Owner = OWNER, name: str = "run") -> Invite:
    """Return an invite for peers, with these addresses of trainers."""
    return Invite(owner.public, name, trainers, owner.shared_key())
