"""RUN.toml: what is read, what is refused and how the refusal reads, what a resume compares, what the docs list."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from swarmflow import config_check
from swarmflow.config import RunConfig, fingerprint, first_difference, load
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.errors import ConfigError

EVERYTHING = """
[run]
name = "shakespeare"
output = "out"
[model]
path = "init"
stages = 3
[data]
path = "shakespeare.txt"
tokenizer = "bytes"
seq_len = 128
order = "sequential"
[optimizer]
name = "adamw"
lr = 3e-4
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
schedule = "constant"
warmup_steps = 0
clip_grad_norm = 1.0
[train]
steps = 100
microbatches = 8
microbatch_sequences = 4
precision = "fp32"
accumulate = "fp32"
codec = "blockwise8"
router = "shortest"
seed = 0
checkpoint_every = 50
"""
SHORT = '[model]\npath = "init"\nstages = 3\n[data]\npath = "shakespeare.txt"\n'


def loaded(folder: Path, text: str) -> RunConfig:
    path = folder / "RUN.toml"
    path.write_text(text)
    return load(path)


def refusal(folder: Path, text: str) -> str:
    """The error's text; each must be one line."""
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_documented_listing(tmp_path: Path) -> None:
    short = loaded(tmp_path, SHORT)
    full = loaded(tmp_path, EVERYTHING)
    assert dataclasses.replace(full, run=dataclasses.replace(full.run, name="run")) == short
    assert full.run.name == "shakespeare"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "words.d").mkdir()
    config = loaded(
        tmp_path,
        '[run]\noutput = "../out"\n[model]\npath = "init"\nstages = 1\n'
        '[data]\npath = "texts/*.txt"\ntokenizer = "words.d"\nvalidation_path = "/held/out.txt"\n',
    )
    assert config.run.output == tmp_path / ".." / "out"
    assert config.model.path == tmp_path / "init"
    assert config.data.path == str(tmp_path / "texts" / "*.txt")
    assert config.data.tokenizer == str(tmp_path / "words.d")
    assert config.data.validation_path == "/held/out.txt"


@pytest.mark.parametrize(
    ("given", "expected"), [("bytes", "bytes"), ("org/name", "org/name"), ("t.json", "{}/t.json"), ("./t", "{}/t")]
)
def test_a_tokenizer_is_a_path_only_where_it_looks_like_one(tmp_path: Path, given: str, expected: str) -> None:
    config = loaded(tmp_path, f'{SHORT}tokenizer = "{given}"\n')
    assert config.data.tokenizer == expected.format(tmp_path)


def test_model_from_a_table_and_a_cut(tmp_path: Path) -> None:
    text = '[model]\nconfig = { model_type = "llama", hidden_size = 256 }\ncut = [2, 4]\n[data]\ndataset = "org/set"\n'
    config = loaded(tmp_path, text)
    assert config.model.config == {"model_type": "llama", "hidden_size": 256}
    assert (config.model.cut, config.model.stages) == ((2, 4), 3)
    assert (config.data.dataset, config.data.path, config.data.split) == ("org/set", None, "train")


