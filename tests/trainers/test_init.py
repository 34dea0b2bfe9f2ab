"""`swarmflow init`: a RUN.toml for a folder of text, which passes the check, and whose mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.config import load
from swarmflow.errors import ConfigError, DataError, ForeignFileError, ModelError, SwarmflowError
from tests.swarm.reference import save_model
from trainers.init.options import InitOptions
from trainers.init.run import main

OPTIONS = dict.fromkeys(("out", "data", "name", "steps", "stages", "seq_len", "tokenizer"))


def options(folder: Path, **changes: object) -> InitOptions:
    return InitOptions.parse({"folder": str(folder), "model": "llama-3m", "text_field": "text", **OPTIONS, **changes})


def text_in(folder: Path, *names: str) -> Path:
    for name in names or ("tales.txt",):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("once upon a time there was a swarm\n" * 400)
    return folder


def test_it_writes_a_file_that_passes_the_check_and_says_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(text_in(tmp_path), steps=7)) == 0
    out = capsys.readouterr().out
    assert f"swarmflow trainer {tmp_path / 'RUN.toml'}" in out
    assert "swarmflow peer" in out
    config = load(tmp_path / "RUN.toml")
    assert (config.run.name, config.train.steps, config.data.tokenizer) == ("tales", 7, "bytes")
    assert config.run.output == tmp_path / "out"
    assert "# weight_decay = " in (tmp_path / "RUN.toml").read_text(), "the other keys are there with their defaults"


def test_the_results_of_the_run_are_no_text_of_it(tmp_path: Path) -> None:
    assert main(options(text_in(tmp_path, "a.txt", "b.txt", "notes.md"))) == 0
    assert str(load(tmp_path / "RUN.toml").data.path).endswith("*.txt")
    mixed = text_in(tmp_path / "mixed", "a/x.txt", "b/x.txt")
    with pytest.raises(DataError, match="several folders"):
        main(options(mixed))
    assert not (mixed / "RUN.toml").exists()


def test_a_folder_with_weights_is_trained_from_them(tmp_path: Path) -> None:
    save_model("llama", tmp_path / "model")
    changes = {"model": str(tmp_path / "model"), "data": str(text_in(tmp_path / "text")), "seq_len": 32}
    assert main(options(tmp_path, **changes)) == 0
    config = load(tmp_path / "RUN.toml")
    assert config.model.path == tmp_path / "model"
    assert config.optimizer.lr < 1e-4


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"model": "llama-25n"}, ModelError, "did you mean"),
        ({"data": "nothing-here"}, DataError, "nothing-here"),
        ({"name": "two words"}, ConfigError, "--name two words"),
        ({"tokenizer": "missing/tokenizer.json"}, SwarmflowError, "tokenizer"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    changes: dict[str, object], error: type[SwarmflowError], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        main(options(text_in(tmp_path), **changes))
    assert not (tmp_path / "RUN.toml").exists()


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (text_in(tmp_path) / "RUN.toml").write_text("mine")
    with pytest.raises(ForeignFileError, match="exists already"):
        options(tmp_path)
    assert (tmp_path / "RUN.toml").read_text() == "mine"


def test_a_folder_without_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text in"):
        main(options(tmp_path))
