"""The identity of a process: one RSA key in a file, whose hash is the libp2p name, held by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.p2p import P2P, PeerID
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import RSAPrivateKey

from swarmflow.errors import NetworkError
from swarmflow.files import set_aside, write_whole

log = logging.getLogger("swarmflow")

_SHA2_256 = b"\x12\x20"  # multihash: the code of the function and the size of its digest


class IdentityKey(RSAPrivateKey):  # type: ignore[misc]  # hivemind is untyped
    """The key of an identity file, for hivemind's signatures: records and connections then prove the same name."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._private_key = key  # instead of super().__init__(), which makes a new random key

    @property
    def name(self) -> str:
        """Return the libp2p name (base58) that this key proves."""
        return name_of(self._private_key.public_key())


def name_of(public_key: rsa.RSAPublicKey) -> str:
    """Return the libp2p name (base58) of an RSA public key (libp2p specification, peer ids: sha2-256 multihash)."""
    der = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    message = crypto_pb2.PublicKey(key_type=crypto_pb2.RSA, data=der).SerializeToString()
    return str(PeerID(_SHA2_256 + hashlib.sha256(message).digest()).to_base58())


def load_identity(path: Path) -> IdentityKey:
    """Return the key in this file; make the file and its folder when there is none.

    A damaged file is set aside and replaced by its copy; without a copy, by a new key.
    Raises NetworkError when the file cannot be read or written.
    """
    copy = path.with_name(f"{path.name}.copy")
    try:
        if not path.exists():
            _make(path)
        content = path.read_bytes()
        key = _parsed(content)
        if key is None:
            log.warning("the identity file %s is damaged; it is kept as %s", path, set_aside(path).name)
            return _restored(path, copy)
        with suppress(OSError):  # a process that only reads an identity may have no right to write here
            if not copy.exists() or copy.read_bytes() != content:
                write_whole(copy, content, private=True)
    except OSError as error:
        raise NetworkError(f"cannot use the identity file {path}: {error.strerror}") from None
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    P2P.generate_identity(str(fresh))
    write_whole(path, fresh.read_bytes(), private=True)
    fresh.unlink()


def _restored(path: Path, copy: Path) -> IdentityKey:
    """Replace a damaged identity file by its copy, or by a new key; return the key."""
    content = copy.read_bytes() if copy.is_file() else b""
    key = _parsed(content)
    if key is not None:
        write_whole(path, content, private=True)
        return key
    log.warning("it had no copy: this process has a new name, and invites with its former name do not find it")
    copy.unlink(missing_ok=True)
    _make(path)
    return load_identity(path)


def _parsed(content: bytes) -> IdentityKey | None:
    """Return an RSA key in libp2p's form; None when the content is not one."""
    try:
        stored = crypto_pb2.PrivateKey.FromString(content)
        key = serialization.load_der_private_key(stored.data, password=None)
    except Exception:  # protobuf and cryptography raise unrelated classes for a damaged file
        return None
    well_formed = stored.key_type == crypto_pb2.RSA and stored.SerializeToString() == content
    return IdentityKey(key) if well_formed and isinstance(key, rsa.RSAPrivateKey) else None


class IdentityLock:
    """Keeps two processes of this machine from using one identity; the system frees it when its process ends."""

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
        except BlockingIOError:
            self._file.close()
            raise NetworkError(f"the identity {path} is in use by another process: give another --state-dir") from None
        except OSError as error:
            self._file.close()
            raise NetworkError(
                f"{lock_path} cannot be locked ({error.strerror}): where its file system has no locks, give a "
                "--state-dir on another one"
            ) from None

    def release(self) -> None:
        """Release the identity."""
        self._file.close()

    def __enter__(self) -> IdentityLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