@pytest.mark.parametrize(
    ("section", "line", "expected"),
    [
        ("run", 'name = "a b"', 'run.name = "a b": must be 1 to 64 letters'),
        ("run", 'output = ""', 'run.output = "": must be a string that is not empty'),
        ("model", "stages = 0", "model.stages = 0: must be an integer, at least 1"),
        ("model", "stages = true", "model.stages = true: must be an integer"),
        ("model", "stages = 3.0", "model.stages = 3.0: must be an integer"),
        ("model", "cut = [2, 2]", "model.cut = [2, 2]: must be a list of positive block numbers"),
        ("model", "cut = [0]", "model.cut = [0]: must be a list of positive"),
        ("model", "cut = 2", "model.cut = 2: must be a list of positive"),
        ("model", "dropout = 0.1", "model.dropout = 0.1: must be true or false"),
        ("model", 'boundary = "maxout"', 'model.boundary = "maxout": must be "bottleneck:K", K the width that travels'),
        ("model", 'boundary = "bottleneck:0"', 'or "maxout:K", K the factor of the reduction'),
        ("model", "boundary = 64", "model.boundary = 64: must be"),
        ("model", 'attention = "flash"', 'model.attention = "flash": must be "sdpa" or "eager"'),
        (
            "model",
            "config = { hidden_size = 1 }",
            "model.config = {'hidden_size': 1}: must be a table with a model_type",
        ),
        ("model", 'config = { model_type = "x", f = nan }', "must be a table of strings, finite numbers"),
        ("model", 'config = { model_type = "x", f = 1979-05-27 }', "must be a table of strings, finite numbers"),
        ("data", "seq_len = -1", "data.seq_len = -1: must be an integer, at least 1"),
        ("data", "seq_len = 2147483648", "data.seq_len = 2147483648: must be an integer from 1 to 2147483647"),
        ("data", 'order = "random"', 'data.order = "random": must be "sequential" or "shuffled"'),
        ("data", 'tokenizer = "a\\u0000"', "must be a string that is not empty"),
        ("optimizer", "lr = 0", "optimizer.lr = 0: must be a finite number above 0"),
        ("optimizer", "lr = nan", "optimizer.lr = nan: must be a finite number above 0"),
        ("optimizer", "lr = inf", "optimizer.lr = inf: must be a finite number above 0"),
        ("optimizer", 'lr = "1"', 'optimizer.lr = "1": must be a finite number above 0'),
        ("optimizer", "lr = " + "9" * 400, "...: must be a finite number above 0"),
        ("optimizer", "betas = [0.9]", "optimizer.betas = [0.9]: must be two numbers"),
        ("optimizer", "betas = [0.9, 1]", "optimizer.betas = [0.9, 1]: must be two numbers"),
        ("optimizer", "momentum = 0.9", 'optimizer.name is "adamw", and momentum belongs to sgd; use betas'),
        (
            "optimizer",
            'name = "adam"',
            'optimizer.name = "adam": must be "adamw" or "lamb" or "sgd" (did you mean adamw?)',
        ),
        ("optimizer", "weight_decay = -0.1", "optimizer.weight_decay = -0.1: must be a finite number at least 0"),
        ("optimizer", "state_bits = 16", "optimizer.state_bits = 16: must be 8 or 32"),
        ("optimizer", 'state_bits = "8"', 'optimizer.state_bits = "8": must be 8 or 32'),
        ("optimizer", "eps = 0", "optimizer.eps = 0: must be at least 1e-30 with adamw"),
        ("optimizer", "warmup_steps = 101", "optimizer.warmup_steps = 101: must be at most train.steps = 100"),
        ("optimizer", "learning_rate = 1", "unknown key optimizer.learning_rate = 1"),
        ("optimizer", "weight_decai = 1", "(did you mean weight_decay?); allowed in [optimizer]: name, lr, betas"),
        (
            "train",
            'router = "flows"',
            'must be "shortest" or "iwrr" or "flow" or "gwtf" or "gwtf-sum" (did you mean flow?)',
        ),
        ("train", 'precision = "BF16"', 'train.precision = "BF16": must be "fp32" or "bf16" (did you mean bf16?)'),
        ("train", 'codec = "blockwise"', '"fp16" or "none" or "adatopk" (did you mean blockwise8?)'),
        ("optimizer", 'schedule = "cosin"', 'must be "constant" or "cosine" or "linear" (did you mean cosine?)'),
        ("train", "seq_len = 8", "unknown key train.seq_len = 8 (it belongs in [data]); allowed in [train]: steps"),
        ("train", "name = 1", "unknown key train.name = 1 (it belongs in [run] or [optimizer]); allowed"),
        ("train", "router = []", 'train.router = []: must be "shortest" or "iwrr"'),
        ("train", 'accumulate = "fp64"', 'train.accumulate = "fp64": must be "fp32" or "exact"'),
        ("train", 'codec = "gzip"', 'must be "blockwise8" or "fp16" or "none"'),
        ("train", "seed = 0x" + "f" * 5000, "train.seed = a number of thousands of digits: must be an integer from 0"),
        ("train", '"two\\nlines" = 1', 'unknown key train."two\\nlines" = 1; allowed'),
        ("train", "seed = -1", "train.seed = -1: must be an integer, at least 0"),
        ("train", "validate_every = 5", "train.validate_every = 5: needs data.validation_path"),
        (
            "trian",
            "steps = 5",
            "unknown section or key 'trian' at the top (did you mean train?); allowed: [run], [model]",
        ),
    ],
)
def test_each_impossible_key_is_named(tmp_path: Path, section: str, line: str, expected: str) -> None:
    # Single values are checked before the sections as a whole: what [model] and [data] lack does not matter here.
    text = f"[{section}]\n{line}\n" + ("" if section in {"model", "data"} else SHORT)
    assert expected in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "[model] needs path"),
        ('[model]\npath = "init"\n[data]\npath = "a"\n', "[model] needs stages (their number) or cut"),
        ('[model]\npath = "i"\nconfig = { model_type = "gpt2" }\n', "model.path and model.config are both given"),
        ('[model]\npath = "i"\nstages = 2\ncut = [2, 4]\n', "model.stages = 2: model.cut = [2, 4] makes 3 stages"),
        ('[model]\npath = "i"\nstages = 2\n', "[data] needs path"),
        (
            '[model]\npath = "i"\nstages = 2\ndropout = true\nattention = "sdpa"\n',
            'model.attention = "sdpa": goes only without model.dropout; take "eager", or leave it out',
        ),
        ('[model]\npath = "i"\nstages = 1\nboundary = "maxout:2"\n', "one stage has no boundary; ask for more stages"),
        ('[model]\npath = "i"\nstages = 2\n[data]\npath = "a"\ndataset = "b"\n', "data.path and data.dataset are both"),
        ('[model]\npath = "i"\nstages = 2\n[data]\npath = "a"\nsplit = "b"\n', 'data.split = "b": goes only with'),
        (SHORT + '[train]\ncodec = "adatopk"\ndelay = 1\n', 'the codec "adatopk" needs train.delay = 0'),
        (
            SHORT + "[train]\ncompression_ratio = 50\n",
            'train.codec is "blockwise8", and compression_ratio belongs to adatopk',
        ),
        (SHORT + '[optimizer]\nname = "sgd"\nbetas = [0.9, 0.95]\n', "betas belongs to adamw and lamb; use momentum"),
        ("steps = 3\n" + SHORT, "unknown section or key 'steps' at the top (it belongs in [train]); allowed: [run]"),
        ("train = 3\n" + SHORT, "train = 3: must be a section: write [train]"),
        ("[run]\nexport_every = 75\n" + SHORT, "must be a multiple of train.checkpoint_every = 50, or 0"),
        (SHORT + "[train]\nsteps = \n", "is not valid TOML: Invalid value (at line 7, column 9)"),
        (SHORT + "[train]\nsteps = 1\nsteps = 2\n", "is not valid TOML: Cannot overwrite a value (at line 8"),
        ("x = " + "[" * 10_000, "is not valid TOML"),
        (SHORT + 'tokenizer = "~nobody-of-that-name/t.json"\n', "home folder of a user that is not there"),
    ],
)
@pytest.mark.usefixtures("without_collection")
def test_what_does_not_fit_together_is_named(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml: No such file or directory"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"[run]\nname = '\xe9'\n")
    with pytest.raises(ConfigError, match=r"latin\.toml is not UTF-8 text \(byte 14\)"):
        load(tmp_path / "latin.toml")


def test_what_may_change_at_a_resume(tmp_path: Path) -> None:
    before = fingerprint(loaded(tmp_path, EVERYTHING))
    (tmp_path / "moved").mkdir()
    text = EVERYTHING.replace('"out"', '"elsewhere"').replace('"init"', '"copy"').replace("steps = 100", "steps = 200")
    text = text.replace('"elsewhere"', '"elsewhere"\nexport_every = 100\nkeep_exports = 5')
    text = text.replace("every = 50", "every = 10\nvalidate_every = 5").replace(
        "seq_len", 'validation_path="v"\nseq_len'
    )
    assert first_difference(before, fingerprint(loaded(tmp_path / "moved", text))) is None


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("seed = 0", "seed = 1", "train.seed"),
        ("lr = 3e-4", "lr = 3.1e-4", "optimizer.lr"),
        ("[0.9, 0.95]", "[0.9, 0.99]", "optimizer.betas"),
        ('path = "init"', 'config = { model_type = "gpt2" }', "model.config.model_type"),
        ("stages = 3", "cut = [1, 2]", "model.cut"),
        ('"bytes"', '"org/name"', "data.tokenizer"),
        ("microbatches = 8", "microbatches = 9", "train.microbatches"),
        ('accumulate = "fp32"', 'accumulate = "exact"', "train.accumulate"),
        ("stages = 3", 'stages = 3\nboundary = "maxout:2"', "model.boundary"),
        ("stages = 3", 'stages = 3\nattention = "eager"', "model.attention"),
    ],
)
def test_the_first_difference_is_named(tmp_path: Path, old: str, new: str, key: str) -> None:
    before = fingerprint(loaded(tmp_path, EVERYTHING))
    now = fingerprint(loaded(tmp_path, EVERYTHING.replace(old, new)))
    assert first_difference(before, now) == key


