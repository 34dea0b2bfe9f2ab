"""Adapters on stages beside peft: losses, gradients, exports, merged weights, refusals; frozen weights as bytes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from swarmflow.compute.adapters import dropouts_of_adapters, with_adapters
from swarmflow.compute.base_weights import FolderBase, base_leaves, base_root, piece_ranges, read_base, stage_roots
from swarmflow.compute.device_work import LossSum
from swarmflow.compute.dropout import DrawKey, SeededDropout
from swarmflow.compute.export import export_stagewise
from swarmflow.compute.families import dissect, model_config, to_config
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.merging import export_merged
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage
from swarmflow.errors import CheckpointError, ModelError
from swarmflow.finetuning import Lora
from tests.compute.families import tiny
from tests.compute.finetuned import adapted_stages, by_peft, reader_of, save_base
from tests.compute.models import batch, config_of

LORA = Lora(4, 8)
CUT = (1, 3)


Passed = tuple[float, dict[str, torch.Tensor]]


def passed(stages: list[Stage], precision: str = "fp32", *, split: bool = False, key: DrawKey | None = None) -> Passed:
    """Return the loss of a microbatch, and the gradients of all adapters. key: of what they drop."""
    x, targets = batch()
    hidden: torch.Tensor = x
    runners = [StageRunner(stage, precision) for stage in stages]
    for runner in runners[:-1]:
        hidden = runner.forward(0, hidden, key)
    loss, _, gradient = runners[-1].loss(0, hidden, targets, key, defer=split)
    for runner in reversed(runners[:-1]):
        assert gradient is not None
        gradient = runner.backward(0, gradient, defer=split)
    for runner in runners:
        if runner.unfinished(0):
            runner.finish(0)
    found = {}
    for stage in stages:
        for name, _, of_adapter in stage.named_parameters():
            assert of_adapter is not None
            found[name] = of_adapter.clone()
    return loss, found


def expected(model: Any) -> Passed:  # noqa: ANN401
    x, targets = batch()
    logits = model(input_ids=x.long(), use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    unused = {name: torch.zeros_like(parameter) for name, parameter in trained.items() if parameter.grad is None}
    gradients = {name: unused.get(name, parameter.grad) for name, parameter in trained.items()}
    return float(loss.detach()), {name.removeprefix("base_model.model."): grad for name, grad in gradients.items()}


@pytest.mark.parametrize("family", ["llama", "llama-tied", "gpt2", "gpt_neox", "qwen3"])
@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_a_pass_is_that_of_peft(tmp_path: Path, family: str, split: bool) -> None:
    _as_peft(config_of(family), tmp_path, split=split)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_a_pass_of_a_mixture_is_that_of_peft_and_no_expert_has_an_adapter(tmp_path: Path, family: str) -> None:
    """What peft means experts by has none either: in deepseek_v3 the linear layers gate_proj, up_proj, down_proj."""
    names = _as_peft(model_config({**tiny(family), "output_router_logits": False}), tmp_path)
    assert {name.partition(".lora_")[0].rpartition(".")[0].rpartition(".")[2] for name in names} == {"self_attn"}


def _as_peft(config: dict[str, Any], tmp_path: Path, *, split: bool = False) -> list[str]:
    """Compare a pass with that of peft; return the names of the adapters."""
    folder = save_base(config, tmp_path / "base")
    stages = adapted_stages(config, LORA, CUT, folder)
    loss, gradients = passed(stages, split=split)
    wanted, of_peft = expected(by_peft(config, LORA, folder, stages))
    assert loss == pytest.approx(wanted, rel=1e-6)
    assert gradients.keys() == of_peft.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, of_peft[name], rtol=1e-4, atol=1e-5), name
    return list(gradients)


@pytest.mark.parametrize(
    ("lora", "precision"), [(LORA, "fp32"), (Lora(4, 8, quantized=True), "bf16")], ids=["", "4bit"]
)
def test_neither_where_the_state_is_nor_what_is_computed_again_changes_a_bit(
    tmp_path: Path, lora: Lora, precision: str
) -> None:
    config = config_of("llama-tied")
    folder = save_base(config, tmp_path / "base")
    wanted, of_device = passed(adapted_stages(config, lora, CUT, folder), precision)
    stages = adapted_stages(config, lora, CUT, folder, in_host_memory=True)
    for stage in stages:
        stage.block_recompute.on = True
    loss, gradients = passed(stages, precision)
    assert loss == wanted
    assert all(torch.equal(gradients[name], gradient) for name, gradient in of_device.items())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_adapters_drop_what_those_of_peft_drop_and_a_replay_drops_it_again(tmp_path: Path, family: str) -> None:
    """The model's own dropout (gpt2 has some) stays off. Validation drops nothing."""
    config, lora = config_of(family), Lora(4, 8, dropout=0.3)
    folder = save_base(config, tmp_path / "base")
    stages = adapted_stages(config, lora, CUT, folder)
    plain = passed(adapted_stages(config, LORA, CUT, folder))
    key = DrawKey(7, 1, 2)
    loss, gradients = passed(stages, key=key)
    for stage in stages:
        stage.block_recompute.on = True
    again, same = passed(stages, key=key)
    assert again == loss != plain[0]
    assert all(torch.equal(same[name], 2 * gradient) for name, gradient in gradients.items()), "they were added up"
    model = by_peft(config, lora, folder, stages)
    masks = SeededDropout(dropouts_of_adapters)
    blocks = dissect(to_config(config)).blocks_name
    masks.watch(model, enumerate(model.base_model.model.get_submodule(blocks)))
    masks.set_active(on=True)
    with masks.begin(key):
        wanted, of_peft = expected(model)
    assert loss == pytest.approx(wanted, rel=1e-6)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, of_peft[name], rtol=1e-4, atol=1e-5), name
    x: Tensor = batch()[0]
    for stage in stages[:-1]:
        found = StageRunner(stage).evaluate(x)
        assert isinstance(found, Tensor)
        x = found
    total, _ = StageRunner(stages[-1]).evaluate(x, batch()[1])
    assert isinstance(total, LossSum)
    assert total.value == pytest.approx(plain[0], rel=1e-6)


