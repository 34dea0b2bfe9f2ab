"""A module cut by its graph of operators computes what it computes whole, wherever it is cut."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from swarmflow.compute.codec import Codec
from swarmflow.compute.dropout import DrawKey, seed_of
from swarmflow.compute.graphs.capture import OperatorGraph, capture, recapture
from swarmflow.compute.graphs.casting import is_mixed_norm
from swarmflow.compute.graphs.description import BatchTensor, GraphModel, graph_as_json, graph_model
from swarmflow.compute.graphs.dropping import is_drop, without_dropout
from swarmflow.compute.graphs.stage import GraphStage
from swarmflow.compute.graphs.user_functions import build_module
from swarmflow.compute.grouped_stage import GraphInput
from swarmflow.compute.layout_types import TIED, StageLayout
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.topk import TopKCodec, kept_share_of
from swarmflow.errors import ModelError
from tests.compute.graphs.networks import CLASSES, ITEMS, WIDTH, Skipping
from tests.further import more

HERE = "tests.compute.graphs.networks"
SEED = 5
VECTORS = [BatchTensor("x", (ITEMS, WIDTH), "float32"), BatchTensor("y", (ITEMS,), "int64")]
IMAGES = [BatchTensor("pixel_values", (ITEMS, 3, 16, 16), "float32"), BatchTensor("labels", (ITEMS,), "int64")]
SENTENCES = [
    BatchTensor("input_ids", (ITEMS, 8), "int64"),
    BatchTensor("attention_mask", (ITEMS, 8), "int64"),
    BatchTensor("labels", (ITEMS, 6), "int64"),
]

Gradients = dict[str, Tensor]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Without the records of torch's tracing, which take most of its time while a test keeps all."""
    before = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.WARNING)
    yield
    logging.getLogger("torch").setLevel(before)


def batch_of(inputs: Sequence[BatchTensor]) -> dict[str, Tensor]:
    """A random microbatch."""
    drawn = torch.Generator().manual_seed(SEED)
    return {
        each.name: torch.randn(each.shape, generator=drawn)
        if each.dtype == "float32"
        else torch.randint(1, CLASSES, each.shape, generator=drawn)
        for each in inputs
    }


