"""State on disk: written in pieces, found again whole, refused when anything is wrong with it."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swarmflow.compute.checkpoint import (
    Checkpoint,
    checkpoints,
    newest_complete,
    newest_known,
    prune,
    readable,
    remove_unfinished,
)
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.errors import CheckpointError, CorruptError
from tests.disks import no_more_files

ELEMENTS = {"own.params": 1000, "own.exp_avg": 1000, "tied.params": 30}


def _values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(count, generator=generator) for name, count in ELEMENTS.items()}


def _fill(checkpoint: Checkpoint, stage: int, seed: int) -> str:
    writer = checkpoint.writer(stage, ELEMENTS)
    pieces = [
        (name, start, values[start : start + 96])
        for name, values in _values(seed).items()
        for start in range(0, len(values), 96)
    ]
    for name, start, piece in reversed(pieces):
        assert writer.missing() is not None
        writer.write(name, start, memory_of(piece))
    assert writer.missing() is None
    return checkpoint.add(stage, writer)


def _complete(root: Path, version: int, stages: int = 2, run: str = "run") -> Checkpoint:
    checkpoint = Checkpoint.begin(root, version, run, stages, {"step": version})
    for stage in range(stages):
        _fill(checkpoint, stage, version + stage)
    return checkpoint


def test_pieces_in_any_order_make_a_plain_safetensors_file(tmp_path: Path) -> None:
    checkpoint = _complete(tmp_path, 7)
    loaded = load_file(checkpoint.path / "stage-1.safetensors")
    for name, values in _values(8).items():
        assert torch.equal(loaded[name], values)
    assert sorted(p.name for p in checkpoint.path.iterdir()) == [
        "manifest.json",
        "stage-0.safetensors",
        "stage-1.safetensors",
    ]


def test_a_generation_is_found_again_and_read_by_ranges(tmp_path: Path) -> None:
    _complete(tmp_path, 7)
    found = newest_complete(tmp_path, "run")
    assert found is not None
    assert (found.version, found.stages, found.extra) == (7, 2, {"step": 7})
    with found.state(0) as state:
        assert state.elements == ELEMENTS
        for name, values in _values(7).items():
            assert state.read(name, 5, 25) == bytes(memory_of(values[5:25]))
        with pytest.raises(CheckpointError, match="elements"):
            state.read("own.params", 990, 1001)
    assert newest_complete(tmp_path, "another run") is None
    assert newest_complete(tmp_path / "nowhere") is None


def test_an_incomplete_generation_is_passed_over(tmp_path: Path) -> None:
    _complete(tmp_path, 7)
    newer = Checkpoint.begin(tmp_path, 9, "run", 2)
    _fill(newer, 1, 1)
    found = newest_complete(tmp_path)
    assert found is not None
    assert found.version == 7
    again = Checkpoint.begin(tmp_path, 9, "run", 2)
    assert again.has(1)
    assert not again.has(0)
    with pytest.raises(CheckpointError, match="another run"):
        Checkpoint.begin(tmp_path, 9, "other", 2)
    with pytest.raises(CheckpointError, match="no state of stage 0"):
        again.state(0)


@pytest.mark.parametrize("where", [3, 40, 400, -1])
def test_every_flipped_byte_is_noticed(tmp_path: Path, where: int) -> None:
    checkpoint = _complete(tmp_path, 7)
    path = checkpoint.path / "stage-0.safetensors"
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="corrupt"):
        checkpoint.state(0)
    with pytest.raises(CheckpointError, match="corrupt"):
        newest_complete(tmp_path)
    _complete(tmp_path, 5)
    found = newest_complete(tmp_path)
    assert found is not None
    assert found.version == 5


def test_a_file_cut_short_is_not_complete(tmp_path: Path) -> None:
    checkpoint = _complete(tmp_path, 7)
    path = checkpoint.path / "stage-0.safetensors"
    os.truncate(path, path.stat().st_size - 4)
    assert not Checkpoint.open(checkpoint.path).complete
    with pytest.raises(CheckpointError, match="cut short"):
        checkpoint.state(0)


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    path = _complete(tmp_path, 7).path / "manifest.json"
    for text in ("{", "[]", "{}", '{"format": 99}'):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            Checkpoint.open(path.parent)


def test_two_complete_generations_are_kept(tmp_path: Path) -> None:
    for version in (1, 2, 3, 4):
        _complete(tmp_path, version)
    Checkpoint.begin(tmp_path, 5, "run", 2)
    prune(tmp_path, "run")
    assert [checkpoint.version for checkpoint in checkpoints(tmp_path)] == [5, 4, 3]


def test_an_unfinished_or_wrong_copy_leaves_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint.begin(tmp_path, 7, "run", 1)
    writer = checkpoint.writer(0, ELEMENTS)
    writer.write("own.params", 0, bytes(400))
    with pytest.raises(CheckpointError, match=r"own\.params lacks element 100"):
        writer.finish()
    with pytest.raises(ValueError, match="do not lie"):
        writer.write("own.params", 999, bytes(8))
    writer.abandon()
    writer = checkpoint.writer(0, {"own.params": 2})
    writer.write("own.params", 0, bytes(8))
    with pytest.raises(CheckpointError, match="not what was sent"):
        checkpoint.add(0, writer, root="0" * 64)
    assert [p.name for p in checkpoint.path.iterdir()] == ["manifest.json"]


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.begin(tmp_path, 7, "run", 1)
    writer = checkpoint.writer(0, ELEMENTS)

    def full(handle: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("swarmflow.compute.tensorfile.os.pwrite", full)
    with pytest.raises(CheckpointError, match="No space left"):
        writer.write("own.params", 0, bytes(8))
    assert [p.name for p in checkpoint.path.iterdir()] == ["manifest.json"]


def test_a_file_system_that_cannot_sync_a_folder_keeps_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems."""
    sync = os.fsync

    def refuse(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(number)

    monkeypatch.setattr("os.fsync", refuse)
    _complete(tmp_path, 3)
    found = newest_complete(tmp_path, "run")
    assert found is not None
    assert found.version == 3


def test_stages_that_are_added_at_once_are_all_named(tmp_path: Path) -> None:
    stages = 8
    for version in range(1, 11):
        checkpoint = Checkpoint.begin(tmp_path, version, "run", stages)
        with ThreadPoolExecutor(stages) as pool:
            list(pool.map(_fill, [checkpoint] * stages, range(stages), range(stages)))
        assert Checkpoint.open(checkpoint.path).complete


def test_a_copy_goes_on_with_what_is_of_the_same_content_and_nothing_else(tmp_path: Path) -> None:
    source = _complete(tmp_path / "source", 7)
    roots = source.roots
    copy = Checkpoint.begin_copy(tmp_path / "copy", 7, "run", 2, roots)
    _fill(copy, 1, 8)
    assert (copy.stages_held, copy.roots, copy.complete) == ((1,), roots, False)
    assert Checkpoint.begin_copy(tmp_path / "copy", 7, "run", 2, roots).stages_held == (1,)
    other = ("0" * 64, roots[1])
    anew = Checkpoint.begin_copy(tmp_path / "copy", 7, "run", 2, other)
    assert (anew.stages_held, anew.roots) == ((), other), "stages of two histories do not fit together"
    written = Checkpoint.begin_copy(tmp_path / "source", 7, "run", 2, ())
    assert written.stages_held == (), "what its content was to be is not known: it is written anew"
    with pytest.raises(CheckpointError, match="another run"):
        Checkpoint.begin_copy(tmp_path / "copy", 7, "other", 2, roots)


def test_a_copy_in_part_tells_that_the_version_was_whole_once(tmp_path: Path) -> None:
    source = _complete(tmp_path / "source", 7)
    Checkpoint.begin_copy(tmp_path / "copy", 7, "run", 2, source.roots)
    assert newest_complete(tmp_path / "copy", "run") is None
    assert (newest_known(tmp_path / "copy", "run"), newest_known(tmp_path / "copy", "other")) == (7, 0)
    _fill(Checkpoint.begin(tmp_path / "unfinished", 9, "run", 2), 0, 9)
    assert newest_known(tmp_path / "unfinished", "run") == 0, "it never was"


def test_a_stage_that_is_of_no_use_is_set_aside_and_can_be_copied_again(tmp_path: Path) -> None:
    source = _complete(tmp_path / "source", 7)
    copy = Checkpoint.begin_copy(tmp_path / "copy", 7, "run", 2, source.roots)
    for stage in range(2):
        _fill(copy, stage, 7 + stage)
    for number in ("", ".2"):
        (copy.path / "stage-1.safetensors").write_bytes(b"garbage")
        copy.set_aside(1, "it is corrupt")
        assert copy.stages_held == Checkpoint.open(copy.path).stages_held == (0,)
        assert not (copy.path / "stage-1.safetensors").exists()
        assert (copy.path / f"stage-1.safetensors.corrupt{number}").read_bytes() == b"garbage"
        copy = Checkpoint.begin_copy(tmp_path / "copy", 7, "run", 2, source.roots)
        assert copy.stages_held == (0,)
        _fill(copy, 1, 8)
        assert copy.complete
    copy.remove()
    left = sorted(path.name for path in copy.path.iterdir())
    assert left == ["stage-1.safetensors.corrupt", "stage-1.safetensors.corrupt.2"], "for who wants to look into it"


def test_a_corrupt_version_is_mended_by_its_owner_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (5, 7):
        _complete(tmp_path, version)
    roots = Checkpoint.open(tmp_path / "version-00000007").roots
    path = tmp_path / "version-00000007" / "stage-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert newest_complete(tmp_path, "run") is not None
    assert path.exists(), "not its owner: nothing is touched"
    caplog.clear()
    for _ in range(2):
        found = newest_complete(tmp_path, "run", mend=True)
        assert found is not None
        assert found.version == 5
    assert [record.message for record in caplog.records if "corrupt" in record.message] == [
        f"{path} is corrupt: its root is not the one in the manifest; it is kept as stage-1.safetensors.corrupt"
    ]
    half = Checkpoint.open(path.parent)
    assert (half.stages_held, half.roots) == ((0,), roots), "what it was is known, so that it can be fetched"
    assert newest_known(tmp_path, "run") == 7


def test_a_corrupt_manifest_stops_neither_writing_nor_pruning(tmp_path: Path) -> None:
    for version in (3, 4, 5, 7):
        _complete(tmp_path, version)
    (tmp_path / "version-00000007" / "manifest.json").write_text("{")
    prune(tmp_path, "run")
    assert [checkpoint.version for checkpoint in checkpoints(tmp_path)] == [5, 4]
    again = Checkpoint.begin_copy(tmp_path, 7, "run", 2, ())
    assert again.stages_held == ()
    assert (tmp_path / "version-00000007.corrupt" / "stage-0.safetensors").is_file()


def test_what_was_begun_and_never_whole_makes_room(tmp_path: Path) -> None:
    _complete(tmp_path, 3)
    begun = Checkpoint.begin(tmp_path, 5, "run", 2)
    _fill(begun, 0, 1)
    copied = Checkpoint.begin_copy(tmp_path, 6, "run", 2, ("a", "b"))
    remove_unfinished(tmp_path, "run", 7)
    assert [checkpoint.version for checkpoint in checkpoints(tmp_path)] == [copied.version, 3]


def test_what_others_still_copy_is_spared(tmp_path: Path) -> None:
    for version in (1, 2, 3, 4):
        _complete(tmp_path, version)
    prune(tmp_path, "run", spare={2})
    assert [checkpoint.version for checkpoint in checkpoints(tmp_path)] == [4, 3, 2]


def test_of_another_run_in_the_same_folder_nothing_is_deleted_or_counted(tmp_path: Path) -> None:
    for version, run in ((1, "run"), (2, "run"), (3, "run"), (4, "other"), (90, "other"), (100, "other")):
        _complete(tmp_path, version, run=run)
    Checkpoint.begin(tmp_path, 2000, "other", 2)
    remove_unfinished(tmp_path, "run", 3000)
    prune(tmp_path, "run")
    assert [found.version for found in readable(tmp_path, "run")] == [3, 2], "its newest two stay, older or not"
    assert [found.version for found in readable(tmp_path, "other")] == [2000, 100, 90, 4]


def test_one_broken_manifest_hides_no_other(tmp_path: Path) -> None:
    (_complete(tmp_path, 7).path / "manifest.json").write_text("{")
    _complete(tmp_path, 5)
    assert [checkpoint.version for checkpoint in readable(tmp_path, "run")] == [5]


def test_a_file_that_is_closed_amid_reads_never_gives_another_files_bytes(tmp_path: Path) -> None:
    checkpoint = _complete(tmp_path, 7)
    wanted = bytes(memory_of(_values(7)["own.params"]))
    for _ in range(20):
        state = checkpoint.state(0)
        with ThreadPoolExecutor(4) as pool, ExitStack() as others:
            reads = [pool.submit(state.read, "own.params", 0, 1000) for _ in range(8)]
            state.close()
            for _ in range(4):
                others.enter_context(checkpoint.state(1))
        for read in reads:
            refused = read.exception()
            assert read.result() == wanted if refused is None else isinstance(refused, CheckpointError), refused
        with pytest.raises(CheckpointError, match="was closed"):
            state.read("own.params", 0, 1000)


def test_what_cannot_be_read_now_stays_as_it_is_and_is_read_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An intact version was once set aside as corrupt because too many files were open."""
    checkpoint = _complete(tmp_path, 7)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with no_more_files():
        with pytest.raises(CheckpointError, match=r"cannot be read now: Too many open files") as refused:
            checkpoint.state(0)
        assert not isinstance(refused.value, CorruptError)
        with pytest.raises(CheckpointError, match="cannot be read now"):
            newest_complete(tmp_path, "run", mend=True)
        with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read now"):
            Checkpoint.begin_copy(tmp_path, 7, "run", 2, checkpoint.roots)
        with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read now"):
            Checkpoint.begin_copy(tmp_path, 7, "run", 2, ())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    found = newest_complete(tmp_path, "run", mend=True)
    assert found is not None
    assert found.stages_held == (0, 1)
    (checkpoint.path / "stage-1.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"stage-1\.safetensors is missing"):
        newest_complete(tmp_path, "run", mend=True)
    assert Checkpoint.open(checkpoint.path).stages_held == (0,)
    assert "is missing" in caplog.records[-1].message


def test_a_file_that_is_given_up_amid_writes_never_writes_into_another(tmp_path: Path) -> None:
    checkpoint = Checkpoint.begin(tmp_path, 7, "run", 1)
    (tmp_path / "precious").write_bytes(b"precious")
    data = bytes(4 * ELEMENTS["own.params"])
    for _ in range(50):
        writer = checkpoint.writer(0, ELEMENTS)
        with ThreadPoolExecutor(4) as pool, ExitStack() as others:
            writes = [pool.submit(writer.write, "own.params", 0, data) for _ in range(16)]
            writer.abandon()
            for _ in range(4):
                others.enter_context((tmp_path / "precious").open("r+b"))
        for write in writes:
            refused = write.exception()
            assert refused is None or "it was given up" in str(refused), refused
        assert (tmp_path / "precious").read_bytes() == b"precious"
    with pytest.raises(CheckpointError, match="it was given up"):
        writer.write("own.params", 0, data)
    assert [path.name for path in checkpoint.path.iterdir()] == ["manifest.json"]
