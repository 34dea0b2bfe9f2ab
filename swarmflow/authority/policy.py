"""The policy of a run, signed by its owner: which manifest is the run's, who may serve it, and who no longer may."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from swarmflow.authority.certificates import Key, Signature, decoded, is_signed, run_id_of
from swarmflow.errors import AuthorityError

Peers = Literal["invited", "anyone"]

POLICY_BYTES_MAX = 1 << 16
REVOKED_MAX = 2048  # certificates: they fit into POLICY_BYTES_MAX

_POLICY = b"swarmflow policy 1\0"


class AccessPolicy(msgspec.Struct, frozen=True, array_like=True):
    """What the owner may change of a run without a new invite. Of two policies the one with the larger number holds."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    manifest: Annotated[str, msgspec.Meta(max_length=64)]  # fingerprint
    peers: Peers  # whether a peer needs a certificate
    revoked: Annotated[tuple[str, ...], msgspec.Meta(max_length=REVOKED_MAX)]  # ids of certificates
    owner: Key  # public
    signature: Signature  # by the owner, of all fields above

    def encode(self) -> bytes:
        """As bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, run_id: str) -> AccessPolicy:
        """From bytes. Raises AuthorityError unless the owner of this run has signed it."""
        policy = decoded(data, cls, POLICY_BYTES_MAX, "the policy of the run")
        signed = policy_bytes(policy.number, policy.manifest, policy.peers, policy.revoked, policy.owner)
        if run_id_of(policy.owner) != run_id or not is_signed(policy.owner, signed, policy.signature):
            raise AuthorityError("the policy of the run is not signed by its owner")
        return policy


def policy_bytes(number: int, manifest: str, peers: Peers, revoked: tuple[str, ...], owner: bytes) -> bytes:
    """Return what the owner signs of a policy."""
    return _POLICY + msgspec.msgpack.encode((number, manifest, peers, revoked, owner))
