"""A file is replaced as a whole, or stays as it was."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swarmflow.errors import NoRoomError
from swarmflow.files import read_sealed, replacing, require_room, write_sealed, write_to_user_path, write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "name"
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    for data in (b"one", b"two"):
        write_whole(path, data)
        assert path.read_bytes() == data
    assert sorted(tmp_path.iterdir()) == [path, plain]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode), "as readable as any other file"


def test_a_file_stays_as_it_was_where_its_successor_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "name"
    write_whole(path, b"one")

    def write_in_vain() -> None:
        with replacing(path) as file:
            file.write(b"tw")
            raise ValueError("amid")

    with pytest.raises(ValueError, match="amid"):
        write_in_vain()
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "no" / "name", b"one")


@pytest.mark.parametrize("data", [b"", b"40", b"one\ntwo", b"# no seal\n"])
def test_every_flipped_bit_of_a_sealed_file_is_noticed(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "known"
    write_sealed(path, data)
    assert read_sealed(path) == data
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoilt)
        assert read_sealed(path, set_aside_corrupt=False) is None, bit
    assert read_sealed(path) is None
    assert [found.name for found in tmp_path.iterdir()] == ["known.corrupt"], "it is kept, and not found again"
    assert read_sealed(path) is None


@pytest.mark.parametrize("data", [b"1234", b"one\ntwo", b""])
def test_a_sealed_file_that_is_cut_short_is_never_believed(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "known"
    write_sealed(path, data)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert read_sealed(path, set_aside_corrupt=False) is None, size


def test_a_private_file_is_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with replacing(path, private=True) as file:
        file.write(b"secret")
        [draft] = tmp_path.iterdir()
        assert stat.S_IMODE(draft.stat().st_mode) == 0o400
    write_whole(path, b"another", private=True)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"another", 0o400)


def test_what_a_disk_lacks_is_told_with_its_place(tmp_path: Path) -> None:
    require_room("it", tmp_path, 1)
    with pytest.raises(NoRoomError, match=rf"it needs 1000000\.0 TB in {tmp_path}/new, where .* free: make") as caught:
        require_room("it", tmp_path / "new", 10**18)
    assert caught.value.needed_bytes == 10**18
    assert 0 < caught.value.free_bytes < 10**18


def test_what_a_person_named_keeps_its_kind(tmp_path: Path) -> None:
    real, link, pipe, dangling = (tmp_path / name for name in ("real", "link", "pipe", "dangling"))
    link.symlink_to(real)
    dangling.symlink_to(tmp_path / "new")
    os.mkfifo(pipe)
    for data in (b"one", b"two"):
        for path in (link, dangling):
            write_to_user_path(path, data)
        assert (link.is_symlink(), real.read_bytes()) == (True, data)
        assert (dangling.is_symlink(), (tmp_path / "new").read_bytes()) == (True, data)
        write_to_user_path(pipe, data)
        assert pipe.read_bytes() == data
    assert pipe.is_fifo()
    write_to_user_path(Path(os.devnull), b"one")
    assert Path(os.devnull).is_char_device()


def test_the_output_of_a_process_can_be_named_where_it_is_a_pipe() -> None:
    program = (
        "import threading; from pathlib import Path; from swarmflow.files import write_to_user_path;"
        "write_to_user_path(Path('/dev/stdout'), b'an invite');"
        "[thread.join() for thread in threading.enumerate() if thread.daemon]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"an invite"