def test_a_fingerprint_survives_json_and_names_nested_keys(tmp_path: Path) -> None:
    text = '[model]\nconfig = { model_type = "llama", rope = { theta = 1e4 } }\ncut = [2]\n[data]\npath = "a"\n'
    before = json.loads(json.dumps(fingerprint(loaded(tmp_path, text))))
    assert first_difference(before, fingerprint(loaded(tmp_path, text))) is None
    older = {key: value for key, value in before.items() if key != "optimizer.state_bits"}
    assert first_difference(older, before) is None, "a run that was begun before there was the key goes on"
    changed = fingerprint(loaded(tmp_path, text.replace("1e4", "1e5")))
    assert first_difference(before, changed) == "model.config.rope.theta"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("silence_s = 1.5", "timeouts.silence_s = 1.5: must be above heartbeat_s + heartbeat_s = 2, or one "),
        ("memory_s = 35.0", "timeouts.memory_s = 35: must be above leader_silence_s + leaderless_s = 35, or peers "),
        ("ballot_s = 5", "timeouts.ballot_s = 5: must be above silence_s = 8, or the others "),
        ("late_s = 0", "timeouts.late_s = 0: must be a finite number above 0 and below 100000"),
        ("late_s = inf", "timeouts.late_s = inf: must be a finite number above 0 and below 100000"),
        ("patience_s = 5", "unknown key timeouts.patience_s = 5"),
    ],
)
def test_timeouts_that_cannot_be_or_contradict_each_other_are_refused(tmp_path: Path, line: str, named: str) -> None:
    assert named in refusal(tmp_path, f"{SHORT}[timeouts]\n{line}\n")


