"""Cuts a model into stages so that the slowest stage is as fast as it can be."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from swarmflow.compute.adapters import adapters_of, with_adapters
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.experts import balance_of
from swarmflow.compute.families import dissect, fill_from_above, init_module, one_line, shrink, to_config, unsupported
from swarmflow.compute.grouped_stage import PackedInput
from swarmflow.compute.layout import check_cut
from swarmflow.compute.model_keys import positions_of
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.sharing import shared_groups
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.errors import ModelError

_TRIAL_TOKENS = 64
_TRIALS_MIN = 2  # the first one is slower
_TRIALS_S = 0.1  # small parts are tried more often, each for as long
WHOLE_GROUPS_WORTH = 1.1  # how much slower the slowest stage may be, for blocks that share weights to be on one
_KINDS_WITHIN = 8  # blocks: hybrid families repeat their kinds of blocks sooner
# Keys of lengths above which a family computes otherwise (longrope's frequencies, llama4's temperature), and how many
# tokens more than that a row then has, at least.
_LENGTHS = {"original_max_position_embeddings": 1, "floor_scale": 0}


@dataclass(frozen=True)
class BlockCosts:
    """Seconds of forward and backward of one microbatch: the embedding, one block, the head with the loss."""

    embedding_s: float
    block_s: float
    head_s: float


def plan_cut(config: Mapping[str, Any], stages: int, costs: BlockCosts | None = None) -> tuple[int, ...]:
    """The first block of stages 1, 2, ...: an even cut by measured compute.

    Where blocks share their weights, it does not separate them if the slowest stage is hardly slower then: weights that
    several stages have are reduced over the peers of all of these. costs: measured on this machine when not given.
    Raises ModelError when there are more stages than blocks.
    """
    blocks = block_count(config)
    if not 1 <= stages <= blocks:
        raise ModelError(f"{stages} stages asked of a model with {blocks} blocks; allowed: 1 to {blocks}")
    if stages == 1:
        return ()
    costs = measure_costs(config) if costs is None else costs
    even = _even(blocks, stages, costs)
    if groups := shared_groups(to_config(config), blocks):
        whole = _beside_groups(groups, stages, costs)
        if _slowest_s(whole, costs) <= WHOLE_GROUPS_WORTH * _slowest_s(even, costs):
            even = whole
    return check_cut(list(itertools.accumulate(even[:-1])), blocks)


def _even(blocks: int, stages: int, costs: BlockCosts) -> list[int]:
    """Return how many blocks each stage gets."""
    counts = [1] * stages
    load = [costs.block_s] * stages
    load[0] += costs.embedding_s
    load[-1] += costs.head_s
    # Like blocks: giving each next one to the stage that it leaves least loaded makes the slowest stage fastest.
    heap = [(seconds + costs.block_s, stage) for stage, seconds in enumerate(load)]
    heapq.heapify(heap)
    for _ in range(blocks - stages):
        seconds, stage = heap[0]
        counts[stage] += 1
        heapq.heapreplace(heap, (seconds + costs.block_s, stage))
    return counts


def _beside_groups(groups: Sequence[range], stages: int, costs: BlockCosts) -> list[int]:
    """Return how many blocks each stage gets where it has whole groups, or is one of several with one group alone."""
    ends = [
        (costs.embedding_s if group is groups[0] else 0.0, costs.head_s * (group is groups[-1])) for group in groups
    ]
    if stages <= len(groups):
        mean = BlockCosts(costs.embedding_s, costs.block_s * groups[-1].stop / len(groups), costs.head_s)
        taken = iter(groups)
        return [sum(map(len, itertools.islice(taken, count))) for count in _even(len(groups), stages, mean)]
    parts = [1] * len(groups)
    for _ in range(stages - len(groups)):
        loads = [
            (len(group) * costs.block_s + sum(end)) / count if count < len(group) else 0.0
            for group, end, count in zip(groups, ends, parts, strict=True)
        ]
        parts[loads.index(max(loads))] += 1
    cuts = zip(groups, parts, ends, strict=True)
    return [
        n
        for group, count, (first, last) in cuts
        for n in _even(len(group), count, BlockCosts(first, costs.block_s, last))
    ]


def _slowest_s(counts: Sequence[int], costs: BlockCosts) -> float:
    seconds = [count * costs.block_s for count in counts]
    seconds[0] += costs.embedding_s
    seconds[-1] += costs.head_s
    return max(seconds)


def block_count(config: Mapping[str, Any]) -> int:
    """Number of blocks of a model. Raises ModelError."""
    return int(to_config(config).num_hidden_layers)


def measure_costs(config: Mapping[str, Any], *, tokens: int = _TRIAL_TOKENS) -> BlockCosts:
    """Measures on a few blocks, as three stages; the whole model is never built. Raises ModelError.

    The best of several trials of each, in CPU time of one thread: several wait for each other while something else
    computes on this machine, and that would cut the model.
    """
    lora = adapters_of(config)
    whole = lora and replace(lora, half=False, quantized=False)  # what parts cost beside each other is about the same
    few, between = few_blocks(with_adapters(config, whole))
    tokens = min(tokens, positions_of(config) or tokens)
    seconds = [_stage_seconds(few, (1, 1 + between), stage, tokens) for stage in range(3)]
    block_s = max(seconds[1] / between, 1e-9)
    return BlockCosts(max(0.0, seconds[0] - block_s), block_s, max(0.0, seconds[2] - block_s))


def few_blocks(config: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The model with its first blocks only, among them one of each kind, and how many lie between its first and last.

    Raises ModelError.
    """
    count = max(3, _telling_blocks(config))
    return shrink(config, count), count - 2


