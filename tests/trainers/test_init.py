"""`swarmflow init`: the text and the model that it finds, the file that it writes, and what a user's mistake gives."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.model_keys import unknown_keys
from swarmflow.config import RunConfig, load
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.errors import DataError, ModelError, SwarmflowError
from tests.compute.models import config_of, stages_of, whole_model
from trainers.check.run import check_run
from trainers.init.command import init
from trainers.init.options import InitOptions
from trainers.init.plan import SCALES, STAGE_BYTES, plan_run, written_path
from trainers.init.sizes import POSITIONS, find_model, size_names
from trainers.init.template import render, toml_value
from trainers.init.text import find_text

TEXT = "the quick brown fox jumps over the lazy dog\n" * 20
SMALL = ("--seq-len", "16")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "fox.txt").write_text(TEXT)
    return folder


def run_init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(init, list(map(str, arguments)), standalone_mode=False)


def refusal(*arguments: str | Path) -> str:
    """The error's text; it must be one line, and nothing may be written."""
    error = run_init(*arguments).exception
    assert isinstance(error, SwarmflowError)
    assert "\n" not in str(error)
    return str(error)


def options(texts: Path, **given: object) -> InitOptions:
    defaults = dict.fromkeys(("data", "out", "name", "steps", "stages", "seq_len", "tokenizer"))
    return InitOptions.parse({**defaults, "folder": str(texts), "model": "llama-3m", "text_field": "text", **given})


