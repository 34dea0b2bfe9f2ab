"""Certificates: the owner's signature that the holder of a key may take part in the run, as a trainer or as a peer.

A certified key travels in an invite, so an invite is a bearer token. A process binds the key to its libp2p name, which
its connections prove: what it shows to others is of no use to them.
"""

from __future__ import annotations

import base64
from typing import Annotated, TypeVar

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarmflow.core.protocol.types import Role
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import AuthorityError

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]  # Ed25519, public or private, raw (RFC 8032)
Signature = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]

T = TypeVar("T")

CREDENTIAL_BYTES_MAX = PROOF_BYTES_MAX = 512
RUN_ID_BYTES = 16  # of the digest: nobody finds a second key for a given run id (2^128 tries)
CERTIFICATE_ID_BYTES = 8

# Each kind of statement begins with other bytes, so that a signature of one is never one of another.
_CERTIFICATE = b"swarmflow certificate 1\0"
_BINDING = b"swarmflow process 1\0"
_STATEMENT = b"swarmflow statement 1\0"
_PROOF = b"swarmflow proof 1\0"


class Certificate(msgspec.Struct, frozen=True, array_like=True):
    """The owner's statement about one key."""

    role: Role
    key: Key  # public
    expires_s: Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]  # Unix time; 0: never
    owner: Key  # public
    signature: Signature  # by the owner, of all fields above

    @property
    def id(self) -> str:
        """The name by which the owner revokes it: 16 hexadecimal digits."""
        return blake3(self.key).hexdigest(length=CERTIFICATE_ID_BYTES)

    @property
    def run_id(self) -> str:
        """The run that it is for."""
        return run_id_of(self.owner)

    def check(self, run_id: str) -> None:
        """Raises AuthorityError unless the owner of this run has issued it."""
        if self.run_id != run_id:
            raise AuthorityError("its certificate is for another run")
        signed = certificate_bytes(self.role, self.key, self.expires_s, self.owner)
        if not is_signed(self.owner, signed, self.signature):
            raise AuthorityError("its certificate is not signed by the run's owner")

    def has_expired(self, now_s: float) -> bool:
        """Return whether it lets nobody in any more. now_s: Unix time."""
        return 0 < self.expires_s <= now_s


class CertifiedKey(msgspec.Struct, frozen=True, array_like=True):
    """A certificate and the private key that it certifies: what an invite carries. To be kept secret."""

    certificate: Certificate
    secret: Key

    def __repr__(self) -> str:
        return f"CertifiedKey({self.certificate.role}, {self.certificate.id})"

    def check(self, run_id: str) -> None:
        """Raises AuthorityError unless the owner of this run has issued the certificate, for this key."""
        self.certificate.check(run_id)
        public = Ed25519PrivateKey.from_private_bytes(self.secret).public_key().public_bytes_raw()
        if public != self.certificate.key:
            raise AuthorityError("its key is not the one that its certificate is about")

    def bind(self, name: str) -> bytes:
        """Return the credential of the process with this libp2p name."""
        binding = Ed25519PrivateKey.from_private_bytes(self.secret).sign(_binding(self.certificate.run_id, name))
        return msgspec.msgpack.encode(Credential(self.certificate, binding))

    def sign(self, data: bytes) -> bytes:
        """Return the signature of a statement, which says itself what it is about."""
        return Ed25519PrivateKey.from_private_bytes(self.secret).sign(_STATEMENT + data)

    def prove(self, statement: bytes) -> bytes:
        """Return a proof that the holder of this key has said something about the run: others may pass it on."""
        signed = proof_bytes(self.certificate.run_id, statement)
        signature = Ed25519PrivateKey.from_private_bytes(self.secret).sign(signed)
        return msgspec.msgpack.encode(Proof(self.certificate, signature))


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """That the holder of a certified key has made a statement, which travels beside it."""

    certificate: Certificate
    signature: Signature


class Credential(msgspec.Struct, frozen=True, array_like=True):
    """What a process shows to others."""

    certificate: Certificate
    binding: Signature  # by the certified key, of the run and the process' libp2p name


def check_credential(data: bytes, run_id: str, name: str) -> Certificate:
    """Return the certificate of the process with this libp2p name; it may have expired, or be revoked.

    Raises AuthorityError where the data prove nothing.
    """
    credential = decoded(data, Credential, CREDENTIAL_BYTES_MAX, "its credential")
    certificate = credential.certificate
    certificate.check(run_id)
    if not is_signed(certificate.key, _binding(run_id, name), credential.binding):
        raise AuthorityError("its credential is another process'")
    return certificate


def check_proof(proof: bytes, run_id: str, statement: bytes) -> Certificate:
    """Return the certificate of who has made a statement about the run; it may have expired, or be revoked.

    Raises AuthorityError where the proof is none.
    """
    shown = decoded(proof, Proof, PROOF_BYTES_MAX, "a proof")
    shown.certificate.check(run_id)
    if not is_signed(shown.certificate.key, proof_bytes(run_id, statement), shown.signature):
        raise AuthorityError("a proof is of another statement")
    return shown.certificate


def decoded(data: bytes | bytearray | memoryview, kind: type[T], bytes_max: int, what: str) -> T:
    """Return a document in msgpack as its type; no signature is checked. Raises AuthorityError. what: its name."""
    if len(data) > bytes_max:
        raise AuthorityError(f"{what} has {len(data)} bytes, more than {bytes_max}")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNDECODABLE:
        raise AuthorityError(f"{what} does not decode") from None


def run_id_of(owner: bytes) -> str:
    """Return the id of the run with this owner (a public key): 26 lower-case letters and digits."""
    return base64.b32encode(blake3(owner).digest(length=RUN_ID_BYTES)).decode().rstrip("=").lower()


def certificate_bytes(role: Role, key: bytes, expires_s: int, owner: bytes) -> bytes:
    """Return what the owner signs of a certificate."""
    return _CERTIFICATE + msgspec.msgpack.encode((role, key, expires_s, owner))


def is_statement_of(certificate: Certificate, data: bytes, signature: bytes) -> bool:
    """Return whether the holder of a certified key has signed a statement."""
    return is_signed(certificate.key, _STATEMENT + data, signature)


def is_signed(key: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether a signature of the data is that of a public key."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):  # ValueError: no point of the curve
        return False
    return True


def proof_bytes(run_id: str, statement: bytes) -> bytes:
    """Return what is signed for a proof."""
    return _PROOF + msgspec.msgpack.encode((run_id, statement))


def _binding(run_id: str, name: str) -> bytes:
    return _BINDING + msgspec.msgpack.encode((run_id, name))
