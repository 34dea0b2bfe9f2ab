"""A swarm of real processes under deaths and arrivals, and what a user can ask of it meanwhile and afterwards."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from swarmflow.runtime.transport.identity import load_identity
from tests.swarm.reference import Recipe, load_model, parameters
from tests.swarm.runs import FINISH_S, STAGES, prepare, recipe, settings, start
from tests.swarm.test_exactness import assert_learnt

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

STEP_FIELDS = {
    "step",
    "loss",
    "tokens",
    "seconds",
    "grad_norm",
    "lr",
    "microbatches",
    "peers",
    "retries",
    "version",
    "time",
}


@dataclass(frozen=True)
class Story:
    """A run that lost a peer and got another one, after its end.

    ready_at: the steps that were committed when the newcomer had loaded its stage. resent: microbatches that the
    trainers gave to another peer because the one that had them died.
    """

    swarm: LocalSwarm
    model: Path
    corpus: Path
    of: Recipe
    ready_at: int
    killed_after: int
    resent: float

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.swarm.steps()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[Story]:
    """3 stages x 2 peers and 2 trainers; one peer is killed amid forward work, and later a seventh one joins."""
    folder = tmp_path_factory.mktemp("story")
    model, corpus = prepare(folder, "gpt2")
    of = recipe("adamw", steps=24, microbatches=32, sequences=8)
    with LocalSwarm(folder / "swarm", settings(model, corpus, of), forks=forks) as swarm:
        start(swarm, trainers=2, peers=2 * STAGES, trainer_options=["--metrics-port", "0"], both_memories=True)
        swarm.wait(lambda: _full_step(swarm), "a step with all peers", FINISH_S)
        killed_after = len(swarm.steps())
        victim = swarm.peers[0]
        victim.send(signal.SIGSTOP)  # else what it has may be done before it is killed
        swarm.wait(lambda: _has_forward_work(swarm, victim), "forward work at the peer that is to die", FINISH_S)
        victim.kill()
        swarm.wait_steps(killed_after + 2, FINISH_S)
        resent = sum(_resent(trainer) for trainer in swarm.trainers)
        newcomer = swarm.start_peer("--state", "host")
        swarm.wait(lambda: "is loaded at version" in _log(newcomer), "the newcomer's readiness", FINISH_S)
        ready_at = len(swarm.steps())
        swarm.wait_finished(FINISH_S)
        yield Story(swarm, model, corpus, of, ready_at, killed_after, resent)


def _full_step(swarm: LocalSwarm) -> bool:
    steps = swarm.steps()
    return bool(steps) and steps[-1]["peers"] == [2] * STAGES


def _has_forward_work(swarm: LocalSwarm, process: LocalProcess) -> bool:
    name = load_identity(swarm.state_folder(process.name) / "identity.key").name[-6:]
    return any(peer.startswith(f"{name}.") and state == "forward" for _, _, peer, state in swarm.status()["hops"])


def _log(process: LocalProcess) -> str:
    """What it has said so far; its log is there a moment after it was started."""
    return process.log.read_text(encoding="utf-8") if process.log.exists() else ""


def _resent(trainer: LocalProcess) -> float:
    """swarmflow_retries_total{reason="gone"} of a running trainer."""
    address = re.search(r"http://127\.0\.0\.1:\d+/metrics", _log(trainer))
    assert address is not None
    with urllib.request.urlopen(address[0], timeout=10) as answer:
        text = answer.read().decode("utf-8")
    found = re.search(r'^swarmflow_retries_total\{reason="gone"\} (\S+)$', text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_a_kill_in_forward_work_costs_no_step_and_no_microbatch(story: Story) -> None:
    assert [step["step"] for step in story.steps] == list(range(story.of.steps))
    assert {step["microbatches"] for step in story.steps} == {story.of.microbatches}
    assert {step["tokens"] for step in story.steps} == {story.of.microbatches * story.of.sequences * story.of.seq_len}


def test_the_kill_hit_work_that_was_under_way(story: Story) -> None:
    assert story.resent > 0
    assert any(sorted(step["peers"]) == [1, 2, 2] for step in story.steps[story.killed_after :])


def test_the_parameters_are_those_of_a_plain_process(story: Story) -> None:
    found = parameters(load_model(story.swarm.output / "final"))
    losses = assert_learnt(found, story.model, story.corpus, story.of)
    torch.testing.assert_close([step["loss"] for step in story.steps], losses, rtol=1e-5, atol=0)


def test_a_newcomer_gets_work_within_two_steps_of_being_ready(story: Story) -> None:
    """On whichever stage: that follows from the speeds that the peers have measured of themselves."""
    later = story.steps[story.killed_after + 2 :]
    joined = next(step["step"] for step in later if sum(step["peers"]) == 2 * STAGES)
    assert joined <= story.ready_at + 2


def test_every_trainer_appends_one_object_a_step(story: Story) -> None:
    for trainer in ("trainer-0", "trainer-1"):
        text = story.swarm.json_file(trainer).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        assert all(line.keys() >= STEP_FIELDS for line in lines)
        by_step = {line["step"]: line["loss"] for line in lines}
        assert by_step.items() <= {step["step"]: step["loss"] for step in story.steps}.items()
        assert max(by_step) == story.of.steps - 1


def test_the_exported_model_generates_in_plain_transformers(story: Story) -> None:
    final = story.swarm.output / "final"
    tokenizer: Any = AutoTokenizer.from_pretrained(final)
    model: Any = AutoModelForCausalLM.from_pretrained(final)
    prompt = tokenizer("def decode", return_tensors="pt")
    assert prompt["input_ids"].tolist() == [list(b"def decode")]
    out = model.generate(**prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert out.shape == (1, len(b"def decode") + 8)
    assert tokenizer.decode(out[0]).startswith("def decode")


def test_export_from_a_state_folder_gives_the_same_model(story: Story, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    story.swarm.command("export", "--state-dir", str(story.swarm.folder / "trainer-0"), "--out", str(out))
    found, wanted = (parameters(load_model(folder)) for folder in (out, story.swarm.output / "final"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
