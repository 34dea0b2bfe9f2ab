"""Mixtures of experts: the loss that balances them over all stages, and the same bits whenever a stage is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from swarmflow.compute.codec import codec_named, encode_tokens
from swarmflow.compute.device_work import AtOnce
from swarmflow.compute.experts import Balance
from swarmflow.compute.export import ReadParameters, export_stagewise
from swarmflow.compute.families import model_config
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.partition import check_dropout
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import LayoutReader, load_stage
from swarmflow.compute.weights_folder import weights_problems
from swarmflow.errors import FrameError, ModelError
from swarmflow.runtime.execution.microbatch_format import format_of
from tests.compute.families import tiny
from tests.compute.models import VOCAB, batch, stages_of, whole_model
from tests.further import more_of
from tests.runtime.manifests import manifest

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "glm4_moe", "gpt_oss")
FEW = ("mixtral", "gpt_oss")
CUT = (1, 3)


def test_the_loss_of_what_stages_add_up_is_that_of_all_layers_together() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(3 * 10, 8, generator=generator, requires_grad=True) for _ in range(5)]
    balance = Balance(8, 2, 1.0)
    found = balance.loss(balance.counted(layers[:2], 3) + balance.counted(layers[2:], 3))
    oracle: Any = load_balancing_loss_func  # it says that it takes one layer
    wanted = oracle(tuple(layers), 8, 2)
    assert isinstance(wanted, torch.Tensor)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(torch.autograd.grad(found, layers), torch.autograd.grad(wanted, layers), strict=True):
        torch.testing.assert_close(one, other)


def test_places_without_a_token_count_for_no_expert() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(3 * 10, 8, generator=generator, requires_grad=True) for _ in range(4)]
    tokens = torch.arange(10).expand(3, 10) < torch.tensor([[10], [4], [1]])
    balance = Balance(8, 2, 1.0)
    found = balance.loss(balance.counted(layers[:3], 3, tokens) + balance.counted(layers[3:], 3, tokens))
    oracle: Any = load_balancing_loss_func
    wanted = oracle(tuple(layers), 8, 2, tokens.long())
    assert isinstance(wanted, torch.Tensor)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(torch.autograd.grad(found, layers), torch.autograd.grad(wanted, layers), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_weights_do_not_depend_on_the_cut(family: str) -> None:
    whole = {name: values for name, values, _ in stages_of(tiny(family), (), seed=7)[0].named_parameters()}
    for stage in stages_of(tiny(family), CUT, seed=7):
        assert all(torch.equal(values, whole[name]) for name, values, _ in stage.named_parameters())


@pytest.mark.parametrize(
    ("family", "threads"),
    [
        *((family, 1) for family in FAMILIES),
        *((family, 2) for family in FEW),
        *more_of(*((family, 2) for family in FAMILIES if family not in FEW)),
    ],
    indirect=["threads"],
)
def test_a_stage_that_is_computed_again_gives_the_same_bits(family: str, threads: int) -> None:
    """Out of integers a microbatch is taken away to the bit, in whatever order experts add their tokens."""
    stages = stages_of(model_config(tiny(family)), CUT, microbatches=4)
    x, targets = batch()
    first, middle, last = (StageRunner(stage) for stage in stages)
    for runner in (first, middle, last):
        runner.begin(-20)
    entering = first.forward("m", x)
    assert torch.equal(first.recompute(x), entering)
    hidden = middle.forward("m", entering)
    assert torch.equal(middle.recompute(entering), hidden)
    gradient = last.loss("m", hidden, targets)[2]
    assert gradient is not None
    again = last.replay(hidden, 0, targets=targets)
    assert again is not None
    assert torch.equal(again, gradient)
    before = middle.backward("m", gradient)
    assert before is not None
    sums = [group.summed.clone() for group in middle.stage.groups.values()]
    repeated = middle.replay(entering, 1, grad=gradient)
    assert repeated is not None
    assert torch.equal(repeated, before)
    middle.replay(entering, -1, grad=gradient)
    for kept, group in zip(sums, middle.stage.groups.values(), strict=True):
        assert torch.equal(kept, group.summed)


@pytest.mark.parametrize("family", FEW)
def test_blocks_that_are_computed_again_give_the_same_gradients(family: str) -> None:
    x, targets = batch()
    found: list[list[torch.Tensor]] = []
    for again in (False, True):
        runners = [StageRunner(stage) for stage in stages_of(model_config(tiny(family)), CUT)]
        hidden: torch.Tensor = x
        for runner in runners:
            runner.stage.block_recompute.on = again
        for runner in runners[:-1]:
            hidden = runner.forward("m", hidden)
        gradient = runners[-1].loss("m", hidden, targets)[2]
        for runner in reversed(runners[:-1]):
            assert gradient is not None
            gradient = runner.backward("m", gradient)
        found.append([group.grads for runner in runners for group in runner.stage.groups.values()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_half_precision_counts_the_same_choices() -> None:
    x, targets = batch()
    losses = []
    for precision in ("fp32", "bf16"):
        hidden: torch.Tensor = x
        runners = [StageRunner(stage, precision) for stage in stages_of(model_config(tiny("qwen3_moe")), CUT)]
        for runner in runners[:-1]:
            hidden = runner.forward("m", hidden)
        assert hidden.dtype == torch.float32
        assert bool((hidden[:, -1] == 3 * x.shape[1]).all())  # tokens that passed a router, on two stages
        losses.append(runners[-1].loss("m", hidden, targets)[0])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_what_is_beside_hidden_states_travels_whole_in_any_codec() -> None:
    middle = _middle()
    of = manifest(model=model_config(tiny("mixtral")), cut=CUT, seq_len=12, beside=middle.layout.beside)
    form, codec = format_of(of), codec_named("blockwise8")
    sent = torch.randn(2, 12 * 32 + 9, generator=torch.Generator().manual_seed(0))
    work = AtOnce(middle.device)
    wire = form.encode(middle, sent, codec, work).wire
    assert wire is not None
    assert len(wire) <= of.tensor_bytes_max
    targets = _tokens()
    received = form.input(middle, wire, targets, codec)
    assert isinstance(received, torch.Tensor)
    assert torch.equal(received[:, -9:], sent[:, -9:])
    assert not torch.equal(received, sent)
    torch.testing.assert_close(received, sent, rtol=0.05, atol=0.05)
    torch.testing.assert_close(form.gradient(middle, wire, codec), received)
    for broken in (wire[:-1], wire[:20], bytes(wire) + b"x", bytes(wire[:-4]) + b"\x00\x00\xc0\x7f"):
        with pytest.raises(FrameError):
            form.input(middle, broken, targets, codec)
    assert form.encode(middle, torch.full_like(sent, torch.nan), codec, work).wire is None


def test_numbers_that_an_adaptive_codec_has_left_out_do_not_change_what_is_beside_them() -> None:
    runner, x = StageRunner(_middle()), torch.ones(2, 12 * 32 + 9)
    x[:, : 6 * 32] = 0.0
    whole = runner.forward("m", x)
    runner.begin(0, kept_share=0.5)
    assert torch.equal(runner.forward("m", x)[:, -5:], whole[:, -5:])


@pytest.mark.parametrize(("family", "noise"), [("mixtral", 0.1), ("phimoe", 0.01)])
def test_noise_that_a_replay_cannot_draw_again_is_refused_with_dropout(family: str, noise: float) -> None:
    config = tiny(family)
    check_dropout(config | {"router_jitter_noise": 0.0, "input_jitter_noise": 0.0})
    with pytest.raises(ModelError, match=f"{family} are not supported: .*set model.dropout to false"):
        check_dropout(config | {"router_jitter_noise": noise, "input_jitter_noise": noise})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_loaded_by_transformers(family: str, tmp_path: Path) -> None:
    config = model_config(tiny(family))
    stages = stages_of(config, CUT, seed=5)

    def reader(stage: int) -> ReadParameters:
        return lambda group, start, stop: memory_of(stages[stage].groups[group].params[start:stop])

    export_stagewise(config, CUT, reader, tmp_path / "out")
    factory: Any = AutoModelForCausalLM  # its types do not know output_loading_info
    model, info = factory.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    hidden: torch.Tensor = batch()[0]
    with torch.no_grad():
        for stage in stages:
            hidden = stage.forward(hidden)
        torch.testing.assert_close(model(input_ids=batch()[0].long()).logits, hidden, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [*FAMILIES, "minimax_m2", "nemotron_h", "olmo_hybrid", "kimi_linear"])
def test_a_folder_that_transformers_has_saved_is_read(family: str, tmp_path: Path) -> None:
    """Their checkpoints hold experts one by one, or a kernel's rows in several, under names of their own."""
    config = model_config(tiny(family))
    truth = stages_of(config, (), seed=3)
    whole_model(config, truth).save_pretrained(tmp_path)
    assert weights_problems(config, tmp_path) == []
    expected = {name: values for name, values, _ in truth[0].named_parameters()}
    for number in range(3):
        part = build_stage(config, CUT, number, device="cpu")
        load_stage(part, tmp_path)
        for name, values, _ in part.named_parameters():
            assert torch.equal(values, expected[name]), name
    with LayoutReader(truth[0].layout, tmp_path) as reader:
        whole = torch.frombuffer(bytearray(memory_of(truth[0].groups["own"].params)), dtype=torch.float32)
        for start in range(0, whole.numel() - 700, 997):
            found = torch.frombuffer(bytearray(reader.read("own", start, start + 700)), dtype=torch.float32)
            assert torch.equal(found, whole[start : start + 700])


def test_an_expert_that_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    config = model_config(tiny("mixtral"))
    whole_model(config, stages_of(config, ())).save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", "model.layers.2.block_sparse_moe.experts.3.w2.weight"
    tensors = load_file(file)
    save_file({**tensors, name: torch.zeros(32, 4)}, file)
    [line] = weights_problems(config, tmp_path)
    assert "model.layers.2.mlp.experts.down_proj" in line
    del tensors[name]
    save_file(tensors, file)
    [line] = weights_problems(config, tmp_path)
    assert "no tensor model.layers.2.mlp.experts.down_proj" in line


def _middle() -> Stage:
    return stages_of(model_config(tiny("mixtral")), CUT)[1]


def _tokens() -> memoryview:
    return encode_tokens((batch()[1] % VOCAB).int().numpy())