def whole(
    function: str, config: dict[str, object], batch: dict[str, Tensor], *, autocast: bool = False
) -> tuple[float, Gradients]:
    """The loss and the gradients of the module itself."""
    module = build_module(f"{HERE}:{function}", config, SEED)
    with without_dropout(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = module(**batch)
    loss.backward()
    named = module.module.named_parameters(remove_duplicate=False)
    return float(loss.detach()), {name: each.grad for name, each in named if each.grad is not None}


def in_stages(
    graph: OperatorGraph,
    model: GraphModel,
    cut: Sequence[int],
    batch: dict[str, Tensor],
    *,
    defer: bool = False,
    precision: str = "fp32",
    in_host_memory: bool = False,
    key: DrawKey | None = None,
    recompute: bool = False,
) -> tuple[float, Gradients]:
    """The same of its stages, one after another. defer: each backward pass in two parts. key: of what is dropped."""
    cpu, drops = torch.device("cpu"), key is not None
    stages = [
        GraphStage(graph, model, cut, number, cpu, None, in_host_memory=in_host_memory, drops=drops)
        for number in range(len(cut) + 1)
    ]
    for stage in stages:
        stage.block_recompute.on = recompute
    runners = [StageRunner(stage, precision) for stage in stages]
    entered = GraphInput(None, batch)
    for stage, runner in zip(stages[:-1], runners, strict=False):
        stage.set_values(graph.values)
        again = runner.recompute(entered, key)
        entered = GraphInput(runner.forward("m", entered, key), batch)
        assert entered.boundary is not None
        assert torch.equal(again, entered.boundary), "a repetition has the same bits"
    stages[-1].set_values(graph.values)
    loss, items, gradient = runners[-1].loss("m", entered, torch.empty(0), key, defer=defer)
    assert items == ITEMS
    for runner in reversed(runners[:-1]):
        assert gradient is not None
        gradient = runner.backward("m", gradient, defer=defer)
    found: Gradients = {}
    for stage, runner in zip(stages, runners, strict=True):
        if runner.unfinished("m"):
            runner.finish("m")
        for name, _, own in stage.named_parameters():
            assert own is not None
            found[name] = own if name not in found else found[name] + own
    return loss, found


def captured(
    function: str,
    config: dict[str, object],
    inputs: Sequence[BatchTensor],
    precision: str = "fp32",
    *,
    dropout: bool = False,
) -> tuple[OperatorGraph, GraphModel]:
    graph = capture(f"{HERE}:{function}", config, inputs, SEED, precision, dropout=dropout)
    return graph, graph.describe(f"{HERE}:{function}", config, ITEMS)


def cuts_of(model: GraphModel, stages: int, count: int) -> list[tuple[int, ...]]:
    """Random cuts of those that are possible."""
    possible = []
    places = [place for place in range(1, model.operators) if model.crossing[place] >= 0]
    for cut in itertools.combinations(places, stages - 1):
        try:
            model.check_cut(cut)
        except ModelError:
            continue
        possible.append(cut)
    return random.Random(SEED).sample(possible, min(count, len(possible)))


def assert_placed(graph: OperatorGraph, model: GraphModel, cut: Sequence[int], inputs: Sequence[BatchTensor]) -> None:
    """Runs the stages on another device than the one on which the graph was captured; values they have none there."""
    meta = torch.device("meta")
    batch = {each.name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype), device=meta) for each in inputs}
    boundary: Tensor | None = None
    for number in range(len(cut) + 1):
        stage = GraphStage(graph, model, cut, number, meta, None)
        boundary = stage.trunk(stage.enter(GraphInput(boundary, batch))[1])
        assert boundary.device == meta


def assert_same(found: tuple[float, Gradients], wanted: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    largest = max(float(each.abs().max()) for each in wanted[1].values())
    for name, gradient in found[1].items():
        other = wanted[1].get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5 * max(1.0, largest))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 200))])
def test_a_random_graph_cut_anywhere_has_the_gradients_of_the_whole(seed: int) -> None:
    config: dict[str, object] = {"seed": seed, "operators": 14}
    graph, model = captured("random_graph", config, VECTORS)
    batch = batch_of(VECTORS)
    wanted = whole("random_graph", config, batch)
    cuts = [(), *cuts_of(model, 2, 3), *cuts_of(model, 3, 6)]
    assert len(cuts) > 2
    for number, cut in enumerate(cuts):
        assert_same(in_stages(graph, model, cut, batch, defer=number % 2 == 1), wanted)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("resnet", IMAGES),
        pytest.param("vit", IMAGES, marks=pytest.mark.extended),
        pytest.param("t5", SENTENCES, marks=pytest.mark.extended),
    ],
)
def test_models_that_are_no_decoders_are_cut_by_their_graphs(kind: str, inputs: list[BatchTensor]) -> None:
    config: dict[str, object] = {"kind": kind}
    graph, model = captured("of_transformers", config, inputs)
    batch = batch_of(inputs)
    wanted = whole("of_transformers", config, batch)
    cuts = cuts_of(model, 3, 5)
    for cut in cuts:
        assert_same(in_stages(graph, model, cut, batch), wanted)
        assert_placed(graph, model, cut, inputs)
    shares = [TIED in model.layout(cut, 0).groups for cut in cuts]
    assert all(shares) if kind == "t5" else not any(shares)


@pytest.mark.parametrize("kind", ["dropout", "no_grad", "in_place", "fixed", *more("long")])
def test_what_a_module_may_do(kind: str) -> None:
    """Dropout is off; parts without gradients, writes into tensors and fixed parameters are as in the module."""
    graph, model = captured("odd", {"kind": kind}, VECTORS)
    batch = batch_of(VECTORS)
    wanted = whole("odd", {"kind": kind}, batch)
    for cut in ((), *cuts_of(model, 2, 1 if kind == "long" else 4)):
        found = in_stages(graph, model, cut, batch)
        assert_same(found, wanted)
        assert found[1].keys() == wanted[1].keys()


