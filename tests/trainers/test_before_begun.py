"""What a trainer's folder lets it begin, go on with, or refuse."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.errors import ConfigError, DataError
from swarmflow.manifest import Manifest
from trainers.options import Options
from trainers.plan import new_manifest
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


def opened(stack: ExitStack, folder: Path, seed: int = 0, text: bytes = b"to be or not to be", state: str = "") -> Run:
    (folder / "RUN.toml").write_text(RUN.format(seed=seed))
    (folder / "text").write_bytes(text * 4)
    state_dir = folder / state if state else None
    return Run.open(stack, Options(folder / "RUN.toml", None, state_dir, None, None, None, "127.0.0.1", None, ()))


def begun(folder: Path) -> Manifest:
    """A run that was opened once, as seed 0."""
    with ExitStack() as stack:
        run = opened(stack, folder)
        assert run.earlier() is None
        assert run.former() is None
        manifest = new_manifest(run.config, run.corpus)
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
            manifest = new_manifest(run.config, run.corpus, former.run_id)
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
            folder.keep_known(2)
    with ExitStack() as stack:
        assert opened(stack, tmp_path, state=state).earlier() == former
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"train\.seed = 1, but the run .* train\.seed = 0"):
        opened(stack, tmp_path, 1, state=state).earlier()
    with ExitStack() as stack, pytest.raises(DataError, match="the data is not that of the run"):
        opened(stack, tmp_path, 0, b"that is the question", state=state).earlier()


def test_a_folder_where_the_run_has_begun_counts_more_than_one_where_it_has_not(tmp_path: Path) -> None:
    """A trainer that found the run changed, and then another one leading it as it was, must not hide that one."""
    former = begun(tmp_path)
    with ExitStack() as stack:
        opened(stack, tmp_path).folder.keep_begun()
        run = opened(stack, tmp_path, state="elsewhere")
        run.folder.keep_manifest(new_manifest(run.config, run.corpus, "other"))
        assert run.earlier() == former
