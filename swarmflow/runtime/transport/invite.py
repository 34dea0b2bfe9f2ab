"""Invites: strings with all that joining a run takes; and the runs of this machine, which are found without one."""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec

from swarmflow.authority.certificates import CertifiedKey, Key, run_id_of
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError

log = logging.getLogger("swarmflow")

VERSION = 2
TEXT_CHARS_MAX = 8192
TRAINERS_MAX = 16
NAME_CHARS_MAX = 256

_CHECKSUM_BYTES = 4
_SIZE_BYTES = 2
_TEXT = re.compile(r"swarmflow(\d{1,9}):([A-Za-z0-9_-]*)")
_LOCAL_FILE = re.compile(r"[0-9a-f]{16}-\d+\.json")  # name of the file that publishes a run on its machine
_Parts = tuple[Key, str, tuple[str, ...], CertifiedKey | None, CertifiedKey | None]
_ADDRESS = re.compile(r"/[\x21-\x7e]{1,500}/p2p/[1-9A-HJ-NP-Za-km-z]{20,100}")


@dataclass(frozen=True, slots=True)
class Invite:
    """What a newcomer needs to join a run."""

    owner: bytes  # public key of the run's owner, which names the run
    name: str  # of the run, for people
    trainers: tuple[str, ...]  # where trainers listen: multiaddrs with /p2p/NAME
    peer: CertifiedKey | None = None  # lets its bearer serve a stage; None: anyone may, or it does not
    trainer: CertifiedKey | None = None  # lets its bearer be a trainer

    def __post_init__(self) -> None:
        """Raises NetworkError when a part is impossible, AuthorityError when a certificate is not the owner's."""
        for role, key in (("peer", self.peer), ("trainer", self.trainer)):
            if key is None:
                continue
            if (key.certificate.role, key.certificate.owner) != (role, self.owner):
                raise NetworkError("an invite's certificate is for another run or role: ask for a new invite")
            key.check(self.run_id)
        if len(self.name) > NAME_CHARS_MAX:
            raise NetworkError(f"an invite's name has {NAME_CHARS_MAX} characters at most: ask for a new invite")
        if not 0 < len(self.trainers) <= TRAINERS_MAX:
            raise NetworkError(f"an invite holds 1 to {TRAINERS_MAX} addresses of trainers, not {len(self.trainers)}")
        for address in self.trainers:
            if not is_address(address):
                raise NetworkError(f"an invite's address must be a multiaddr ending in /p2p/NAME, not {address!r}")

    def __str__(self) -> str:
        payload = msgspec.msgpack.encode((self.owner, self.name, self.trainers, self.peer, self.trainer))
        data = len(payload).to_bytes(_SIZE_BYTES) + payload + _checksum(payload)
        return f"swarmflow{VERSION}:{base64.urlsafe_b64encode(data).decode().rstrip('=')}"

    @classmethod
    def parse(cls, text: str) -> Invite:
        """Return the invite that `str(invite)` wrote; white space in it, as from a wrapped line, is ignored.

        Raises NetworkError with the reason: not an invite, another version, cut short, or damaged.
        """
        compact = "".join(text[:TEXT_CHARS_MAX].split())
        match = _TEXT.fullmatch(compact)
        if match is None or len(text) > TEXT_CHARS_MAX:
            shown = compact if len(compact) <= 24 else f"{compact[:24]}..."
            raise NetworkError(f"{shown!r} is no invite: copy the whole line that starts with swarmflow{VERSION}:")
        if int(match[1]) != VERSION:
            raise NetworkError(
                f"the invite is of version {match[1]}, this software reads version {VERSION}: install the run's version"
            )
        payload = _payload(match[2])
        try:
            parts = msgspec.msgpack.decode(payload, type=_Parts)
        except UNDECODABLE:
            raise NetworkError("the invite holds something else than an invite: ask for a new one") from None
        return cls(*parts)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return run_id_of(self.owner)

    @property
    def key(self) -> CertifiedKey | None:
        """The certified key that allows its bearer most; None: it has none."""
        return self.trainer or self.peer

    def at(self, trainers: Iterable[str]) -> Invite:
        """Return the same invite with other addresses, of which it takes as many as an invite may have."""
        return replace(self, trainers=tuple(dict.fromkeys(trainers))[:TRAINERS_MAX])


def warn_of_expiry(key: CertifiedKey | None) -> None:
    """Say that an invite has expired, before trainers refuse it: the clock of one of both may be wrong.

    key: of the invite, for the role of this process.
    """
    if key is not None and key.certificate.has_expired(time.time()):
        log.warning("by the clock of this machine the invite has expired: ask the run's owner for a new one")


def is_address(text: str) -> bool:
    """Return whether a text has the form of an invite's address; its host and name are not checked."""
    return _ADDRESS.fullmatch(text) is not None


