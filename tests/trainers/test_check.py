"""`swarmflow check`: a table of what a run is and asks, and every problem at once; a trainer checks the same."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.model_keys import unknown_keys
from swarmflow.compute.partition import BlockCosts, plan_cut
from swarmflow.compute.sharing import with_sharing
from swarmflow.config import load
from swarmflow.errors import SwarmflowError
from swarmflow.preparation.manifests import manifest_of
from swarmflow.preparation.model_check import check_model, read_model
from tests.compute.finetuned import save_base
from tests.compute.models import config_of, stages_of, whole_model
from tests.owners import RUN_ID
from tests.trainers.conversations import PLAIN, VOCAB, conversations, save_tokenizer, write_records
from trainers.check import run
from trainers.check.command import check
from trainers.data import open_corpus
from trainers.plan import new_manifest

ROOT = Path(__file__).parents[2]
TEXT = b"the quick brown fox jumps over the lazy dog\n" * 20
RUN = """
[run]
name = "fox"
output = "{output}"
[model]
{model}
[data]
path = "{data}"
seq_len = {seq_len}
"""
TABLE = """config = { model_type = "llama", hidden_size = 16, intermediate_size = 32, num_hidden_layers = 4, \
num_attention_heads = 2, vocab_size = 256, max_position_embeddings = 32 }
cut = [1]"""


def checked(
    folder: Path, model: str = TABLE, data: str = "text", seq_len: int = 16, output: str = "out", more: str = ""
) -> Result:
    (folder / "text").write_bytes(TEXT)
    (folder / "RUN.toml").write_text(RUN.format(model=model, data=data, seq_len=seq_len, output=output) + more)
    return CliRunner().invoke(check, [str(folder / "RUN.toml")], standalone_mode=False)


def complaints(result: Result) -> list[str]:
    assert result.return_value == 1
    lines = result.stderr.splitlines()
    assert all(line.startswith("swarmflow: ") for line in lines)
    return [line.removeprefix("swarmflow: ") for line in lines]


def test_a_run_without_a_mistake_is_described_and_nothing_is_written(tmp_path: Path) -> None:
    result = checked(tmp_path, TABLE.replace("{", "{ tie_word_embeddings = true,"))
    assert result.return_value == 0, result.stderr
    assert result.stderr == ""
    rows = [line.split() for line in result.stdout.splitlines()]
    assert "run        fox: 100 steps of 8 microbatches of 4 sequences of 16 tokens" in result.stdout
    assert "llama, 4 blocks, 14,480 parameters, fresh weights" in result.stdout
    assert "880 bytes, 880 tokens, 54 sequences" in result.stdout
    assert "bytes, 256 tokens of the model's 256" in result.stdout
    assert "3 checkpoints" in result.stdout
    stages = [row for row in rows if row[:1] in (["0"], ["1"])]
    assert [row[1:3] for row in stages] == [["0-0", "6,688"], ["1-3", "11,888"]]
    assert max(len(line) for line in result.stdout.splitlines() if line.startswith(" ")) <= 80
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RUN.toml", "text"]


def test_learnt_boundaries_are_described_with_what_is_exported(tmp_path: Path) -> None:
    result = checked(tmp_path, f'{TABLE}\nboundary = "bottleneck:4"')
    assert result.return_value == 0, result.stderr
    assert "bottleneck:4: 4 of 16 numbers of a token travel, 168 parameters at 1 boundary" in result.stdout
    assert "transformers cannot load them" in result.stdout
    [line] = complaints(checked(tmp_path, f'{TABLE}\nboundary = "maxout:3"'))
    assert 'model.boundary = "maxout:3": the model\'s hidden size is 16, which allows a maxout from 2 to 8' in line


def test_weights_that_blocks_share_count_once_a_stage(tmp_path: Path) -> None:
    result = checked(tmp_path, TABLE.replace("[1]", "[2]") + "\nshared_blocks = 2")
    assert result.return_value == 0, result.stderr
    assert "llama, 4 blocks, 13,392 parameters (18,576 before blocks share theirs), fresh weights" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[1:3] for row in rows if row[:1] in (["0"], ["1"])] == [["0-1", "6,688"], ["2-3", "6,704"]]
    run = load(tmp_path / "RUN.toml")
    model = check_model(run).model
    assert model is not None
    made = manifest_of(run, model, "", "")
    apart = manifest_of(run, replace(model, config=with_sharing(model.config, None)), "", "")
    assert (made.shared, made.gigaflops) == ((), apart.gigaflops), "they are computed as often"


def test_the_example_has_the_sizes_that_the_paper_names() -> None:
    run = load(ROOT / "examples" / "runs" / "swarm-1b.toml")
    model = read_model(run.model)
    assert unknown_keys(run.model.config or {}) == []
    whole = stage_layout(model, (), 0)
    assert 1.01e9 < whole.parameters < 1.02e9
    assert 13e9 < whole.stored_parameters < 13.2e9
    assert run.model.cut == plan_cut(model, 3, BlockCosts(0.0, 1.0, 0.8)), "each stage has its group"
    assert run.train.microbatches * run.train.microbatch_sequences == 16384


def test_more_stages_than_can_add_up_a_gradient_are_refused(tmp_path: Path) -> None:
    model = TABLE.replace("layers = 4", "layers = 5").replace("[1]", "[1, 2, 3, 4]") + "\nshared_blocks = 1"
    (line,) = complaints(checked(tmp_path, model, more='[train]\naccumulate = "exact"\n'))
    assert "5 stages have blocks that share their weights, and at most 4 add up" in line
    assert checked(tmp_path, model).return_value == 0


@pytest.mark.parametrize("packing", ["bfd", "none"])
def test_experts_are_balanced_in_rows_that_are_not_full_too(packing: str, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "the quick brown fox"}\n' * 20)
    mixture = '"mixtral", num_local_experts = 2, num_key_value_heads = 2, output_router_logits = true,'
    model = TABLE.replace('"llama",', mixture)
    assert checked(tmp_path, model, "texts.jsonl", more=f'packing = "{packing}"\n').return_value == 0
    run = load(tmp_path / "RUN.toml")
    found = check_model(run).model
    assert found is not None
    assert manifest_of(run, found, "", "").empty_places


def test_what_others_have_written_in_the_place_of_the_output_is_told(tmp_path: Path) -> None:
    output = tmp_path / "elsewhere"

    def complaint() -> str:
        [line] = complaints(checked(tmp_path, output="elsewhere"))
        return line

    output.symlink_to(tmp_path / "gone")
    assert complaint() == f"run.output = {output}: it is a link to {tmp_path / 'gone'}, which is not there"
    output.unlink()
    (output / "final").mkdir(parents=True)
    assert checked(tmp_path, output="elsewhere").return_value == 0
    (output / "final" / "config.json").write_text("{}")
    assert "holds something that swarmflow did not write" in complaint()


def test_a_mark_at_the_beginning_of_run_toml_is_no_part_of_it(tmp_path: Path) -> None:
    assert checked(tmp_path).return_value == 0
    path = tmp_path / "RUN.toml"
    before = load(path)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert load(path) == before


def test_all_problems_are_told(tmp_path: Path) -> None:
    model = TABLE.replace("hidden_layers", "hidden_layerz").replace("= 256", "= 9").replace("[1]", "[90]")
    lines = complaints(checked(tmp_path, model, "nowhere.txt", 64, "text/out"))
    for line, expected in zip(
        lines,
        (
            "did you mean num_hidden_layers?",
            "seq_len = 64 is more than the 32 positions",
            "cut = [90] must rise",
            "data path",
            "vocab_size = 9",
            "text is not a folder",
        ),
        strict=True,
    ):
        assert expected in line


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("[train]\nstepz = 3\nrouter = 'flo'\n[trian]\n", ["'trian'", "stepz = 3 (did you mean steps?)", "router"]),
        ("[model]\n", ["is not valid TOML"]),
    ],
)
def test_so_are_those_of_the_file_itself(more: str, expected: list[str], tmp_path: Path) -> None:
    for line, fragment in zip(complaints(checked(tmp_path, more=more)), expected, strict=True):
        assert fragment in line


@pytest.mark.parametrize(
    ("text", "expected"), [(b"too short", "holds 9 tokens: one sequence needs"), (b"", "holds no text")]
)
def test_data_that_are_not_enough_are_told(text: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "few").write_bytes(text)
    (line,) = complaints(checked(tmp_path, data="few"))
    assert expected in line


def test_of_a_large_corpus_only_the_start_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SAMPLE_BYTES", 1)
    (tmp_path / "large").write_bytes(TEXT * 3000)
    result = checked(tmp_path, data="large")
    assert result.return_value == 0
    assert "the rest was not read" in result.stdout


def test_a_trainer_finds_the_same_before_there_is_an_invite(tmp_path: Path) -> None:
    """Weights that are cut short, and sequences that are too long for the model."""
    config = config_of("llama")
    whole_model(config, stages_of(config, ())).save_pretrained(tmp_path / "init")
    weights = tmp_path / "init" / "model.safetensors"
    model = 'path = "init"\nstages = 2'
    os.truncate(weights, weights.stat().st_size - 1)
    problems = complaints(checked(tmp_path, model, seq_len=33))
    assert "seq_len = 33 is more than the 32 positions" in problems[0]
    assert "model.safetensors is missing or corrupt" in problems[1]
    assert "tokenizer bytes has 256 tokens, more than the model's vocab_size = 61" in problems[2]
    run_config = load(tmp_path / "RUN.toml")
    corpus = open_corpus(run_config, None, tmp_path / "cache")
    with pytest.raises(SwarmflowError) as caught:
        new_manifest(run_config, corpus, RUN_ID)
    assert str(caught.value) == f"3 problems: (1) {problems[0]}; (2) {problems[1]}; (3) {problems[2]}"


def test_records_of_conversations_are_counted_and_bad_ones_named(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tokenizer", PLAIN)
    write_records(tmp_path / "chat.jsonl", conversations(5))
    more = f'format = "chat"\ntokenizer = "{tokenizer}"\n'
    model = TABLE.replace("vocab_size = 256", f"vocab_size = {VOCAB}")
    result = checked(tmp_path, model, "chat.jsonl", more=more)
    assert result.return_value == 0, result.output
    assert re.search(r"chat.jsonl: 5 records, [\d,]+ tokens, of which [\d,]+ count in the loss", result.stdout)
    write_records(tmp_path / "chat.jsonl", [*conversations(2), {"messages": []}])
    [line] = complaints(checked(tmp_path, model, "chat.jsonl", more=more))
    assert "chat.jsonl, record 3: its field 'messages' is an empty list" in line


def test_what_is_frozen_and_what_is_trained_is_told_apart(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    save_base(model_config({"model_type": "llama", **sizes, "vocab_size": 256}), tmp_path / "base")
    model, more = 'path = "base"\ncut = [1]', "[finetune]\nlora = { rank = 2, alpha = 4 }\n"
    result = checked(tmp_path, model, more=more)
    assert result.return_value == 0, result.output
    whole, adapters = 256 * 16 * 2 + 16 + 4 * (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16), 4 * 2 * (4 * 32 + 3 * 48)
    assert f"{whole:,} parameters, kept in fp32, and {adapters:,} of adapters of rank 2, which are" in result.stdout
    for wrong, line in {
        'base = "bf16"': 'finetune.base = "bf16": train.precision is "fp32"; take "fp32" or "4bit", or set both',
        "lora = { rank = 0 }": "finetune.lora = {'rank': 0}: must be a table such as { rank = 16, alpha = 32",
        "lora = { dropout = 1.0 }": "finetune.lora = {'dropout': 1.0}: must be a table such as { rank = 16, alpha = 32",
        "lora = { dropout = false }": "finetune.lora = {'dropout': False}: must be a table such as { rank = 16, alpha",
        'lora = { targets = ["q"] }': "finetune.lora.targets = ['q']: no block has a linear layer 'q'",
    }.items():
        rest = "" if wrong.startswith("lora") else "lora = { rank = 2 }\n"
        [found] = complaints(checked(tmp_path, model, more=f"[finetune]\n{rest}{wrong}\n"))
        assert line in found
    [found] = complaints(checked(tmp_path, TABLE, more="[finetune]\nlora = { rank = 2 }\n"))
    assert "finetune.lora is given: needs model.path" in found
