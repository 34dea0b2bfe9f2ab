"""The identity of a process: one RSA key in a file, whose hash is the libp2p name, held by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import IO

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.p2p import P2P, PeerID
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey

from swarmflow.errors import NetworkError

_SHA2_256 = b"\x12\x20"  # multihash: the code of the function and the size of its digest


class IdentityKey(RSAPrivateKey):  # type: ignore[misc]  # hivemind is untyped
    """The key of an identity file, for hivemind's signatures: records and connections then prove the same name."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._private_key = key  # instead of super().__init__(), which makes a new random key

    @property
    def name(self) -> str:
        """The libp2p name (base58) that this key proves."""
        return name_of(self._private_key.public_key())


def name_of(public_key: rsa.RSAPublicKey) -> str:
    """The libp2p name (base58) of an RSA public key (libp2p specification, peer ids: sha2-256 multihash)."""
    der = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    message = crypto_pb2.PublicKey(key_type=crypto_pb2.RSA, data=der).SerializeToString()
    return str(PeerID(_SHA2_256 + hashlib.sha256(message).digest()).to_base58())


def load_identity(path: Path) -> IdentityKey:
    """The key in this file; made, with its folder, when there is none.

    Raises NetworkError when the file cannot be read or written, or holds no key.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
            P2P.generate_identity(str(fresh))
            fresh.rename(path)
        content = path.read_bytes()
    except OSError as error:
        raise NetworkError(f"cannot use the identity file {path}: {error.strerror}") from None
    try:
        key = serialization.load_der_private_key(crypto_pb2.PrivateKey.FromString(content).data, password=None)
    except Exception as error:  # protobuf and cryptography raise unrelated classes for a damaged file
        raise NetworkError(f"the identity file {path} is damaged ({type(error).__name__}): remove it") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise NetworkError(f"the identity file {path} holds no RSA key: remove it")
    return IdentityKey(key)


class IdentityLock:
    """Keeps two processes of this machine from being one identity; the system frees it when the process ends."""

    def __init__(self, path: Path) -> None:
        """Raises NetworkError when another process holds this identity."""
        lock_path = path.with_name(f"{path.name}.lock")
        try:
            lock_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file: IO[bytes] = lock_path.open("ab")
        except OSError as error:
            raise NetworkError(f"cannot use the identity file {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise NetworkError(f"the identity {path} is in use by another process: give another --state-dir") from None

    def release(self) -> None:
        """Gives the identity back."""
        self._file.close()

    def __enter__(self) -> IdentityLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
