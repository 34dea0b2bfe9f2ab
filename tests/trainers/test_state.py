"""A trainer's state folder: what is corrupt is replaced, what is deleted is made again, who else writes is noticed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.core.durability.memories import Former
from swarmflow.core.protocol.types import Holding, Snapshot
from swarmflow.errors import CheckpointError
from swarmflow.files import write_sealed
from swarmflow.ownership import MARKER
from swarmflow.runtime.transport.identity import load_identity
from tests.runtime.manifests import manifest
from tests.runtime.test_copy_keeper import written
from tests.runtime.test_node import NAME, NO_PROCESSES
from tests.trainers.test_lock import held_elsewhere
from trainers.found import earlier_manifest, newest_version
from trainers.state import StateFolder

ADDRESS = f"/ip4/192.0.2.7/tcp/7/p2p/{NAME}"


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def folder_of(stack: ExitStack, tmp_path: Path) -> StateFolder:
    return StateFolder.open(stack, tmp_path / "trainer", tmp_path / "out")


def again(stack: ExitStack, folder: StateFolder, tmp_path: Path) -> StateFolder:
    """The next life of the trainer."""
    folder.release()
    return folder_of(stack, tmp_path)


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_flipped_byte_in_a_small_file_costs_no_run(
    at: int, stack: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of, folder = manifest(), folder_of(stack, tmp_path)
    folder.keep_manifest(of)
    folder.keep_newest_seen(40)
    folder.keep_trainers((ADDRESS,))
    for name in ("run.json", "known", "trainers"):
        flip(folder.path / name, at)
    folder = again(stack, folder, tmp_path)
    with caplog.at_level(logging.WARNING, "swarmflow"):
        assert folder.manifest() == of
        assert (folder.newest_seen, folder.trainers) == (0, ())
        assert folder.manifest() == of
    assert len(caplog.records) == 3, "each is told of once"
    assert len(list(folder.path.glob("*.corrupt"))) == 3


@pytest.mark.parametrize("beside", [False, True], ids=["its own", "another trainer's"])
def test_a_manifest_that_was_cut_short_is_read_from_its_copy(beside: bool, stack: ExitStack, tmp_path: Path) -> None:
    of = manifest()
    folder = StateFolder.open(stack, None, tmp_path / "out")
    folder.keep_manifest(of)
    path = folder.path / "run.json"
    whole = path.read_bytes()
    for size in (0, 20, len(of.encode()) - 1, len(of.encode()), len(whole) - 1):
        path.write_bytes(whole[:size])
        if beside:
            assert earlier_manifest(folder_of(stack, tmp_path), tmp_path / "out") == of
            stack.pop_all().close()
            continue
        folder.release()
        folder = StateFolder.open(stack, None, tmp_path / "out")
        assert earlier_manifest(folder, tmp_path / "out") == of
    assert len(list(folder.path.glob("*.corrupt*"))) == (0 if beside else 5)


def test_a_manifest_of_another_version_is_said_to_be_one(stack: ExitStack, tmp_path: Path) -> None:
    folder = folder_of(stack, tmp_path)
    for name in ("run.json", "run.json.copy"):
        write_sealed(folder.path / name, b'{"run_id": "a"}')
    with pytest.raises(CheckpointError, match=r"run\.json: the run's manifest does not fit this version"):
        earlier_manifest(folder, tmp_path / "out")
    folder = again(stack, folder, tmp_path)
    write_sealed(folder.path / "run.json.copy", manifest().encode())
    assert earlier_manifest(folder, tmp_path / "out") == manifest()


def test_a_manifest_that_nobody_has_begins_no_other_run(stack: ExitStack, tmp_path: Path) -> None:
    of, folder = manifest(), folder_of(stack, tmp_path)
    folder.keep_manifest(of)
    for name in ("run.json", "run.json.copy"):
        flip(folder.path / name)
    for _ in range(2):
        folder = again(stack, folder, tmp_path)
        with pytest.raises(CheckpointError, match=r"run\.json and its copy are corrupt: bring back one of them"):
            earlier_manifest(folder, tmp_path / "out")
    beside = StateFolder.open(stack, None, tmp_path / "out")
    beside.keep_manifest(of)
    assert earlier_manifest(folder, tmp_path / "out") == of


def test_a_corrupt_stage_of_the_newest_version_is_left_to_whoever_has_it(stack: ExitStack, tmp_path: Path) -> None:
    of, folder = manifest(), folder_of(stack, tmp_path)
    older, newer = (written(of, folder.checkpoints, version) for version in (4, 8))
    flip(newer.path / "stage-1.safetensors")
    for _ in range(2):
        disk = newest_version(folder, tmp_path / "out", of.fingerprint)
        assert (disk.version, disk.roots, disk.newest_seen) == (4, older.roots, 8)
        assert disk.parts == (Holding(Snapshot(8, newer.roots), (0,)),)
        assert disk.holdings[1:] == disk.parts
    assert (newer.path / "stage-1.safetensors.corrupt").is_file()


def test_the_folder_of_another_trainer_is_read_and_not_mended(stack: ExitStack, tmp_path: Path) -> None:
    of, own, other = manifest(), folder_of(stack, tmp_path), StateFolder.open(stack, None, tmp_path / "out")
    spoilt = written(of, other.checkpoints, 8)
    flip(spoilt.path / "stage-1.safetensors")
    other.keep_newest_seen(8)
    flip(other.path / "known")
    disk = newest_version(own, tmp_path / "out", of.fingerprint)
    assert (disk.newest, disk.newest_seen) == (None, 8)
    assert not list((tmp_path / "out").rglob("*.corrupt"))


def test_what_is_no_address_of_a_process_is_not_remembered(stack: ExitStack, tmp_path: Path) -> None:
    """A process that joins says where it is, and what it says would be read at the start of every other one."""
    folder = folder_of(stack, tmp_path)
    folder.keep_trainers((*NO_PROCESSES, ADDRESS))
    assert folder.trainers == again(stack, folder, tmp_path).trainers == (ADDRESS,)
    write_sealed(tmp_path / "trainer" / "trainers", "\n".join((*NO_PROCESSES[:-1], ADDRESS)).encode())
    stack.close()
    assert folder_of(stack, tmp_path).trainers == (ADDRESS,), "an earlier version may have written it"


@pytest.mark.parametrize("what", ["trainer", "trainer/lock"])
def test_a_deleted_folder_is_made_again_with_all_that_belongs_there(
    what: str, stack: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of, folder = manifest(), folder_of(stack, tmp_path)
    name = load_identity(folder.identity).name
    folder.keep_manifest(of)
    folder.keep_port(7400)
    folder.keep_newest_seen(8)
    folder.keep_trainers((ADDRESS,))
    folder.keep_begun()
    assert not folder.beat()
    if what == "trainer":
        shutil.rmtree(tmp_path / what)
    else:
        (tmp_path / what).unlink()
    shutil.rmtree(tmp_path / "out")
    assert folder.beat(), "it had to be made anew"
    assert not folder.beat()
    assert [r.message for r in caplog.records if "was deleted: what belongs there is written again" in r.message]
    with pytest.raises(CheckpointError, match="is in use by another trainer, process"):
        folder_of(stack, tmp_path)
    folder = again(stack, folder, tmp_path)
    assert load_identity(folder.identity).name == name
    assert (folder.manifest(), folder.port, folder.newest_seen, len(folder.trainers)) == (of, 7400, 8, 1)
    assert (folder.path / "begun").exists()
    [link] = (tmp_path / "out" / "state").glob("trainer-*")
    assert link.resolve() == folder.path.resolve()


def test_a_trainer_on_another_machine_that_took_the_folder_is_noticed(stack: ExitStack, tmp_path: Path) -> None:
    folder = folder_of(stack, tmp_path)
    folder.beat()
    held_elsewhere(tmp_path / "trainer" / "lock")
    with pytest.raises(CheckpointError, match="in use by another trainer now, process 12 on node7"):
        folder.beat()


@pytest.mark.parametrize("known_by", ["run.json", "run.json.copy", "identity.key"])
def test_a_folder_without_its_marker_is_known_by_what_nobody_else_writes(
    known_by: str, stack: ExitStack, tmp_path: Path
) -> None:
    folder = folder_of(stack, tmp_path)
    load_identity(folder.identity)
    folder.keep_manifest(manifest())
    folder.keep_newest_seen(3)
    for name in {"run.json", "run.json.copy", "identity.key", "identity.key.copy", MARKER} - {known_by}:
        (folder.path / name).unlink()
    assert again(stack, folder, tmp_path).newest_seen == 3
    folder = StateFolder.open(stack, None, tmp_path / "shared")
    folder.keep_newest_seen(3)
    (tmp_path / "shared" / "state" / MARKER).unlink()
    folder.release()
    assert StateFolder.open(stack, None, tmp_path / "shared").newest_seen == 3, "the folder of a trainer is in it"


def test_a_folder_whose_marker_is_deleted_in_mid_run_stays_its_own(stack: ExitStack, tmp_path: Path) -> None:
    folder = folder_of(stack, tmp_path)
    shutil.rmtree(folder.path)
    (folder.checkpoints / "version-00000008").mkdir(parents=True)
    (folder.checkpoints / "version-00000008" / "manifest.json").write_text("{")
    assert folder.beat(), "a version was written before the marker was there again"


def test_a_folder_without_its_marker_is_still_known_by_every_file_that_a_trainer_writes(
    stack: ExitStack, tmp_path: Path
) -> None:
    """It was deleted in mid-run, and one of these files was written before the marker was there again."""
    folder = folder_of(stack, tmp_path)
    folder.keep_manifest(manifest())
    folder.keep_port(1)
    folder.keep_trainers((ADDRESS,))
    folder.keep_newest_seen(3)
    folder.keep_begun()
    folder.keep_former(Former(3, frozenset(("a",))))
    (folder.path / "known.0123abcd.tmp").touch()
    (folder.path / MARKER).unlink()
    assert again(stack, folder, tmp_path).former.version == 3