def test_the_file_passes_the_check_and_the_next_commands_are_printed(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(texts.parent)
    result = run_init("texts")
    assert result.return_value == 0, result.stderr
    assert "\n    swarmflow trainer texts/RUN.toml\n" in result.stdout
    assert "\n    swarmflow peer\n" in result.stdout
    facts, demands, problems = check_run(texts / "RUN.toml", None)
    assert problems == []
    for name, text in facts:
        steady = text.partition("; free: ")[0]  # what is free on the disk may have changed in between
        assert f"{name:<10} {steady}" in result.stdout
    config = load(texts / "RUN.toml")
    assert (config.run.name, config.data.path, config.model.stages) == ("fox", str(texts / "fox.txt"), 1)
    assert sum(stage.parameters for stage in demands) == find_model("llama-3m", 256).parameters
    assert sorted(path.name for path in texts.iterdir()) == ["RUN.toml", "fox.txt"]


def test_options_go_into_the_file(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "words.jsonl").write_text(f'{{"body": "{TEXT.strip()!r}"}}\n')
    given = ("--data", tmp_path / "words.jsonl", "--text-field", "body", "--name", "my-run", "--steps", "7")
    out = tmp_path / "new" / "other.toml"
    result = run_init(texts, *given, "--stages", "2", *SMALL, "--model", "gpt2-3m", "--out", out)
    assert result.return_value == 0, result.stderr
    assert "2 peers or more" in result.stdout
    config = load(out)
    assert (config.run.name, config.train.steps, config.model.stages, config.data.seq_len) == ("my-run", 7, 2, 16)
    assert (config.data.path, config.data.text_field) == (str(tmp_path / "words.jsonl"), "body")
    assert config.model.config is not None
    assert config.model.config["model_type"] == "gpt2"


def test_what_exists_is_not_overwritten(texts: Path) -> None:
    (texts / "RUN.toml").write_text("mine")
    assert "RUN.toml exists already and stays as it is" in refusal(texts)
    assert (texts / "RUN.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "lama-25m"), "neither a folder nor a known size (did you mean llama-25m?); sizes: llama-3m, "),
        (("--model", "/nowhere/model"), "/nowhere/model: neither a folder nor a known size; sizes: llama-3m"),
        (("--data", "/nowhere/text"), "data path /nowhere/text is not there; give a file, a folder or a glob"),
        (("--name", "a b"), "--name a b: must be 1 to 64 letters"),
        (("--stages", "8"), "--stages 8: llama-3m has 6 blocks, at least one for each"),
        (("--tokenizer", "/nowhere/tokenizer.json"), "tokenizer /nowhere/tokenizer.json is not there"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(texts: Path, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(texts, *arguments)
    assert not (texts / "RUN.toml").exists()


def test_a_folder_that_is_no_model_is_refused(texts: Path, tmp_path: Path) -> None:
    assert "is not a Hugging Face model folder" in refusal(texts, "--model", tmp_path)


def test_problems_of_the_check_are_printed_and_the_file_stays(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    result = run_init(tmp_path)
    assert result.return_value == 1
    assert "short.txt holds 9 tokens: one sequence needs data.seq_len + 1 = 129" in result.stderr
    assert "then: swarmflow check" in result.stderr
    assert "swarmflow trainer" not in result.stdout
    assert (tmp_path / "RUN.toml").exists()


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("a.txt",), "a.txt"),
        (("a.txt", "b.txt", "notes.md"), "*.txt"),
        (("a.jsonl",), "a.jsonl"),
        (("sub/a.txt", "sub/deep/b.txt"), "sub/**/*.txt"),
        (("a.txt", ".hidden/b.txt", "code.py"), "a.txt"),
        (("[odd] name/a.txt", "[odd] name/b.txt"), "*.txt"),
    ],
)
def test_the_text_beside_the_results_is_found_without_them(
    tmp_path: Path, files: tuple[str, ...], expected: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(TEXT)
    folder = tmp_path / "[odd] name" if files[0].startswith("[") else tmp_path
    assert find_text(folder, None, folder) == str(folder / expected)
    assert find_text(Path("elsewhere"), str(folder), folder / "run") == str(folder / expected)
    assert find_text(folder, None, Path("/elsewhere")) == str(folder)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((), "no text in "),
        (("code.py",), "no text in "),
        (("a.txt", "sub/b.txt"), "in several folders"),
        (("b.jsonl", "c.jsonl"), "in several .jsonl files"),
    ],
)
def test_text_that_cannot_be_told_from_the_results_is_asked_for(
    tmp_path: Path, files: tuple[str, ...], expected: str
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(TEXT)
    with pytest.raises(DataError, match=expected) as caught:
        find_text(tmp_path, None, tmp_path)
    assert "--data" in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not there; give the folder with the text"):
        find_text(tmp_path / "nowhere", None, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/run/a.txt", "a.txt"), ("/run/sub/*.txt", "sub/*.txt"), ("/text", "/text"), ("bytes", "bytes")],
)
def test_paths_in_the_folder_of_the_file_are_relative_to_it(path: str, expected: str) -> None:
    assert written_path(path, Path("/run")) == expected


# --- the model and the settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", size_names())
def test_a_size_is_what_its_name_says_and_the_family_knows_all_its_keys(name: str) -> None:
    model = find_model(name, 256)
    number, unit = re.fullmatch(r"\w+-(\d+)([mb])", name).groups()  # type: ignore[union-attr]
    assert model.parameters == pytest.approx(int(number) * {"m": 1e6, "b": 1e9}[unit], rel=0.15)
    assert model.config is not None
    assert unknown_keys(model.config) == []
    complete = model_config(model.config)
    assert max(complete["bos_token_id"], complete["eos_token_id"]) < 256  # else transformers warns
    assert stage_layout(complete, (), 0).parameters == model.parameters


@pytest.mark.parametrize(("model", "stages"), [("llama-3m", 1), ("llama-100m", 1), ("llama-1b", 4)])
def test_a_stage_fits_a_machine_and_small_models_need_one_peer(texts: Path, model: str, stages: int) -> None:
    run = plan_run(options(texts, model=model))
    assert run.stages == stages
    assert run.model.state_bytes / run.stages < STAGE_BYTES


def test_larger_models_have_smaller_learning_rates_and_larger_steps() -> None:
    assert [scale.lr for scale in SCALES] == sorted((scale.lr for scale in SCALES), reverse=True)
    tokens = [scale.microbatches * scale.microbatch_sequences * scale.seq_len for scale in SCALES]
    assert tokens == sorted(tokens)


def test_sequences_may_be_longer_than_a_size_has_positions_by_default(texts: Path) -> None:
    run = plan_run(options(texts, seq_len=4096))
    assert (run.seq_len, run.model.positions) == (4096, 4096)
    assert plan_run(options(texts)).model.positions == POSITIONS


def test_weights_without_their_tokenizer_are_not_trained_on_bytes(texts: Path, tmp_path: Path) -> None:
    config = config_of("llama")
    whole_model(config, stages_of(config, ())).save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match="name its tokenizer with --tokenizer"):
        plan_run(options(texts, model=str(tmp_path / "model")))
    assert plan_run(options(texts, model=str(tmp_path / "model"), tokenizer="bytes")).tokenizer == "bytes"


def test_a_model_folder_with_weights_is_trained_gently_and_within_its_positions(texts: Path, tmp_path: Path) -> None:
    config = config_of("llama")
    whole_model(config, stages_of(config, ())).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    run = plan_run(options(texts, model=str(tmp_path / "model")))
    assert run.model.has_weights
    assert (run.model_path, run.tokenizer) == (str(tmp_path / "model"),) * 2
    assert run.lr < min(scale.lr for scale in SCALES)
    assert run.seq_len == config["max_position_embeddings"]


def test_a_second_run_in_a_folder_gets_an_output_of_its_own(texts: Path) -> None:
    (texts / "out").mkdir()
    assert plan_run(options(texts)).output == "out-2"


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_commented_key_is_a_default_or_an_example_that_can_be_set(texts: Path) -> None:
    text = render(plan_run(options(texts)), "RUN.toml")
    examples = {"attention", "boundary", "cut", "shared_blocks", "export_every", "validation_path", "validate_every"}
    defaults = {field.name: field.default_factory for field in dataclasses.fields(RunConfig)}
    section, seen = "", set()
    for line in text.splitlines():
        section = found[1] if (found := re.fullmatch(r"\[(.*)\]", line)) else section
        if commented := re.match(r"# (\w+ = .*)", line):
            ((key, value),) = tomllib.loads(commented[1]).items()
            seen.add(key)
            if key not in examples:
                owner = load_section(section)
                assert toml_value(owner[key]) == toml_value(value)
    assert examples < seen
    assert set(defaults) - {"timeouts", "finetune"} == set(re.findall(r"^\[(\w+)\]", text, re.MULTILINE))
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE).replace("\nstages = 1 ", "\n# ")
    (texts / "RUN.toml").write_text(uncommented)
    assert load(texts / "RUN.toml").model.cut == (3,)


def load_section(name: str) -> dict[str, object]:
    """The defaults of a section."""
    from swarmflow import config

    owner = {"run": config.RunSection, "model": config.ModelSection, "data": config.DataSection}.get(name)
    owner = owner or {"optimizer": config.OptimizerSection, "train": config.TrainSection}[name]
    return {field.name: field.default for field in dataclasses.fields(owner)}


def test_the_file_names_every_key_but_the_timeouts_and_those_of_datasets(texts: Path) -> None:
    text = render(plan_run(options(texts)), "RUN.toml")
    named = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    every = {key for section in ("run", "model", "data", "optimizer", "train") for key in load_section(section)}
    assert every - named == {
        *("config", "module", "module_config", "collate"),  # it is for text
        *("dataset", "dataset_config", "split", "momentum", "eps", "compression_ratio"),
    }
    assert named.isdisjoint(field.name for field in dataclasses.fields(Timeouts))
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", ['quote " and \\', "tab\tnew\nline", "delete \x7f", "naïve 😀", "ünïcode"])
def test_any_path_survives_the_file(tmp_path: Path, name: str) -> None:
    assert tomllib.loads(f"path = {toml_value(name)}") == {"path": name}