class _Masked(TorchFunctionMode):
    """Dropouts as a run has them: the mask of each follows from the microbatch and from how many came before it."""

    def __init__(self, key: DrawKey) -> None:
        super().__init__()
        self._key = key
        self._count = 0

    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Tensor:
        kwargs = kwargs or {}
        if func not in (torch.nn.functional.dropout, torch.nn.functional.dropout1d):
            return func(*args, **kwargs)
        x, share = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        seed = seed_of(self._key.seed, self._key.step, self._key.microbatch, self._count)
        self._count += 1
        shape = x.shape if func is torch.nn.functional.dropout else (*x.shape[:-1], 1)
        mask = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= share) / (1 - share)
        return x.mul_(mask) if kwargs.get("inplace") else torch.mul(x, mask)


def test_with_dropout_the_stages_drop_what_the_whole_drops_and_a_repetition_drops_it_again() -> None:
    config: dict[str, object] = {"kind": "dropout"}
    graph, model = captured("odd", config, VECTORS, dropout=True)
    batch = batch_of(VECTORS)
    without = whole("odd", config, batch)[0]
    for index in range(2):
        key = DrawKey(SEED, 3, index)
        module = build_module(f"{HERE}:odd", config, SEED)
        with _Masked(key):
            loss = module(**batch)
        loss.backward()
        named = module.module.named_parameters(remove_duplicate=False)
        wanted = float(loss.detach()), {name: each.grad for name, each in named if each.grad is not None}
        assert wanted[0] != pytest.approx(without)
        for cut in ((), *cuts_of(model, 3, 4)):
            assert_same(in_stages(graph, model, cut, batch, key=key), wanted)


def test_an_attention_that_drops_is_torchs_where_nothing_is_dropped() -> None:
    """With masks of both kinds, causal, with a scale, and with fewer keys than queries."""
    config: dict[str, object] = {"kind": "attention"}
    graph, model = captured("odd", config, VECTORS, dropout=True)
    batch, wanted = batch_of(VECTORS), whole("odd", config, batch_of(VECTORS))
    assert sum(is_drop(node) for node in graph.operators) == 3
    for cut in cuts_of(model, 2, 3):
        assert_same(in_stages(graph, model, cut, batch), wanted)
        assert in_stages(graph, model, cut, batch, key=DrawKey(SEED, 0, 0))[0] != pytest.approx(wanted[0])


@pytest.mark.parametrize(("kind", "name"), [("alpha", "alpha_dropout"), ("heads", "multi_head_attention_forward")])
def test_a_dropout_that_no_mask_repeats_is_refused(kind: str, name: str) -> None:
    captured("odd", {"kind": kind}, VECTORS)
    with pytest.raises(ModelError, match=f"model.module = .*: its {name} "):
        captured("odd", {"kind": kind}, VECTORS, dropout=True)


@pytest.mark.parametrize(
    ("function", "kind", "inputs"),
    [
        ("odd", "no_grad", VECTORS),
        ("odd", "einsum", VECTORS),
        ("odd", "recurrent", VECTORS),
        ("odd", "copied", VECTORS),
        ("of_transformers", "resnet", IMAGES),
        pytest.param("of_transformers", "vit", IMAGES, marks=pytest.mark.extended),
        pytest.param("of_transformers", "t5", SENTENCES, marks=pytest.mark.extended),
    ],
)
def test_stages_in_bf16_have_the_bits_of_autocast(function: str, kind: str, inputs: list[BatchTensor]) -> None:
    """With one copy of the weights in bf16 for all microbatches, and with the weights in the memory of the host."""
    graph, model = captured(function, {"kind": kind}, inputs, "bf16")
    batch = batch_of(inputs)
    loss, gradients = whole(function, {"kind": kind}, batch, autocast=True)
    assert model.bf16_only
    for number, cut in enumerate(cuts_of(model, 3, 4)):
        odd, late = number % 2 == 1, number > 1
        found = in_stages(graph, model, cut, batch, defer=odd, precision="bf16", in_host_memory=late)
        # What looks up in a shared weight, or has two users, may be added up in another order; recurrent layers have
        # fused kernels on a CPU.
        if kind in ("t5", "recurrent"):
            assert found[0] == pytest.approx(loss, rel=1e-3)
            for name, gradient in found[1].items():
                torch.testing.assert_close(gradient, gradients[name], rtol=1e-2, atol=1e-2)
        else:
            assert found[0] == loss
            assert all(torch.equal(gradient, gradients[name]) for name, gradient in found[1].items())


