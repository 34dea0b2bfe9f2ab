"""A folder that two machines share is one trainer's: who comes later is refused, who lost it notices."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from swarmflow.errors import CheckpointError
from tests.disks import small_disk
from trainers.lock import FolderLock, holder
from trainers.state import StateFolder

WATCH_S = 2.0


def held_elsewhere(path: Path) -> None:
    """As a trainer on another machine leaves the file, over a file system that does not share locks."""
    path.write_text(json.dumps({"token": "theirs", "machine": "another", "host": "node7", "process": 12}))


@contextmanager
def beating(path: Path) -> Iterator[None]:
    """As that trainer goes on."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.05):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_two_processes_of_one_machine_do_not_share_a_folder(tmp_path: Path) -> None:
    lock = FolderLock.acquire(tmp_path / "lock")
    assert lock is not None
    assert FolderLock.acquire(tmp_path / "lock") is None
    assert f"process {os.getpid()} on " in holder(tmp_path / "lock")
    lock.check()
    lock.release()
    assert (tmp_path / "lock").read_bytes() == b""
    again = FolderLock.acquire(tmp_path / "lock")
    assert again is not None
    again.release()


def test_who_comes_from_another_machine_is_refused_while_the_holder_lives(tmp_path: Path) -> None:
    held_elsewhere(tmp_path / "lock")
    with beating(tmp_path / "lock"):
        assert FolderLock.acquire(tmp_path / "lock", 60.0) is None
    assert holder(tmp_path / "lock") == "process 12 on node7"
    taken = FolderLock.acquire(tmp_path / "lock", 0.1)
    assert taken is not None, "it died"
    taken.release()


def test_who_is_not_given_way_to_notices_it(tmp_path: Path) -> None:
    lock = FolderLock.acquire(tmp_path / "lock")
    assert lock is not None
    held_elsewhere(tmp_path / "lock")
    with pytest.raises(CheckpointError, match="in use by another trainer now, process 12 on node7: two cannot"):
        lock.check()
    lock.release()
    assert holder(tmp_path / "lock") == "process 12 on node7"


def test_a_lock_that_was_deleted_is_missed(tmp_path: Path) -> None:
    lock = FolderLock.acquire(tmp_path / "lock")
    assert lock is not None
    assert lock.is_there
    (tmp_path / "lock").unlink()
    assert not lock.is_there
    lock.check()
    (tmp_path / "lock").write_bytes(b"")
    assert not lock.is_there, "another file of that name"
    lock.release()


def test_a_full_disk_keeps_nobody_from_starting(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        (disk.path / "lock").touch()
        disk.fill()
        lock = FolderLock.acquire(disk.path / "lock")
        assert lock is not None
        lock.check()
        assert FolderLock.acquire(disk.path / "lock") is None
        disk.empty()
        lock.beat()
        assert f"process {os.getpid()} on " in holder(disk.path / "lock")
        lock.release()


def test_a_holder_beats_from_the_beginning_whatever_else_it_does(tmp_path: Path) -> None:
    lock = FolderLock.acquire(tmp_path / "lock")
    assert lock is not None
    os.utime(tmp_path / "lock", ns=(1, 1))
    until_s = time.monotonic() + WATCH_S + 3.0
    while (tmp_path / "lock").stat().st_mtime_ns == 1 and time.monotonic() < until_s:
        time.sleep(0.02)
    assert (tmp_path / "lock").stat().st_mtime_ns != 1
    lock.release()
    lock.beat()
    assert (tmp_path / "lock").read_bytes() == b"", "who has given it back shows no life"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_to_be_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: IO[bytes], operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("trainers.lock.fcntl.flock", refuse)
    with pytest.raises(CheckpointError, match=r"lock cannot be locked \(.*\): where its file system has no locks"):
        FolderLock.acquire(tmp_path / "lock")
    with ExitStack() as stack, pytest.raises(CheckpointError, match="give an output and a --state-dir on another one"):
        StateFolder.open(stack, None, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "state").glob("trainer-*")] == ["trainer-0"]
