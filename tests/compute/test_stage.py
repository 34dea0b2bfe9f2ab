"""Stages joined compute what transformers' own model computes: logits, loss and every gradient."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.layout import TIED
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.errors import ModelError
from tests.compute.models import CUTS, FAMILIES, batch, config_of, stages_of, whole_model


def _train(stages: list[Stage], x: torch.Tensor, y: torch.Tensor, draw: DrawKey | None = None) -> float:
    runners = [StageRunner(stage) for stage in stages]
    hidden = x
    for runner in runners[:-1]:
        hidden = runner.forward("m", hidden, draw)
    total, tokens, grad = runners[-1].loss("m", hidden, y, draw)
    assert tokens == y.numel()
    for runner in reversed(runners[:-1]):
        assert grad is not None
        assert runner.held == 1
        grad = runner.backward("m", grad)
        assert runner.held == 0
    assert grad is None
    return total


def _gradients(stages: list[Stage]) -> dict[str, torch.Tensor]:
    summed: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, _, grad in stage.named_parameters():
            assert grad is not None
            summed[name] = summed[name] + grad if name in summed else grad.clone()
    return summed


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_joined_stages_equal_the_whole_model(family: str, cut: tuple[int, ...]) -> None:
    config = config_of(family)
    stages = stages_of(config, cut)
    model = whole_model(config, stages)
    x, y = batch()
    logits = model(input_ids=x.long(), use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
    torch.autograd.backward(expected)
    hidden: torch.Tensor = x
    with torch.no_grad():
        for stage in stages:
            hidden = stage.forward(hidden)
    torch.testing.assert_close(hidden, logits.detach(), rtol=1e-5, atol=1e-5)
    assert _train(stages, x, y) == pytest.approx(expected.item(), rel=1e-6)
    gradients = _gradients(stages)
    own = dict(model.named_parameters())
    assert set(gradients) == set(own)
    for name, parameter in own.items():
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=1e-5 * max(scale, 1.0))


def test_gradients_accumulate_in_the_flat_buffer() -> None:
    stages = stages_of(config_of("llama"), (2,))
    x, y = batch()
    addresses = [group.grads.data_ptr() for stage in stages for group in stage.groups.values()]
    _train(stages, x, y)
    once = _gradients(stages)
    _train(stages, x, y)
    assert addresses == [group.grads.data_ptr() for stage in stages for group in stage.groups.values()]
    for name, grad in _gradients(stages).items():
        torch.testing.assert_close(grad, 2 * once[name], rtol=1e-5, atol=1e-6)
        assert float(grad.abs().max()) > 0
    for stage in stages:
        runner = StageRunner(stage)
        runner.clear()
        assert all(not bool(group.grads.any()) for group in stage.groups.values())


@pytest.mark.parametrize("cut", CUTS[1:], ids=str)
def test_tied_weight_is_shared_by_the_ends_alone(cut: tuple[int, ...]) -> None:
    stages = stages_of(config_of("gpt2"), cut)
    assert [stage.tied is not None for stage in stages] == [True, *[False] * (len(stages) - 2), True]
    first, last = stages[0].groups[TIED], stages[-1].groups[TIED]
    assert torch.equal(first.params, last.params)
    assert [entry.name for entry in first.entries] == [stages[0].tied]
    assert TIED not in stages_of(config_of("gpt2"), ())[0].groups


def test_names_are_those_of_the_whole_model() -> None:
    last = build_stage(config_of("llama"), (1, 3), 2, device="cpu")
    names = [name for name, _, _ in last.named_parameters()]
    assert "model.layers.3.mlp.up_proj.weight" in names
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]


def test_flat_group_costs_four_bytes_a_parameter_and_tensor() -> None:
    for stage in stages_of(config_of("qwen2"), (1, 3)):
        parameters = sum(values.numel() for _, values, _ in stage.named_parameters())
        flat = [group.params.numel() for group in stage.groups.values()]
        assert sum(flat) == parameters == stage.layout.parameters
        on_stage = {p.untyped_storage().data_ptr() for unit in stage.units.values() for p in unit.parameters()}
        assert on_stage <= {group.params.untyped_storage().data_ptr() for group in stage.groups.values()}


def test_loss_in_pieces_equals_loss_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config, (x, y) = config_of("gpt_neox"), batch()
    stages = stages_of(config, ())
    whole = _train(stages, x, y)
    at_once = _gradients(stages)
    monkeypatch.setattr("swarmflow.compute.stage.HEAD_TOKENS_MIN", 1)
    monkeypatch.setattr("swarmflow.compute.stage.LOGITS_ELEMENTS_MAX", 61 * 5)
    stages = stages_of(config, ())
    assert _train(stages, x, y) == pytest.approx(whole, rel=1e-6)
    for name, grad in _gradients(stages).items():
        torch.testing.assert_close(grad, at_once[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_dropout_repeats_and_does_not_depend_on_the_cut(family: str) -> None:
    config = config_of(family) | {"attention_dropout": 0.2, "hidden_dropout": 0.2, "attn_pdrop": 0.2}
    x, y = batch()
    losses, gradients = [], []
    for cut in CUTS:
        stages = stages_of(config, cut, dropout=True)
        torch.manual_seed(len(cut))
        losses.append(_train(stages, x, y, DrawKey(seed=1, step=2, microbatch=3)))
        gradients.append(_gradients(stages))
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-6)
    for name, grad in gradients[0].items():
        torch.testing.assert_close(gradients[2][name], grad, rtol=1e-4, atol=1e-5)
    other = _train(stages_of(config, (), dropout=True), x, y, DrawKey(seed=1, step=2, microbatch=4))
    still = _train(stages_of(config, ()), x, y)
    assert len({round(value, 3) for value in (losses[0], other, still)}) == 3


def test_dropout_without_a_key_is_refused() -> None:
    runner = StageRunner(stages_of(config_of("gpt2"), (2,), dropout=True)[0])
    with pytest.raises(ValueError, match="key"):
        runner.forward("m", batch()[0])


def test_evaluate_keeps_no_graph_and_no_gradient() -> None:
    first, last = (StageRunner(stage) for stage in stages_of(config_of("qwen3"), (2,)))
    x, y = batch()
    hidden = first.evaluate(x)
    assert isinstance(hidden, torch.Tensor)
    assert not hidden.requires_grad
    result = last.evaluate(hidden, y)
    assert isinstance(result, tuple)
    assert result[0].value == pytest.approx(last.loss("m", hidden, y)[0], rel=1e-6)
    assert first.held == last.held == 0
    assert not bool(first.stage.groups["own"].grads.any())


def test_bf16_is_near_fp32_and_gradients_stay_fp32() -> None:
    x, y = batch()
    sums = {}
    for precision in ("fp32", "bf16"):
        first, last = (StageRunner(stage, precision) for stage in stages_of(config_of("llama"), (2,)))
        hidden = first.forward("m", x)
        sums[precision], _, grad = last.loss("m", hidden, y)
        assert grad is not None
        first.backward("m", grad)
        assert first.stage.groups["own"].grads.dtype == torch.float32
        assert bool(first.stage.groups["own"].grads.any())
    assert sums["bf16"] == pytest.approx(sums["fp32"], rel=1e-2)
    assert sums["bf16"] != sums["fp32"]


def test_bf16_follows_the_master_weights_and_holds_one_copy_of_them() -> None:
    x, _ = batch()
    first, _ = stages_of(config_of("llama"), (2,))
    runner = StageRunner(first, "bf16")
    assert runner.activation_bytes(x) < StageRunner(stages_of(config_of("llama"), (2,))[0]).activation_bytes(x)
    before = runner.forward("m", x)
    runner.backward("m", torch.ones_like(before))
    with torch.no_grad():
        first.groups["own"].params.mul_(1.5)
    after = runner.forward("m", x)
    fresh, _ = stages_of(config_of("llama"), (2,))
    with torch.no_grad():
        fresh.groups["own"].params.mul_(1.5)
    assert torch.equal(after, StageRunner(fresh, "bf16").forward("m", x))
    assert not torch.equal(after, before)


def test_bf16_gradients_are_near_those_of_fp32() -> None:
    x, y = batch()
    flat = {}
    for precision in ("fp32", "bf16"):
        (stage,) = stages_of(config_of("gpt2"), ())
        StageRunner(stage, precision).loss("m", x, y)
        flat[precision] = stage.groups["own"].grads
    assert float(torch.nn.functional.cosine_similarity(flat["fp32"], flat["bf16"], dim=0)) > 0.999


def test_the_graphs_of_a_microbatch_are_counted() -> None:
    runner = StageRunner(stages_of(config_of("llama"), (2,))[0])
    x, _ = batch()
    one = runner.activation_bytes(x)
    assert one > x.nbytes
    assert runner.activation_bytes(batch(sequences=4)[0]) > 1.8 * one
    assert runner.held == 0


def test_stage_out_of_range_and_bad_cuts_are_refused() -> None:
    config = config_of("llama")
    for cut, stage, what in (((2,), 2, "stage 2"), ((0,), 0, "cut"), ((3, 2), 0, "cut"), ((1, 2, 3, 4), 0, "stages")):
        with pytest.raises(ModelError, match=what):
            build_stage(config, cut, stage, device="cpu")


GROWTH = """
import json, re
from pathlib import Path