def test_timeouts_are_the_runs_and_what_is_not_given_is_as_documented(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"{SHORT}[timeouts]\nsilence_s = 3\n").timeouts
    assert found == Timeouts(silence_s=3.0)


def test_the_documentation_lists_every_key_with_its_default(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "run-toml.md").read_text()
    text = SHORT.replace('path = "init"', 'config = { model_type = "gpt2" }')
    for section in dataclasses.fields(RunConfig):
        values = getattr(loaded(tmp_path, text), section.name)
        body = page.split(f"## [{section.name}]")[1].split("\n## ")[0]
        rows = {
            cells[1].strip(" `"): cells[3].strip(" `") for line in body.splitlines() if (cells := line.split("|"))[1:]
        }
        documented = [name for name in rows if name not in {"key", "---"}]
        assert documented == [field.name for field in dataclasses.fields(values)]
        for field in dataclasses.fields(values):
            default = field.default
            if default is not None and (section.name, field.name) != ("model", "stages"):
                shown = list(default) if isinstance(default, tuple) else default
                assert rows[field.name] == json.dumps(shown, default=str), field.name


def test_the_documentation_lists_exactly_the_values_that_a_key_may_have() -> None:
    page = (Path(__file__).parent.parent / "docs" / "run-toml.md").read_text()
    compared = 0
    for section in dataclasses.fields(RunConfig):
        body = page.split(f"## [{section.name}]")[1].split("\n## ")[0]
        owner = get_type_hints(RunConfig)[section.name]
        for key, check in config_check.checks_of(owner).items():
            [row] = [line.split("|") for line in body.splitlines() if line.startswith(f"| `{key}` |")]
            documented = re.findall(r'`"(\w+)"`', row[2])
            if getattr(check, "__qualname__", "").startswith("choice."):
                with pytest.raises(config_check.Disallowed) as error:
                    check("")
                assert documented == re.findall(r'"(\w+)"', str(error.value)), key
                compared += 1
            else:
                assert documented == [], key
    assert compared >= 6


MODULE = '[model]\nmodule = "a.b:c"\nstages = 2\n[data]\npath = "records.jsonl"\ncollate = "a.b:d"\n'


def test_a_run_of_a_module(tmp_path: Path) -> None:
    config = loaded(tmp_path, MODULE.replace("stages = 2", 'cut = ["layers.2"]\nmodule_config = { width = 8 }'))
    assert (config.model.module, config.model.module_config) == ("a.b:c", {"width": 8})
    assert (config.model.cut, config.model.numbered_cut, config.model.stages) == (("layers.2",), None, 2)
    assert loaded(tmp_path, MODULE.replace("stages = 2", "cut = [4]")).model.numbered_cut == (4,)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('"a.b:c"', '"a.b"', 'model.module = "a.b": must be the name of a function in a package'),
        ('"a.b:d"', '"a/b:d"', 'data.collate = "a/b:d": must be the name of a function in a package'),
        ("stages = 2", 'path = "x"\nstages = 2', "model.path and model.module are both given: keep one of them"),
        ("stages = 2", "module_config = 3\nstages = 2", "model.module_config = 3: must be a table of strings"),
        (
            "stages = 2",
            'cut = [1, "a"]',
            "must be a list of positive block numbers, each larger than the one before; for",
        ),
        ('collate = "a.b:d"\n', "", 'model.module = "a.b:c": needs data.collate'),
        ('collate = "a.b:d"\n', 'collate = "a.b:d"\nseq_len = 5\n', "data.seq_len = 5: is for text"),
        ('module = "a.b:c"', 'path = "x"', 'data.collate = "a.b:d": goes only with model.module'),
        ('module = "a.b:c"', 'path = "x"\nmodule_config = {}', "model.module_config is given: goes only with"),
        ('module = "a.b:c"\nstages = 2', 'path = "x"\ncut = ["a"]', ": names go only with model.module"),
    ],
)
def test_what_does_not_go_with_a_module_is_refused(tmp_path: Path, before: str, after: str, expected: str) -> None:
    assert before in MODULE
    assert expected in refusal(tmp_path, MODULE.replace(before, after))
