"""What a trainer finds in its way as it begins: nothing of it is touched, and one line says what it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.errors import CheckpointError, ForeignFileError
from swarmflow.files import write_sealed
from swarmflow.runtime.operations.export_command import export_folder, export_run
from tests.owners import invite_of
from tests.runtime.manifests import manifest
from tests.runtime.test_copy_keeper import written
from trainers.exports import check_exports, prune_exports
from trainers.options import TrainerOptions
from trainers.run import Run

NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
RUN_TOML = """
[model]
config = { model_type = "gpt2", vocab_size = 256 }
stages = 2
[data]
path = "text"
seq_len = 8
"""


def opened(folder: Path, **options: object) -> None:
    """As `swarmflow trainer RUN.toml` begins, before torch is loaded."""
    (folder / "RUN.toml").write_text(RUN_TOML)
    (folder / "text").write_bytes(bytes(range(256)))
    given = {
        "run_toml": folder / "RUN.toml",
        "invite": None,
        "state_dir": None,
        "invite_file": None,
        "json_file": None,
        "metrics_port": None,
        "metrics_host": "",
        "metrics_token": None,
        "page_port": None,
        "page_host": "",
        "listen": None,
        "announce": (),
    }
    with ExitStack() as stack:
        Run.open(stack, TrainerOptions.parse({**given, **options}))


IN_THE_WAY: dict[str, tuple[str, Callable[[Path], dict[str, object]]]] = {
    "json": ("notes", lambda folder: {"json_file": folder / "notes"}),
    "invite file": ("notes", lambda folder: {"invite_file": folder / "notes"}),
    "state folder": ("home/notes", lambda folder: {"state_dir": folder / "home"}),
    "its own name": ("home/tokenizer/tokenizer.json", lambda folder: {"state_dir": folder / "home"}),
    "a service's script": ("home/run", lambda folder: {"state_dir": folder / "home"}),
    "output": ("out/state/invite.txt", lambda folder: {}),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_in_the_way_is_refused_and_stays(what: str, tmp_path: Path) -> None:
    name, options = IN_THE_WAY[what]
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("years of work")
    with pytest.raises(ForeignFileError, match=name.split("/")[-1].split(".")[0]) as caught:
        opened(tmp_path, **options(tmp_path))
    assert "\n" not in str(caught.value)
    assert file.read_text() == "years of work"
    assert [path for path in file.parent.iterdir() if path.name not in (file.name, "RUN.toml", "text", "out")] == []


def test_its_own_files_are_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "invite").write_text(f"{invite_of(f'/ip4/192.0.2.7/tcp/7000/p2p/{NAME}')}\n")
    (tmp_path / "log").write_text('{"step": 0, "loss": 1.0, "tokens": 8, "version": 1}\n{"step": 1, "lo')
    options = {"invite_file": tmp_path / "invite", "json_file": tmp_path / "log", "state_dir": tmp_path / "state"}
    for _ in range(2):
        opened(tmp_path, **options)
    assert (tmp_path / "log").read_text().endswith('"version": 1}\n'), "what a crash left half-written is cut off"


def test_export_touches_no_folder_that_is_somebody_elses(tmp_path: Path) -> None:
    of, trainer, home = manifest(), tmp_path / "trainer", tmp_path / "home"
    written(of, trainer / "checkpoints", 4)
    write_sealed(trainer / "run.json", of.encode())
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(ForeignFileError, match="holds something that swarmflow did not write"):
        export_folder(trainer, home)
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    for out in (tmp_path / "new", tmp_path / "new", tmp_path / "link"):
        assert export_folder(trainer, out) == 4
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "config.json").is_file()
    (tmp_path / "new" / "README.md").write_text("about this model")
    with pytest.raises(ForeignFileError, match=r"README\.md was added or changed"):
        export_folder(trainer, tmp_path / "new")
    other = manifest(run_id="other")
    with pytest.raises(ForeignFileError, match="belongs to another run"):
        check_exports(_as_final(tmp_path / "new"), other.run_id)


@pytest.mark.asyncio
async def test_where_nothing_can_be_written_nobody_is_asked_for_anything(tmp_path: Path) -> None:
    of, trainer = manifest(), tmp_path / "trainer"
    written(of, trainer / "checkpoints", 4)
    write_sealed(trainer / "run.json", of.encode())
    (tmp_path / "file").write_text("x")
    invite = invite_of(f"/ip4/127.0.0.1/tcp/9/p2p/{NAME}")
    for out, error, line in (
        (tmp_path / "file" / "out", CheckpointError, "file/out cannot be written: Not a directory"),
        (tmp_path / ("a" * 256), ForeignFileError, "cannot be read: File name too long"),
    ):
        with pytest.raises(error, match=line):
            await export_run(invite, out)
        with pytest.raises(error, match=line):
            export_folder(trainer, out)


def _as_final(folder: Path) -> Path:
    (folder / "README.md").unlink()
    output = folder.with_name("out")
    output.mkdir()
    folder.rename(output / "final")
    return output


def test_the_newest_exports_stay_and_so_does_what_is_not_the_runs(tmp_path: Path) -> None:
    of, trainer, output = manifest(), tmp_path / "trainer", tmp_path / "out"
    written(of, trainer / "checkpoints", 4)
    write_sealed(trainer / "run.json", of.encode())
    for name in ("step-4", "step-8", "step-12", "step-100", "final", "step-best"):
        export_folder(trainer, output / name)
    (output / "step-8" / "README.md").write_text("about this model")
    (output / "step-2").mkdir()
    (output / "step-2" / "mine").write_text("years of work")
    prune_exports(output, of.run_id, keep=2)
    assert sorted(path.name for path in output.iterdir()) == [
        "final",
        "step-100",
        "step-12",
        "step-2",
        "step-8",
        "step-best",
    ]
    assert (output / "step-8" / "README.md").is_file()
    assert (output / "step-2" / "mine").is_file()
    with pytest.raises(ForeignFileError, match="step-2"):
        check_exports(output, of.run_id)
