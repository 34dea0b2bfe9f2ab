"""A file is replaced as a whole, or stays as it was."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from swarmflow.files import replacing, write_whole


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
