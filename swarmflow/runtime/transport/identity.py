"""The identity of a process: an Ed25519 key in a file, of one process at a time. Its libp2p name is the public key.

So whoever knows a process by its name can check what it has signed, without asking anybody for its key. libsodium signs
and checks in 20 and 57 us, where OpenSSL takes 33 and 110: that is done for each hop.
"""

from __future__ import annotations

import fcntl
import logging
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO

from hivemind.p2p import PeerID
from hivemind.proto import crypto_pb2
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from swarmflow.errors import NetworkError
from swarmflow.files import set_aside, write_whole

log = logging.getLogger("swarmflow")

SIGNATURE_BYTES = 64
_KEY_BYTES = 32
# A name is the multihash `identity` (libp2p specification, peer ids): function 0, 36 bytes, the key as a protobuf.
_NAME_START = (
    b"\x00\x24" + crypto_pb2.PublicKey(key_type=crypto_pb2.Ed25519, data=b"").SerializeToString()[:-1] + b"\x20"
)


class IdentityKey:
    """The key of an identity file: what a process signs with it, its libp2p name proves."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self.name = name_of(bytes(key.verify_key))

    def sign(self, data: bytes) -> bytes:
        """Return the signature of bytes that say themselves what they are about."""
        return self._key.sign(data).signature


def name_of(public_key: bytes) -> str:
    """Return the libp2p name (base58) of an Ed25519 public key."""
    return str(PeerID(_NAME_START + public_key).to_base58())


def is_signed_by(name: str, data: bytes, signature: bytes) -> bool:
    """Return whether the process with this libp2p name has signed some bytes."""
    key = _key_of(name)
    if key is None:
        return False
    try:
        key.verify(data, signature)
    except (BadSignatureError, ValueError):  # or of another length
        return False
    return True


def is_name(text: str) -> bool:
    """Return whether this is the libp2p name of an Ed25519 key."""
    return _key_of(text) is not None


@lru_cache(maxsize=16384)
def _key_of(name: str) -> VerifyKey | None:
    try:
        raw = PeerID.from_base58(name).to_bytes()
        known = raw.startswith(_NAME_START) and len(raw) == len(_NAME_START) + _KEY_BYTES
        return VerifyKey(raw[-_KEY_BYTES:]) if known and name_of(raw[-_KEY_BYTES:]) == name else None
    except ValueError:
        return None


def load_identity(path: Path) -> IdentityKey:
    """Return the key in this file; make the file and its folder when there is none.

    A damaged file is set aside. Its copy replaces it, and one that is missing too: an earlier process may have ended
    between the two. Without a copy, a new key does. Raises NetworkError when the file cannot be read or written.
    """
    copy = path.with_name(f"{path.name}.copy")
    try:
        if not path.exists():
            if _kept(copy) is not None:
                log.warning("the identity file %s is missing; its copy takes its place", path)
                return _restored(path, copy)
            _make(path)
        content = path.read_bytes()
        key = _parsed(content)
        if key is None:
            named = path, set_aside(path).name
            log.warning("the identity file %s is damaged, or of an earlier version; it is kept as %s", *named)
            return _restored(path, copy)
        with suppress(OSError):  # a process that only reads an identity may have no right to write here
            if not copy.exists() or copy.read_bytes() != content:
                write_whole(copy, content, private=True)
    except OSError as error:
        raise NetworkError(f"cannot use the identity file {path}: {error.strerror}") from None
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = SigningKey.generate()
    data = bytes(key) + bytes(key.verify_key)
    write_whole(path, _stored(data), private=True)


def _restored(path: Path, copy: Path) -> IdentityKey:
    """Replace a damaged identity file by its copy, or by a new key; return the key."""
    kept = _kept(copy)
    if kept is not None:
        write_whole(path, copy.read_bytes(), private=True)
        return kept
    log.warning("it had no copy: this process has a new name, and invites with its former name do not find it")
    copy.unlink(missing_ok=True)
    _make(path)
    return load_identity(path)


def _kept(copy: Path) -> IdentityKey | None:
    return _parsed(copy.read_bytes()) if copy.is_file() else None


def _stored(data: bytes) -> bytes:
    """Return a key as libp2p stores it. data: the private key, and the public one."""
    return bytes(crypto_pb2.PrivateKey(key_type=crypto_pb2.Ed25519, data=data).SerializeToString())


def _parsed(content: bytes) -> IdentityKey | None:
    """Return an Ed25519 key in libp2p's form; None when the content is not one."""
    data = content[-2 * _KEY_BYTES :]
    if len(data) != 2 * _KEY_BYTES or content != _stored(data):
        return None
    key = SigningKey(data[:_KEY_BYTES])
    return IdentityKey(key) if bytes(key.verify_key) == data[_KEY_BYTES:] else None


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