def test_some_modules_alone_may_have_adapters(tmp_path: Path) -> None:
    config, some = config_of("llama"), Lora(2, 2, ("q_proj", "v_proj"))
    folder = save_base(config, tmp_path / "base")
    stages = adapted_stages(config, some, CUT, folder)
    loss, gradients = passed(stages)
    assert len(gradients) == 4 * 2 * 2
    assert loss == pytest.approx(expected(by_peft(config, some, folder, stages))[0], rel=1e-6)


@pytest.mark.parametrize(("half", "quantized", "near"), [(True, False, 0.02), (False, True, 0.02), (True, True, 0.03)])
def test_frozen_weights_in_fewer_bits_change_the_loss_little(
    tmp_path: Path, half: bool, quantized: bool, near: float
) -> None:
    config = config_of("llama")
    folder = save_base(config, tmp_path / "base")
    stages = adapted_stages(config, Lora(4, 8, (), half, quantized), CUT, folder)
    loss, gradients = passed(stages, "bf16" if half else "fp32")
    wanted, of_peft = expected(by_peft(config, LORA, folder, stages))
    assert loss == pytest.approx(wanted, rel=near)
    ours, theirs = (torch.cat([found[name].flatten() for name in gradients]) for found in (gradients, of_peft))
    assert float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0)) > 1 - 4 * near
    whole = adapted_stages(config, LORA, CUT, folder)
    sizes = [sum(stage.layout.base_bytes for stage in some) for some in (stages, whole)]
    assert sizes[0] < (0.3 if quantized else 0.52) * sizes[1]


