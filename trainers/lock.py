"""A lock on a folder that also holds against other machines that share its file system."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from swarmflow.errors import CheckpointError, TakenError
from swarmflow.files import NO_ROOM_ERRNOS

WATCH_S = 5.0  # a holder on another machine beats once a second
_BEAT_S = 1.0
_POLL_S = 0.25
_RECORD_BYTES_MAX = 4096


class FolderLock:
    """A locked file that names its holder, and whose time the holder sets every second.

    The system's lock is enough between processes of one machine; over a network file system it may not be. So the
    holder touches the file every second, a process of another machine watches for that before it takes the lock, and
    the holder checks that the file is still its own. A thread touches it from the beginning, as the process may
    tokenize for minutes.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self._using = threading.RLock()  # held while the file is used: its descriptor could be reused
        self._over = threading.Event()
        self._token = secrets.token_hex(8)
        self._written = False
        self._write()
        threading.Thread(target=self._beat_on, name=f"beat {path.name}", daemon=True).start()

    @classmethod
    def acquire(cls, path: Path, watch_s: float = WATCH_S) -> FolderLock | None:
        """Return the lock; None: another process holds it. Takes `watch_s` where one of another machine held it last.

        Raises CheckpointError when the file cannot be written, or locked.
        """
        try:
            file = path.open("r+b" if path.exists() else "x+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return None
            except OSError as error:
                file.close()
                raise CheckpointError(
                    f"{path} cannot be locked ({error.strerror}): where its file system has no locks, give an output "
                    "and a --state-dir on another one"
                ) from None
            record = _record(path)
            if record and record.get("machine") != _machine() and _beats(path, watch_s):
                file.close()
                return None
            return cls(path, file)
        except FileExistsError:  # made by another process since
            return cls.acquire(path, watch_s)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None

    def beat(self) -> None:
        """Touch the file. Raises OSError when the disk refuses."""
        with self._using:
            if self._file.closed:
                return
            if not self._written:
                self._write()
            os.utime(self._file.fileno())

    @property
    def is_there(self) -> bool:
        """Whether the file is still in its folder."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the file system is out of reach for now

    def check(self) -> None:
        """Raises TakenError when another process, on another machine, has taken it over."""
        record = _record(self.path)
        if record and record.get("token") != self._token:
            raise TakenError(
                f"{self.path.parent} is in use by another trainer now, {_who(record)}: two cannot share it; give each "
                "a --state-dir of its own"
            )

    def release(self) -> None:
        """Release the lock; the next holder does not have to watch the file."""
        self._over.set()
        with self._using:
            if not self._file.closed:
                self._give_back()

    def _give_back(self) -> None:
        with self._file, suppress(OSError):  # where the disk refuses, the next holder watches the file
            if (_record(self.path) or {}).get("token") == self._token:
                os.ftruncate(self._file.fileno(), 0)

    def _beat_on(self) -> None:
        while not self._over.wait(_BEAT_S):
            with suppress(OSError):  # the disk refuses: other writes report it
                self.beat()

    def _write(self) -> None:
        record = {"token": self._token, "machine": _machine(), "host": socket.gethostname(), "process": os.getpid()}
        data = json.dumps(record).encode()
        os.ftruncate(self._file.fileno(), 0)
        with _unless_full():  # the lock is held all the same: its holder can be written later
            self._written = os.pwrite(self._file.fileno(), data, 0) == len(data)
            os.fsync(self._file.fileno())


@contextmanager
def _unless_full() -> Iterator[None]:
    """Go on where a disk has no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM_ERRNOS:
            raise


def holder(path: Path) -> str:
    """Return the holder of a lock, in words."""
    return _who(_record(path) or {})


def _who(record: dict[str, object]) -> str:
    return f"process {record.get('process', '?')} on {record.get('host', 'this machine')}"


def _record(path: Path) -> dict[str, object] | None:
    """Return the content of the file, opened anew, since a network file system then checks for changes."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_RECORD_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _beats(path: Path, watch_s: float, wait: Callable[[float], None] = time.sleep) -> bool:
    """Whether the file's time changes while it is watched."""
    before, until_s = _time_of(path), time.monotonic() + watch_s
    while time.monotonic() < until_s:
        wait(min(_POLL_S, watch_s))
        if _time_of(path) != before:
            return True
    return False


def _time_of(path: Path) -> int:
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _machine() -> str:
    """Return the id of the running kernel, whose processes share its locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