import torch

from swarmflow.compute.families import model_config
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage

def bytes_of(field):
    return 1024 * int(re.search(rf"^{field}:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1])

def growth(work):
    Path("/proc/self/clear_refs").write_text("5")
    before = bytes_of("VmRSS")
    result = work()
    return bytes_of("VmHWM") - before, result

torch.set_num_threads(1)
sizes = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 2,
         "num_key_value_heads": 2, "num_hidden_layers": 17, "vocab_size": 8, "max_position_embeddings": 1024}
stage = build_stage(model_config(sizes), (16,), 0, device="cpu")
init_stage(stage, 0)
runner = StageRunner(stage)
x = torch.zeros(1, 64, dtype=torch.int64)
runner.backward("warm", torch.zeros_like(runner.forward("warm", x)))
x = torch.zeros(1, 1024, dtype=torch.int64)
again, output = growth(lambda: runner.recompute(x))
kept, wanted = growth(lambda: runner.forward("m", x))
assert torch.equal(output, wanted)
print(json.dumps([again, kept]))
"""


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone counts the peak of a process's memory anew")
def test_a_forward_pass_without_a_graph_takes_no_memory_for_one() -> None:
    """Else a peer that takes more microbatches than it has memory for would need what it does not have."""
    # Memory that is freed goes back to the system at once: the allocator's own reserve differs by 80 MB between runs.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", GROWTH]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    again, kept = json.loads(done.stdout)
    assert kept > 50e6, "what is measured is not lost in the noise"
    assert again < kept / 10