def test_on_other_devices_than_the_cpu_a_norm_has_all_in_one_dtype() -> None:
    """CUDA's kernels refuse a bf16 input with fp32 weights, as the CPU's autocast leaves them."""
    graph, model = captured("odd", {"kind": "norms"}, VECTORS, "bf16")
    mixed = [node for node in graph.operators if is_mixed_norm(node)]
    assert len(mixed) == 2
    assert_placed(graph, model, cuts_of(model, 2, 1)[0], VECTORS)
    [unit] = GraphStage(graph, model, (), 0, torch.device("meta"), None).units.values()
    nodes = [node for part in unit.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes]
    norms = [node for node in nodes if node.target in {each.target for each in mixed}]
    assert len(norms) == 2
    assert all(norm.args[0].args[1] is torch.float32 for norm in norms)
    assert all(user.args[1] is torch.bfloat16 for norm in norms for user in norm.users)


def test_a_share_that_is_none_is_refused() -> None:
    captured("odd", {"kind": "share"}, VECTORS)
    with pytest.raises(ModelError, match=r"its dropout drops a share of 1\.5; it has to be from 0 to 1"):
        captured("odd", {"kind": "share"}, VECTORS, dropout=True)


@pytest.mark.parametrize(
    ("function", "config", "reason"),
    [
        ("odd", {"kind": "random"}, "draws random numbers"),
        ("odd", {"kind": "sparse"}, "aten.embedding.default has a sparse gradient: sparse=False"),
        ("odd", {"kind": "buffer"}, "writes into the buffer running"),
        ("odd", {"kind": "branch"}, "cannot be exported"),
        ("odd", {"kind": "no loss"}, "returns no loss"),
        ("odd", {"kind": "half"}, "parameter middle.weight is torch.float16"),
        ("odd", {"sort": 1}, "fails with this module_config: TypeError"),
        ("no_module", {}, "returns str"),
        ("nothing", {}, "has no nothing"),
    ],
)
def test_what_stages_cannot_do_is_refused_by_name(function: str, config: dict[str, object], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        capture(f"{HERE}:{function}", config, VECTORS, SEED)


class _Sent(torch.autograd.Function):
    """What a codec leaves of a tensor, and the gradients of that alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codec: Codec) -> Tensor:  # noqa: ANN401
        sent = codec.decode(codec.encode(x.reshape(1, -1)), (1, x.numel()), torch.float32).view(x.shape)
        ctx.save_for_backward(sent != 0)
        return sent

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        return gradients[0] * ctx.saved_tensors[0], None


def test_of_what_a_codec_drops_there_is_no_gradient_and_what_it_keeps_is_enlarged_once() -> None:
    """Also where it crosses two boundaries."""
    graph, model = captured("skipping", {}, VECTORS)
    batch, codec, factor = batch_of(VECTORS), TopKCodec(64), 2.0
    cut = [each.uses[0] for each in model.parameters if each.name in ("middle.weight", "last.weight")]
    stages = [GraphStage(graph, model, cut, number, torch.device("cpu"), None) for number in range(3)]
    runners = [StageRunner(stage) for stage in stages]
    entered = GraphInput(None, batch)
    for stage, runner in zip(stages, runners, strict=True):
        stage.set_values(graph.values)
        runner.begin(0, kept_share=kept_share_of(codec))
        if not stage.last:
            left = runner.forward("m", entered)
            entered = GraphInput(codec.decode(codec.encode(left), left.shape, torch.float32), batch)
    loss, _, gradient = runners[-1].loss("m", entered, torch.empty(0))
    for runner in reversed(runners[:-1]):
        assert gradient is not None
        gradient = runner.backward("m", gradient)
    found = {name: own for stage in stages for name, _, own in stage.named_parameters() if own is not None}

    module = build_module(f"{HERE}:skipping", {}, SEED).module
    assert isinstance(module, Skipping)
    sent: Any = _Sent.apply
    early = sent(module.first(batch["x"]), codec) * factor
    both = sent(torch.stack([early, module.middle(early)]), codec)
    wanted = torch.nn.functional.cross_entropy(module.last(both[1] * factor) * both[0], batch["y"], reduction="sum")
    wanted.backward()
    gradients = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    assert_same((loss, found), (float(wanted.detach()), gradients))


def test_a_loss_that_autocast_leaves_in_bf16_is_refused() -> None:
    captured("odd", {"kind": "squares"}, VECTORS)
    with pytest.raises(ModelError, match=r"its loss is a sum in bf16; compute it of logits\.float\(\)"):
        captured("odd", {"kind": "squares"}, VECTORS, "bf16")


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ModelError, match=r"no_such_package\.at_all:f' cannot be imported .* install its package"):
        capture("no_such_package.at_all:f", {}, VECTORS, SEED)


def laid_out(model: GraphModel, place: int) -> StageLayout | None:
    """The first stage of two, if the module can be cut here."""
    try:
        return model.layout((place,), 0)
    except ModelError:
        return None


def test_a_parameter_may_be_shared_by_the_ends_alone() -> None:
    _, model = captured("odd", {"kind": "shared"}, VECTORS)
    [shared] = [each for each in model.parameters if each.name == "first.weight"]
    low, high = shared.uses
    with pytest.raises(ModelError, match=r"first\.weight would be shared by the stages"):
        model.check_cut((low + 1, high + 1))
    ends = [layout for place in range(model.operators) if (layout := laid_out(model, place)) and TIED in layout.groups]
    assert ends
    assert all(layout.spread == {TIED: (0, 1)} for layout in ends), "both ends add up its gradient"


def test_a_cut_through_integers_is_refused_and_others_are_named() -> None:
    _, model = captured("odd", {"kind": "integers"}, VECTORS)
    place = next(place for place, elements in enumerate(model.crossing) if elements < 0)
    with pytest.raises(ModelError, match="a tensor crosses there that is not fp32, nor bf16 of a run in bf16; near"):
        model.check_cut((place,))


def test_a_peer_with_another_network_is_told_so() -> None:
    _, model = captured("odd", {"kind": "plain"}, VECTORS)
    recapture(model, SEED)
    for other, seed in ((replace(model, module_config={"kind": "tuple"}), SEED + 1), (replace(model, digest=""), SEED)):
        with pytest.raises(ModelError, match="makes another network here"):
            recapture(other, seed)


def test_a_manifest_that_describes_a_module_wrongly_is_refused() -> None:
    _, model = captured("odd", {"kind": "plain"}, VECTORS)
    whole_of_it = graph_as_json(model)
    assert graph_model(whole_of_it) == model
    wrong = [
        {**whole_of_it, "items": 0},
        {**whole_of_it, "digest": 3},
        {**whole_of_it, "inputs": [{"name": "x", "shape": [2], "dtype": "object"}]},
        {**whole_of_it, "inputs": [{"name": "x", "shape": [-2], "dtype": "int64"}]},
        {**whole_of_it, "parameters": [{"name": "w", "shape": [2], "uses": [10_000]}]},
        {**whole_of_it, "parameters": [{"name": "w", "shape": [2], "uses": []}]},
    ]
    for each in wrong:
        with pytest.raises(ModelError, match="manifest"):
            graph_model(each)