def _payload(encoded: str) -> bytes:
    """Decode an invite from base64, and check its length and checksum. Raises NetworkError."""
    # A cut text may have a length that base64 cannot have: the whole bytes before the cut show that it is cut.
    usable = encoded[: len(encoded) - 1] if len(encoded) % 4 == 1 else encoded
    try:
        data = base64.urlsafe_b64decode(usable + "=" * (-len(usable) % 4))
    except binascii.Error:
        raise NetworkError("the invite is damaged: copy it again") from None
    size = int.from_bytes(data[:_SIZE_BYTES])
    rest = data[_SIZE_BYTES:]
    if len(data) < _SIZE_BYTES or len(rest) < size + _CHECKSUM_BYTES:
        raise NetworkError("the invite is truncated: copy the whole line")
    payload = rest[:size]
    if rest[size:] != _checksum(payload):
        raise NetworkError("the invite is damaged (its checksum is wrong): copy it again")
    return payload


def _checksum(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()[:_CHECKSUM_BYTES]


class LocalInvite(msgspec.Struct):
    """The file by which processes of this machine find a run."""

    invite: str
    pid: int  # of the trainer that wrote it, for people
    # At 127.0.0.1, where the trainer answers requests with the token (operations/answering.py); 0: nowhere.
    port: int = 0
    token: str = ""


class Publication:
    """A run that is published on this machine, until `withdraw` or the end of the process, however it ends."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file  # open as long as it is published, because its lock shows that the process is alive

    def withdraw(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        self._file.close()


def runs_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder, for this user only, where runs of this machine are published."""
    base = environ.get("XDG_RUNTIME_DIR") or environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "swarmflow" / "runs"


def is_invite(file: IO[bytes]) -> bool:
    """Return whether a file contains an invite and nothing else."""
    return _TEXT.fullmatch(file.read(TEXT_CHARS_MAX).decode("ascii", "replace").strip()) is not None


def publish_local(invite: Invite, folder: Path | None = None, port: int = 0, token: str = "") -> Publication:
    """Publish the run to processes of this user on this machine, as long as this process lives.

    The file is locked, because the system frees the lock even at a crash, where a process ID in a file would remain and
    could be reused. Raises NetworkError when the folder cannot be written.
    """
    folder = runs_folder() if folder is None else folder
    run = hashlib.sha256(invite.run_id.encode()).hexdigest()[:16]
    path = folder / f"{run}-{os.getpid()}.json"
    fresh = path.with_suffix(".new")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        file = os.fdopen(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(msgspec.json.encode(LocalInvite(str(invite), os.getpid(), port, token)))
        file.flush()
        fresh.rename(path)
    except OSError as error:
        raise NetworkError(f"cannot make the run known on this machine in {folder}: {error.strerror}") from None
    return Publication(path, file)


def find_local_invites(folder: Path | None = None) -> list[Invite]:
    """Return the live runs of this user on this machine, one invite per run; remove files of dead processes."""
    by_run: dict[str, Invite] = {}
    for _, invite in _publications(folder):
        earlier = by_run.get(invite.run_id)
        by_run[invite.run_id] = invite if earlier is None else invite.at(earlier.trainers + invite.trainers)
    return list(by_run.values())


def local_trainers(run_id: str, folder: Path | None = None) -> list[tuple[int, str]]:
    """Return port and token of each live trainer of a run on this machine."""
    found = [local for local, invite in _publications(folder) if invite.run_id == run_id]
    return [(local.port, local.token) for local in found if 0 < local.port < 1 << 16]


def _publications(folder: Path | None) -> list[tuple[LocalInvite, Invite]]:
    """Return the files of live processes, each with its invite decoded."""
    folder = runs_folder() if folder is None else folder
    found = [_read_local(path) for path in sorted(folder.glob("*.json")) if _LOCAL_FILE.fullmatch(path.name)]
    return [publication for publication in found if publication is not None]


def _read_local(path: Path) -> tuple[LocalInvite, Invite] | None:
    """Return a file and its invite, decoded; None when it is unreadable. Remove the file of a dead process."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = file.read(2 * TEXT_CHARS_MAX)
                local = msgspec.json.decode(content, type=LocalInvite)
                return local, Invite.parse(local.invite)
            path.unlink(missing_ok=True)  # the lock is free: its process is dead
            return None
    except (OSError, *UNDECODABLE, NetworkError):
        return None  # a file of another version, or one that was removed: no run is found here


def local_invite(folder: Path | None = None) -> Invite:
    """Return the one live run of this machine.

    Raises NetworkError when there is none, or several, naming them.
    """
    found = find_local_invites(folder)
    if not found:
        raise NetworkError(
            "no run is alive on this machine: give --join INVITE (or SWARMFLOW_JOIN); "
            "`swarmflow trainer RUN.toml` prints the invite"
        )
    if len(found) > 1:
        names = ", ".join(sorted(f"{invite.name} ({invite.run_id})" for invite in found))
        raise NetworkError(f"several runs are alive on this machine: {names}; choose one with --join INVITE")
    return found[0]


def read_invite(text: str | None) -> Invite:
    """Return the given invite, or that of the one run on this machine. Raises NetworkError.

    For the run of a trainer on this machine, an invite is completed with what that one has published here.
    """
    if not text:
        return local_invite()
    given = Invite.parse(text)
    here = next((found for found in find_local_invites() if found.run_id == given.run_id), given)
    return replace(given, peer=given.peer or here.peer, trainer=given.trainer or here.trainer)