def check_family(config: Mapping[str, Any]) -> None:
    """Compares a few blocks on two stages with transformers' own model, on random weights and a small vocabulary.

    Raises ModelError when they do not run, when the logits differ (then the family does something between its blocks
    that stages lack) or when they depend on later tokens.
    """
    config = with_adapters(config, None)
    whole = to_config(config)
    try:
        reason = _compare(shrink(config, _telling_blocks(config), vocab_size=32))
    except ModelError:
        raise
    except Exception as error:  # any family fails in its own way when it is cut
        raise unsupported(whole, f"they do not run in stages ({type(error).__name__}: {one_line(error)})") from error
    if reason:
        raise unsupported(whole, reason)


def _compare(small: Mapping[str, Any], *, dropout: bool = False) -> str | None:
    """What is wrong with two stages of this model, None: nothing. dropout: with its attention; nothing is dropped."""
    cut = (block_count(small) // 2,)
    parts = [build_stage(small, cut, stage, device="cpu", dropout=dropout) for stage in range(2)]
    whole = dissect(to_config(small), dropout=dropout).model
    whole.to_empty(device="cpu")
    whole.tie_weights()
    ids = torch.arange(8).view(1, 8) % 32
    with torch.no_grad():
        for part in parts:
            init_stage(part, seed=0)
        for module in whole.modules():
            if any(True for _ in module.buffers(recurse=False)):
                init_module(whole, module)
        fill_from_above(whole)
        own = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
        for part in parts:
            for name, values, _ in part.named_parameters():
                own[name].copy_(values)
        output = whole(input_ids=ids, use_cache=False)
        got = parts[1].forward(hidden := parts[0].forward(ids))
        balance = parts[1].extra_loss(parts[1].trunk(hidden), ids)
        other = ids.clone()
        other[0, -1] = 31
        later = parts[1].forward(parts[0].forward(other))
    if not torch.allclose(got, output.logits, rtol=1e-4, atol=1e-5):
        return "cut into stages they give other results: they do something between their parts, such as scaling"
    if not torch.allclose(got[:, :-1], later[:, :-1], rtol=1e-4, atol=1e-5):
        return "a token sees later ones, so the next token cannot be learnt; set is_decoder to true where they have it"
    if not _is_balance(balance, whole, output, ids.numel()):
        return "the loss that balances their experts is a special one; set output_router_logits to false"
    gradient = StageRunner(parts[1]).replay(hidden, 0, targets=ids, draw=DrawKey(0, 0, 0))
    if gradient is None or not bool(gradient.isfinite().all()):
        return "their gradients are not finite"
    return None


def check_dropout(config: Mapping[str, Any]) -> None:
    """Compares a few blocks as `check_family`, with the attention that drops out, and computes them twice with dropout.

    Raises ModelError when they differ from transformers', or when the same key does not give the same bits.
    """
    config = with_adapters(config, None)
    small = shrink(config, _telling_blocks(config), vocab_size=32)
    if reason := _compare(small, dropout=True):
        raise unsupported(to_config(config), f"with model.dropout, {reason}")
    part = build_stage(small, (), 0, device="cpu", dropout=True)
    init_stage(part, seed=0)
    with torch.no_grad():
        once, again = (part.forward(torch.arange(16).view(2, 8), DrawKey(0, 0, 0)) for _ in range(2))
    if not torch.equal(once, again):
        reason = "in training they draw random numbers that a replay cannot draw again; set model.dropout to false"
        raise unsupported(to_config(config), f"{reason}, or what adds noise to their routers to 0")


def _is_balance(found: Tensor | None, whole: PreTrainedModel, output: ModelOutput, tokens: int) -> bool:
    """Return whether a loss that balances experts is the one that transformers has computed for so many tokens.

    None: there is none, and transformers has to have none either.
    """
    own, balance = output.get("aux_loss"), balance_of(whole)
    if found is None or not isinstance(own, Tensor) or balance is None:
        return found is None and not isinstance(own, Tensor)
    return torch.allclose(found, balance.coefficient * own.float() * tokens, rtol=1e-4)


def check_packing(config: Mapping[str, Any], seq_len: int) -> None:
    """Compares a few blocks on a row of two documents with the same on each of them alone.

    seq_len: tokens of a row of the run; lengths that it exceeds are within the documents of this row too. Raises
    ModelError when a document sees something of the other one, or is computed at other positions.
    """
    config = with_adapters(config, None)
    small, exceeded = _exceeding(shrink(config, _telling_blocks(config), vocab_size=32), seq_len, 6)
    part = build_stage(small, (), 0, device="cpu")
    init_stage(part, seed=0)
    ids = torch.arange(12).view(1, 12) * 5 % 32
    positions = torch.tensor([[*range(7), *range(5)]])
    try:
        with torch.no_grad():
            together = part.forward(PackedInput(ids, positions))
            alone = torch.cat([part.forward(some) for some in (ids[:, :7], ids[:, 7:])], dim=1)
        apart = torch.allclose(together, alone, rtol=1e-4, atol=1e-5)
    except Exception as error:  # a family may take no positions
        raise _without_packing(config, one_line(error)) from error
    if not apart:
        where = f", where data.seq_len is above {min(exceeded)}" if exceeded else ""
        raise _without_packing(config, f"a document depends on the others{where}")


def _exceeding(config: Mapping[str, Any], seq_len: int, trial: int) -> tuple[dict[str, Any], list[int]]:
    """Return a configuration that has `trial` for each length that a row of seq_len exceeds, and these lengths."""
    changed, exceeded = dict(config), list[int]()
    for key, value in config.items():
        if isinstance(value, dict):
            changed[key], within = _exceeding(value, seq_len, trial)
            exceeded += within
        elif key in _LENGTHS and isinstance(value, int | float) and value + _LENGTHS[key] <= seq_len:
            changed[key] = trial
            exceeded.append(int(value))
    return changed, exceeded


def _without_packing(config: Mapping[str, Any], reason: str) -> ModelError:
    family = to_config(config).model_type
    return ModelError(
        f'data.packing = "bfd": models of type {family} cannot keep the documents of a row apart ({reason}); '
        'use "none", a record a row, or "wrapped", where tokens see the records before theirs'
    )


def _telling_blocks(config: Mapping[str, Any]) -> int:
    """How many of the first blocks hold one of each kind of block, at least two and at most `_KINDS_WITHIN`."""
    anatomy = dissect(to_config(config))
    types = list(getattr(anatomy.model.config, "layer_types", None) or [])
    seen: set[object] = set()
    count = 2
    for number, block in enumerate(anatomy.blocks):
        kind = types[number] if number < len(types) else None
        shape = tuple((name, tuple(parameter.shape)) for name, parameter in block.named_parameters())
        if (kind, shape) not in seen and number < _KINDS_WITHIN:
            seen.add((kind, shape))
            count = max(count, number + 1)
    return count


def _stage_seconds(config: Mapping[str, Any], cut: tuple[int, ...], stage: int, tokens: int) -> float:
    part = build_stage(config, cut, stage, device="cpu")
    init_stage(part, seed=0)
    runner = StageRunner(part)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(part.vocab_size, (1, tokens), generator=generator)
    hidden = torch.randn(part.boundary_shape(1, tokens), generator=generator)
    key = DrawKey(0, 0, 0)  # adapters may drop
    taken: list[float] = []
    with _one_thread():
        while len(taken) < _TRIALS_MIN or sum(taken) < _TRIALS_S:
            began_s = time.thread_time()
            if part.last:
                runner.loss(0, hidden, ids, key)
            else:
                runner.backward(0, torch.ones_like(runner.forward(0, ids if part.first else hidden, key)))
            taken.append(time.thread_time() - began_s)
    return min(taken)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
