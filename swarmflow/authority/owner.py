"""The owner of a run: the key whose public half names the run, and what is signed with it."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarmflow.authority.certificates import Certificate, CertifiedKey, certificate_bytes, run_id_of
from swarmflow.authority.policy import REVOKED_MAX, AccessPolicy, Peers, policy_bytes
from swarmflow.core.protocol.types import Role
from swarmflow.errors import AuthorityError
from swarmflow.files import write_whole

_PEERS_KEY = "swarmflow 2026-11 the key that peers share"  # context of BLAKE3's key derivation


class Owner:
    """The holder of the private key of one run."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.run_id = run_id_of(self.public)

    @classmethod
    def make(cls, path: Path) -> Owner:
        """Make the key of a new run, and keep it in a file that only this user can read. Raises AuthorityError."""
        owner = cls(Ed25519PrivateKey.generate())
        try:
            write_whole(path, owner.encode(), private=True)
        except OSError as error:
            raise AuthorityError(f"the owner's key cannot be written to {path}: {error.strerror}") from None
        return owner

    @classmethod
    def load(cls, path: Path) -> Owner | None:
        """Return the owner whose key is in a file; None: there is no such file. Raises AuthorityError."""
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AuthorityError(f"the owner's key in {path} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError):  # TypeError: it is encrypted
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise AuthorityError(f"{path} holds no Ed25519 key (PEM, not encrypted): bring back the run's owner's key")
        return cls(key)

    def encode(self) -> bytes:
        """Return the key as PEM, as its file holds it."""
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self._key.private_bytes(*form)

    def certify(self, role: Role, expires_s: int = 0) -> CertifiedKey:
        """Return a new key with a certificate. expires_s: Unix time; 0: never."""
        return self._certified(role, Ed25519PrivateKey.generate(), expires_s)

    def shared_key(self, revoked: tuple[str, ...] = ()) -> CertifiedKey:
        """Return the certified key in the run's usual invite, which all its peers share: the same at each call.

        It is derived from the owner's key, and stored nowhere. revoked: ids of certificates, one of which may be its
        own; then the next one is returned.
        """
        for edition in range(REVOKED_MAX + 1):
            secret = blake3(self._key.private_bytes_raw() + edition.to_bytes(4), derive_key_context=_PEERS_KEY)
            certified = self._certified("peer", Ed25519PrivateKey.from_private_bytes(secret.digest()), 0)
            if certified.certificate.id not in revoked:
                return certified
        raise AuthorityError("each shared key of the run was revoked: begin another run")

    def policy(self, number: int, manifest: str, peers: Peers, revoked: tuple[str, ...]) -> AccessPolicy:
        """Return a signed policy. Raises AuthorityError where too many certificates are revoked."""
        if len(revoked) > REVOKED_MAX:
            raise AuthorityError(f"a run may revoke {REVOKED_MAX} certificates, not {len(revoked)}: begin another run")
        signature = self._key.sign(policy_bytes(number, manifest, peers, revoked, self.public))
        return AccessPolicy(number, manifest, peers, revoked, self.public, signature)

    def _certified(self, role: Role, key: Ed25519PrivateKey, expires_s: int) -> CertifiedKey:
        public = key.public_key().public_bytes_raw()
        signature = self._key.sign(certificate_bytes(role, public, expires_s, self.public))
        certificate = Certificate(role, public, expires_s, self.public, signature)
        return CertifiedKey(certificate, key.private_bytes_raw())
