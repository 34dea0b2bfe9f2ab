"""What a trainer's folder lets it begin, go on with, or refuse."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.errors import ConfigError, DataError, ForeignFileError
from swarmflow.manifest import Manifest
from tests.owners import invite_of
from tests.runtime.test_copy_keeper import written
from trainers.options import TrainerOptions
from trainers.plan import new_manifest
from trainers.process import main, take_up
from trainers.run import Run

RUN = """
[run]
output = "out"
[model]
config = {{ model_type = "llama", hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2, vocab_size = 256, \
num_attention_heads = 2, max_position_embeddings = 32 }}
cut = [1]
[data]
path = "text"
seq_len = 16
[train]
seed = {seed}
"""


def opened(
    stack: ExitStack,
    folder: Path,
    seed: int = 0,
    text: bytes = b"to be or not to be",
    state: str = "",
    run_toml: str | None = None,
) -> Run:
    (folder / "RUN.toml").write_text(RUN.format(seed=seed) if run_toml is None else run_toml)
    (folder / "text").write_bytes(text * 4)
    state_dir = folder / state if state else None
    return Run.open(
        stack,
        TrainerOptions(
            run_toml=folder / "RUN.toml",
            invite=None,
            state_dir=state_dir,
            invite_file=None,
            json_file=None,
            metrics_port=None,
            metrics_host="127.0.0.1",
            metrics_token=None,
            page_port=None,
            page_host="127.0.0.1",
            listen=None,
            announce=(),
        ),
    )


def begun(folder: Path) -> Manifest:
    """A run that was opened once, as seed 0."""
    with ExitStack() as stack:
        run = opened(stack, folder)
        assert run.earlier() is None
        assert run.former() is None
        manifest = new_manifest(run.config, run.corpus, run.authority.own_run())
        run.folder.keep_manifest(manifest)
        assert run.earlier() == manifest
        return manifest


def test_before_the_first_step_a_corrected_run_takes_the_place_of_the_former(tmp_path: Path) -> None:
    former = begun(tmp_path)
    for seed, text in ((1, b"to be or not to be"), (0, b"that is the question")):
        with ExitStack() as stack:
            run = opened(stack, tmp_path, seed, text)
            assert run.earlier() is None
            assert run.former() == former
            manifest = new_manifest(run.config, run.corpus, run.authority.own_run())
            assert manifest.run_id == former.run_id  # the invite stays good
            assert manifest.fingerprint != former.fingerprint  # who had joined has to join again


@pytest.mark.parametrize("begins", ["keep_begun", "a version on disk"])
@pytest.mark.parametrize("state", ["", "elsewhere"], ids=["the same folder", "another trainer's folder"])
def test_after_it_what_the_run_is_stays(begins: str, state: str, tmp_path: Path) -> None:
    former = begun(tmp_path)
    with ExitStack() as stack:
        folder = opened(stack, tmp_path).folder
        if begins == "keep_begun":
            folder.keep_begun()
        else:
            folder.keep_newest_seen(2)
    with ExitStack() as stack:
        assert opened(stack, tmp_path, state=state).earlier() == former
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"train\.seed = 1, but the run .* train\.seed = 0"):
        opened(stack, tmp_path, 1, state=state).earlier()
    with ExitStack() as stack, pytest.raises(DataError, match="the data is not that of the run"):
        opened(stack, tmp_path, 0, b"that is the question", state=state).earlier()


def test_who_was_killed_before_it_noted_its_first_version_goes_on_from_that_all_the_same(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        assert not run.may_go_on_alone
        written(manifest, run.folder.checkpoints, 4)
        assert run.folder.newest_seen == 0
        assert run.may_go_on_alone


def test_a_folder_where_the_run_has_begun_counts_more_than_one_where_it_has_not(tmp_path: Path) -> None:
    """A trainer that found the run changed, and then another one leading it as it was, must not hide that one."""
    former = begun(tmp_path)
    with ExitStack() as stack:
        opened(stack, tmp_path).folder.keep_begun()
        run = opened(stack, tmp_path, state="elsewhere")
        run.folder.keep_manifest(new_manifest(run.config, run.corpus, "other"))
        assert run.earlier() == former


NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
INVITE = invite_of(f"/ip4/127.0.0.1/tcp/9/p2p/{NAME}")


@pytest.mark.parametrize("holds", ["its own folder", "a folder beside"])
@pytest.mark.parametrize("begins", ["begun", "known", "checkpoints"])
def test_a_folder_that_holds_a_run_joins_no_other_one(holds: str, begins: str, tmp_path: Path) -> None:
    """It may have been begun from the same RUN.toml: then nothing but the id tells them apart."""
    if (holds, begins) == ("a folder beside", "checkpoints"):
        begins = "begun"  # those of another trainer are not this one's to delete
    own = begun(tmp_path)
    with ExitStack() as stack:
        folder = opened(stack, tmp_path).folder
        if begins == "begun":
            folder.keep_begun()
        elif begins == "known":
            folder.keep_newest_seen(2)
        else:
            written(own, folder.checkpoints, 2)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("run.json*")}
    theirs = replace(own, run_id="theirs")
    with ExitStack() as stack:
        run = opened(stack, tmp_path, state="" if holds == "its own folder" else "elsewhere")
        run.options = replace(run.options, invite=INVITE)
        with pytest.raises(ConfigError, match=rf"trainer-0 holds the run .*{own.run_id}.*another \[run\] output"):
            main(run)
        with pytest.raises(ConfigError, match="trainer-0 holds the run"):
            run.check_joins(theirs)
        run.check_joins(own)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("run.json*")} == before


def test_versions_of_another_run_whose_manifest_is_lost_are_not_built_on(tmp_path: Path) -> None:
    own = begun(tmp_path)
    with ExitStack() as stack:
        written(own, opened(stack, tmp_path).folder.checkpoints, 2)
    for path in (tmp_path / "out").rglob("run.json*"):
        path.unlink()
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        run.may_join(INVITE)
        run.check_joins(own)
        with pytest.raises(ConfigError, match="trainer-0 holds versions of another run"):
            run.check_joins(replace(own, run_id="theirs"))


@pytest.mark.asyncio
async def test_a_run_that_has_not_begun_yields_to_the_one_that_is_joined(tmp_path: Path) -> None:
    theirs = replace(begun(tmp_path), run_id="theirs")
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        run.may_join(INVITE)
        run.check_joins(theirs)
        await take_up(run, theirs)
        assert run.earlier() == theirs


@pytest.mark.asyncio
async def test_a_run_whose_exports_have_no_place_is_not_taken_up(tmp_path: Path) -> None:
    own = begun(tmp_path)
    (tmp_path / "out" / "final").mkdir()
    (tmp_path / "out" / "final" / "thesis.tex").write_text("years of work")
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        with pytest.raises(ForeignFileError, match="final holds something"):
            await take_up(run, replace(own, run_id="theirs"))
        assert run.earlier() == own


def test_a_trainer_can_be_told_to_go_while_it_reads_its_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They may have many GB; here a file beside them does not come to its end."""
    endless = tmp_path / "out" / "state" / "trainer-0f" / "former"
    left = "left before it had joined"

    def tell() -> None:
        with endless.open("wb"):  # waits for who reads
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(500):
                if left in caplog.text:
                    break
                time.sleep(0.02)
            listed.append(left in caplog.text)

    listed: list[bool] = []
    telling = threading.Thread(target=tell, daemon=True)
    with ExitStack() as stack, caplog.at_level(logging.INFO, "swarmflow"):
        run = opened(stack, tmp_path)
        endless.parent.mkdir()
        os.mkfifo(endless)
        telling.start()
        assert main(run) == 0
    telling.join(20)
    assert listed == [True]
