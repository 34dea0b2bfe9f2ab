"""docs/first-run.md, as a newcomer does it: the file that `swarmflow init` writes is trained to its end."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from swarmflow.files import readable_size
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm
from tests.packaging.cli_page import commands
from tests.trainers.test_init import TEXT, options
from trainers.init.command import init
from trainers.init.plan import plan_run
from trainers.init.sizes import size_names

GUIDE = Path(__file__).parents[2] / "docs" / "first-run.md"
FINISH_S = 120.0


@pytest.mark.swarm
def test_the_file_of_init_is_trained_and_gives_a_model(tmp_path: Path, forks: ForkServer) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "fox.txt").write_text(TEXT)
    folder = tmp_path / "run"
    written = folder / "RUN.toml"
    arguments = ["--data", str(texts), "--steps", "2", "--seq-len", "16", "--out", str(written)]
    result = CliRunner().invoke(init, arguments, standalone_mode=False)
    assert result.return_value == 0, result.stderr
    text = written.read_text(encoding="utf-8")
    with LocalSwarm(folder, tomllib.loads(text), forks=forks) as swarm:
        written.write_text(text, encoding="utf-8")  # the very file, not the swarm's form of it
        swarm.start_trainer()
        swarm.start_peer()
        swarm.wait_finished(FINISH_S)
        assert [step["step"] for step in swarm.steps()] == [0, 1]
    model = AutoModelForCausalLM.from_pretrained(swarm.output / "final")
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(swarm.output / "final"))


def test_every_command_of_the_guide_exists_with_its_options() -> None:
    blocks = GUIDE.read_text(encoding="utf-8").split("```\n")[1::2]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    found = [words[1:] for words in lines if words[:1] == ["swarmflow"]]
    assert [name for name, *_ in found] == ["init", "trainer", "peer"]
    for name, *arguments in found:
        commands()[name].make_context(name, arguments)


def test_the_guide_lists_the_sizes_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text(TEXT)
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| `llama-")]
    expected = []
    for name in size_names():
        if name.startswith("llama-"):
            run = plan_run(options(tmp_path, model=name))
            size, memory = f"{run.model.parameters / 1e6:,.1f} million", readable_size(run.model.state_bytes)
            expected.append(f"| `{name}` | {size} | {memory} | {run.stages} | {run.step_tokens:,} | {run.steps:,} | ")
    assert len(rows) == len(expected)
    for row, begin in zip(rows, expected, strict=True):
        assert row.startswith(begin)