def test_exports_are_adapters_for_peft_or_a_merged_model(tmp_path: Path) -> None:
    lora = Lora(4, 8, dropout=0.25)
    for family in ("llama", "gpt2"):
        config = config_of(family)
        folder = save_base(config, tmp_path / family / "base")
        stages = adapted_stages(config, lora, CUT, folder)
        model = by_peft(config, lora, folder, stages)
        ids = batch()[0].long()
        wanted = model(input_ids=ids, use_cache=False).logits

        given, out = with_adapters(config, lora), tmp_path / family / "adapters"
        export_stagewise(given, CUT, reader_of(stages), out)
        assert {path.name for path in out.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        loaded = PeftModel.from_pretrained(base, out).eval()
        assert torch.equal(loaded(input_ids=ids, use_cache=False).logits, wanted)
        assert loaded.peft_config["default"].lora_dropout == 0.25

        export_merged(given, CUT, reader_of(stages), folder, tmp_path / family / "merged")
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / family / "merged", dtype=torch.float32)
        assert torch.allclose(merged(input_ids=ids, use_cache=False).logits, wanted, rtol=1e-4, atol=1e-5)
        own = model.merge_and_unload().state_dict()
        for name, values in merged.state_dict().items():
            assert torch.allclose(values, own[name], rtol=1e-5, atol=1e-6), name
        with pytest.raises(CheckpointError, match="--merge is for runs that train adapters"):
            export_merged(config, CUT, reader_of(stages), folder, tmp_path / "x")


def test_a_tied_weight_is_frozen_on_both_ends() -> None:
    given = with_adapters(config_of("llama-tied"), LORA)
    first, middle, last = (stage_layout(given, CUT, number) for number in range(3))
    assert [list(layout.groups) for layout in (first, middle, last)] == [["own"]] * 3
    assert [slot.holders for slot in first.base if slot.name == first.tied] == [("model.embed_tokens.weight",)]
    assert [slot.holders for slot in last.base if slot.name == last.tied] == [("lm_head.weight",)]


@pytest.mark.parametrize(
    ("family", "lora", "complaint"),
    [
        ("llama", Lora(4, 8, ("q_prj",)), "no block has a linear layer 'q_prj'; it may have down_proj, gate_proj"),
        ("mamba", Lora(4, 8), "finetune.lora.targets = 'all-linear': "),
        (
            "deepseek_v3",
            Lora(4, 8, ("up_proj",)),
            "in deepseek_v3 models peft means experts by 'up_proj', and those have no",
        ),
        ("gpt2", Lora(4, 8, quantized=True), 'finetune.base = "4bit": the blocks of gpt2 models have no linear layers'),
    ],
)
def test_impossible_adapters_are_refused(family: str, lora: Lora, complaint: str) -> None:
    with pytest.raises(ModelError) as caught:
        dissect(to_config(with_adapters(model_config(tiny(family)), lora)))
    assert complaint in str(caught.value)


def test_a_strange_configuration_is_refused() -> None:
    for wrong in ({"rank": 0}, {"rank": True}, {"alpha": "8"}, {"targets": [3]}, {"half": 1}, {"more": 1}):
        given = {**config_of("llama"), "finetune_lora": {**LORA.as_json(), **wrong}}
        with pytest.raises(ModelError, match="impossible finetune_lora"):
            dissect(to_config(given))


@pytest.mark.parametrize("lora", [LORA, Lora(4, 8, half=True), Lora(4, 8, half=True, quantized=True)])
def test_frozen_weights_are_the_same_bytes_in_a_folder_and_in_memory(tmp_path: Path, lora: Lora) -> None:
    config = config_of("llama-tied")
    folder = save_base(config, tmp_path / "base")
    stages = adapted_stages(config, lora, CUT, folder)
    roots = stage_roots((stage.layout for stage in stages), folder)
    for stage, root in zip(stages, roots, strict=True):
        base = stage.base
        assert base is not None
        leaves = base_leaves(base.numel(), partial(read_base, base))
        assert base_root(leaves) == root
        source = FolderBase(stage.layout, folder)
        assert source.read(5, 4321) == read_base(base, 5, 4321)
        source.close()
    assert piece_ranges(3 << 20) == [(0, 1 << 20), (1 << 20, 2 << 20), (2 << 20, 3 << 20)]
