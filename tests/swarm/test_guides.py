"""Every command of the guides runs as they say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from swarmflow.chaos.plain import write_model
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.forkserver import ForkServer
from tests.swarm.walkthrough import Block, Walkthrough, pieces
from tests.trainers.conversations import PLAIN, VOCAB, save_tokenizer

ROOT = Path(__file__).parents[2]
GUIDES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "guides").glob("*.md"))}
RUN = """
[run]
name = "mine"
[model]
config = { model_type = "llama", hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4, vocab_size = 256 }
stages = 2
[data]
path = "texts"
seq_len = 64
[train]
steps = 2000
microbatches = 8
checkpoint_every = 5
"""  # noqa: E501
LANGUAGES = {"sh", "toml", "python", "json"}
DIRECTIVES = ("background until ", "prints ", "file ", "python", "not run: ")


def prepare_texts(walk: Walkthrough) -> None:
    """Write a folder of text."""
    (walk.folder / "texts").mkdir()
    write_corpus(walk.folder / "texts" / "text.txt", 100_000)


def prepare_run_file(walk: Walkthrough) -> None:
    """Write a RUN.toml of a smaller model than one that is any good, so that steps take a tenth of a second."""
    (walk.folder / "RUN.toml").write_text(RUN, encoding="utf-8")


def prepare_run(walk: Walkthrough) -> None:
    """Start the run of somebody else: a trainer and a peer of each stage."""
    prepare_run_file(walk)
    walk.background("swarmflow trainer RUN.toml", r"swarmflow2:\S+")
    for stage in range(2):
        # Its metrics are on the port of the service.
        port = "--metrics-port 9400" if stage == 0 else ""
        walk.background(f"swarmflow peer --join INVITE --stage {stage} {port}", r"stage \d+ is loaded")


def prepare_elsewhere(walk: Walkthrough) -> None:
    """Copy RUN.toml and the data, as to another machine."""
    other = walk.folder / "elsewhere"
    other.mkdir()
    shutil.copy(walk.folder / "RUN.toml", other)
    shutil.copytree(walk.folder / "texts", other / "texts")


def prepare_examples(walk: Walkthrough) -> None:
    """Copy the scenarios of the checkout."""
    shutil.copytree(ROOT / "examples", walk.folder / "examples")


def prepare_chat_model(walk: Walkthrough) -> None:
    """Write a tiny model with weights, and a tokenizer with a chat template beside it."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    write_model(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=VOCAB), walk.folder / "model")
    save_tokenizer(walk.folder / "model", PLAIN)


PREPARATIONS = {
    "quiet": Walkthrough.close,
    "texts": prepare_texts,
    "chat model": prepare_chat_model,
    "RUN.toml": prepare_run_file,
    "run": prepare_run,
    "elsewhere": prepare_elsewhere,
    "examples": prepare_examples,
}


@pytest.mark.swarm
@pytest.mark.extended
@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_leads_to_its_result(name: str, tmp_path: Path, forks: ForkServer) -> None:
    walk = Walkthrough(tmp_path, forks, PREPARATIONS)
    try:
        assert walk.walk(GUIDES[name]) >= 3
    finally:
        walk.close()


@pytest.mark.parametrize("name", GUIDES)
def test_every_block_of_a_guide_says_what_it_is(name: str) -> None:
    blocks = [piece for piece in pieces(GUIDES[name]) if isinstance(piece, Block)]
    assert {block.language for block in blocks} <= LANGUAGES
    for block in blocks:
        assert not block.directive or block.directive.startswith(DIRECTIVES), block.directive
        if block.directive.startswith("not run: "):
            assert len(block.directive.removeprefix("not run: ")) > 5, "the reason"
