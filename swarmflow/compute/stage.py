"""One stage of a causal language model: a slice of its blocks, with the embedding or the head at the ends.

Transformers' own forward of the base model runs the slice, so that masks, rotary embeddings and sliding windows are
its own; parts that belong to other stages are replaced by modules without parameters.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

from swarmflow.boundary import Boundary
from swarmflow.compute.adapters import seeded_dropout
from swarmflow.compute.base_weights import place_base
from swarmflow.compute.block_recompute import BlockRecompute
from swarmflow.compute.boundary_layers import CompressingHalf, ExpandingHalf, attach, halves_of
from swarmflow.compute.cross_entropy import cross_entropy_sum
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.experts import balance_of, packed, unpacked
from swarmflow.compute.families import (
    Anatomy,
    dissect,
    fill_from_above,
    init_module,
    to_config,
    unsupported,
    without_balance,
)
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.grouped_stage import GroupedStage, PackedInput, StageInput
from swarmflow.compute.layout import FROZEN, TIED, StageLayout, blocks_of, layout_of
from swarmflow.compute.layout_types import TensorSlot
from swarmflow.compute.stand_ins import Edges, Nothing, PassThrough, Same
from swarmflow.compute.unread_positions import unread_positions
from swarmflow.targets import EMPTY, IGNORED

# Logits of at most this many elements exist at once (64 MiB in fp32), however large the batch is, or of HEAD_TOKENS_MIN
# tokens where these have more: each piece reads the head's weights and writes their gradient anew.
LOGITS_ELEMENTS_MAX = 1 << 24
HEAD_TOKENS_MIN = 1024


class Stage(GroupedStage):
    """Stage `layout.stage` of `layout.stages`, on one device, with zeros for weights until they are set.

    block_names: full names of its blocks, each of which is a unit. head_name: of the head, a unit of the last stage.
    model: transformers' causal model, of which only the head is left. tied: name of the weight that this stage shares
    with another one, else None. drawn: the modules whose rules draw this stage's first parameters, by the names that
    seed them: the units, and modules of other stages which the whole model names first where parameters are shared.
    halves: those of the boundaries around the stage, where these are learnt, by name; they are units too.
    boundary_width: W, the numbers of a token that travel between stages.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        layout: StageLayout,
        blocks: range,
        device: torch.device,
        dropout: bool,
        rounding: FixedPoint | Blockwise | None,
        *,
        in_host_memory: bool = False,
        base: Tensor | None = None,
    ) -> None:
        super().__init__(layout, device, rounding, in_host_memory=in_host_memory)
        self.blocks = blocks
        self.tied = layout.tied if TIED in layout.groups else None
        self.model: PreTrainedModel = anatomy.model
        self.vocab_size = int(self.model.config.vocab_size)
        hidden_size = self._hidden_size = int(self.model.config.hidden_size)
        self.boundary_width = layout.boundary.width(hidden_size) if layout.boundary is not None else hidden_size
        self._balance = balance_of(self.model)
        self._base = anatomy.base
        self._dropout = seeded_dropout(self.model.config, everywhere=dropout)
        self.halves = halves_of(layout.boundary, hidden_size, layout.stage, layout.stages)
        attach(self.model, self.halves)
        _place_buffers(anatomy, device)
        _place_parameters(anatomy, self.groups)
        if layout.base:
            self.base = place_base(anatomy.model, layout, device, base)
        elsewhere = _named_elsewhere(anatomy, blocks, tied=self.tied is not None)
        self.block_names = tuple(f"{anatomy.blocks_name}.{i}" for i in blocks)
        self.head_name = anatomy.head
        self.units = _keep_slice(anatomy, blocks, first=self.first, last=self.last)
        self.drawn = elsewhere | self.units
        self.order = [n for n in (*anatomy.entry, *self.block_names, *anatomy.exit) if n in self.units]
        for name, half in self.halves.items():
            self.units[name] = half
            self.order.insert(0 if isinstance(half, ExpandingHalf) else len(self.order), name)
        _fill_buffers(self.model, device)
        if self._dropout is not None:
            self._dropout.watch(self._base, zip(blocks, anatomy.blocks, strict=True))
        self.block_recompute = BlockRecompute(zip(blocks, anatomy.blocks, strict=True), self._again)
        self._edges = Edges(anatomy.blocks, first=self.first, last=self.last)
        self._pass_through = _stand_in(anatomy)
        setattr(self.model, self.model.base_model_prefix, self._pass_through)

    @property
    def dropout(self) -> bool:
        """Whether training drops anything, and so needs a key to draw from."""
        return self._dropout is not None

    def is_bf16_only(self, unit: str, slot: TensorSlot) -> bool:
        """Return whether a parameter is a matrix of a block or of the head, which autocast would cast in each pass."""
        return len(slot.shape) >= 2 and unit in (*self.block_names, self.head_name)

    def enter(self, x: StageInput) -> tuple[Tensor | None, StageInput]:
        """Return the input as autograd leaf, None on stage 0, and what `trunk` takes; both on the device."""
        if isinstance(x, PackedInput):
            leaf, entered = self.enter(x.x)
            assert isinstance(entered, Tensor)
            return leaf, replace(x, x=entered, positions=x.positions.to(self.device))
        assert isinstance(x, Tensor), "a stage of a decoder"
        x = x.to(self.device)
        if self.first:
            return None, x
        leaf = x.detach().requires_grad_()
        return leaf, leaf

    def trunk(self, x: StageInput, draw: DrawKey | None = None) -> Tensor:
        """The stage without the head: tokens int [B, T] (stage 0) or boundary [B, T, W] -> boundary [B, T, W].

        The last stage gives hidden [B, T, H]. Where experts are balanced, both are packed with what is added up for
        that, as `boundary_shape` says. draw: seeds the dropout of this microbatch; without it, or where dropout is off,
        nothing is dropped.
        """
        positions, tokens = dict[str, Tensor](), None
        if isinstance(x, PackedInput):
            # Of its positions transformers makes a mask: attention stays within a document.
            positions = {"position_ids": x.positions.clamp(min=0)} if x.separate else {}
            tokens, x = x.positions != EMPTY, x.x
        assert isinstance(x, Tensor), "a stage of a decoder"
        carried: Tensor | None = None
        if self._balance is not None and not self.first:
            x, carried = unpacked(x, self.boundary_width, self._balance.width)
        x = self._through(ExpandingHalf, x)
        inputs = {"input_ids": x.long()} if self.first else {"inputs_embeds": torch.zeros_like(x, requires_grad=False)}
        options = {} if self._balance is None else {"output_router_logits": True}
        inputs |= positions
        here = None if self.first else x
        with (
            self._drawing(draw),
            unread_positions(self.device, one_sequence=not positions),
            self._edges.between(here) as left,
        ):
            output = self._base(**inputs, **options, use_cache=False)
            hidden: Tensor = output.last_hidden_state if self.last else left.pop()
        for part in self._pass_through.modules():
            assert isinstance(part, PassThrough)
            part.output_type = type(output)
        hidden = self._through(CompressingHalf, hidden)
        return hidden if self._balance is None else packed(hidden, self._totals(output, len(hidden), carried, tokens))

    def logits(self, hidden: Tensor) -> Tensor:
        """The head alone: hidden [B, T, H] -> logits [B, T, V]; last stage only, after a `trunk`."""
        logits: Tensor = self.model(inputs_embeds=hidden, **without_balance(self.model), use_cache=False).logits
        return logits

    def forward(self, x: StageInput, draw: DrawKey | None = None) -> Tensor:
        """Boundary [B, T, W] of a stage before the last; the last one gives logits [B, T, V]."""
        hidden = self.trunk(x, draw)
        return self.logits(self._hidden(hidden)) if self.last else hidden

    def loss(self, x: Tensor, targets: Tensor, draw: DrawKey | None = None) -> Tensor:
        """Sum (not mean) of the cross-entropies in fp32 of all B*T tokens, a scalar; targets int64 [B, T], shifted.

        With `extra_loss`, if there is one.
        """
        hidden = self.trunk(x, draw)
        losses = [self.head_loss(*piece) for piece in self.pieces(hidden, targets)]
        extra = self.extra_loss(hidden, targets)
        return torch.stack([*losses, *([] if extra is None else [extra])]).sum()

    def head_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """As `loss`, from the trunk's hidden [1, n, H] and targets [n] of one piece."""
        return cross_entropy_sum(self.logits(hidden).squeeze(0), targets)

    def pieces(self, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The tokens in pieces [1, n, H], [n] whose logits are small enough to exist at once."""
        tokens = head_tokens(self.vocab_size)
        hidden = self._hidden(hidden)
        flat, wanted = hidden.reshape(1, -1, hidden.shape[-1]), targets.reshape(-1).long()
        for start in range(0, wanted.numel(), tokens):
            yield flat[:, start : start + tokens], wanted[start : start + tokens]

    def count(self, targets: Tensor) -> int:
        """Return how many targets count in the loss."""
        return int((targets != IGNORED).sum())

    def extra_loss(self, hidden: Tensor, targets: Tensor) -> Tensor | None:
        """Return the loss that balances experts, as much for each target as transformers adds to the mean of theirs."""
        if self._balance is None:
            return None
        totals = unpacked(hidden, self._hidden_size, self._balance.width)[1]
        return self._balance.loss(totals) * self.count(targets)

    def boundary_shape(self, rows: int, tokens: int) -> tuple[int, ...]:
        """Return the shape of a boundary: [B, T, W], or [B, T*W + n] with what is beside the hidden states."""
        if self._balance is None:
            return rows, tokens, self.boundary_width
        return rows, tokens * self.boundary_width + self._balance.width

    def _hidden(self, trunk: Tensor) -> Tensor:
        """Return the hidden states [B, T, H] of what the trunk of the last stage gave."""
        return trunk if self._balance is None else unpacked(trunk, self._hidden_size, self._balance.width)[0]

    def _totals(self, output: ModelOutput, rows: int, carried: Tensor | None, tokens: Tensor | None) -> Tensor:
        """Return what the stages until this one have added up for the balance of experts."""
        assert self._balance is not None, "experts are balanced"
        own: list[Tensor] = [each for each in output.get("router_logits") or () if each is not None]
        totals = torch.zeros(rows, self._balance.width, device=self.device) if carried is None else carried
        return totals + self._balance.counted(own, rows, tokens) if own else totals

    def _through(self, kind: type[nn.Module], x: Tensor) -> Tensor:
        """Apply the half of this kind, if there is one."""
        for half in self.halves.values():
            if isinstance(half, kind):
                x = half(x)
        return x

    def _again(self, layer: int) -> contextlib.AbstractContextManager[object]:
        """Return the context in which a block is computed once more for the backward pass of this forward pass."""
        return contextlib.nullcontext() if self._dropout is None else self._dropout.again(layer)

    def _drawing(self, draw: DrawKey | None) -> contextlib.AbstractContextManager[object]:
        if self._dropout is None:
            return contextlib.nullcontext()
        self._dropout.set_active(on=draw is not None)
        return contextlib.nullcontext() if draw is None else self._dropout.begin(draw)


def head_tokens(vocab_size: int) -> int:
    """Return of how many tokens the logits exist at once."""
    return max(HEAD_TOKENS_MIN, LOGITS_ELEMENTS_MAX // vocab_size)


def build_stage(
    config: Mapping[str, Any],
    cut: Sequence[int],
    stage: int,
    *,
    device: torch.device | str,
    dropout: bool = False,
    rounding: FixedPoint | Blockwise | None = None,
    align: int = 1,
    boundary: Boundary | None = None,
    in_host_memory: bool = False,
    base: Tensor | None = None,
) -> Stage:
    """Builds one stage; only its own parameters ever take memory. The weights are zeros: see `weights`.

    config: as from `model_config`. cut: the first block of stages 1, 2, ... dropout: apply the dropout that the
    configuration names; without it that of adapters alone, if they have some. rounding: how gradients are rounded
    before they add up. align: as in `stage_layout`. boundary: how what travels between stages is compressed; None: not
    at all. in_host_memory: where the state is (`GroupedStage`). base: the frozen weights of another object of this
    stage, which are shared. Raises ModelError.
    """
    anatomy = dissect(to_config(config), dropout=dropout)
    blocks = blocks_of(cut, len(anatomy.blocks), stage)
    layout = layout_of(anatomy, cut, stage, align, boundary)
    where = torch.device(device)
    return Stage(anatomy, layout, blocks, where, dropout, rounding, in_host_memory=in_host_memory, base=base)


def _stand_in(anatomy: Anatomy) -> PassThrough:
    """For the base model, and for what lies between it and its blocks: opt's head calls the base's decoder itself."""
    whole = inner = PassThrough()
    for key, value in vars(anatomy.base).items():  # falcon_h1's head asks its base model for a factor
        if isinstance(value, int | float) and not hasattr(whole, key):
            setattr(whole, key, value)
    for name in anatomy.blocks_name.removeprefix(f"{anatomy.model.base_model_prefix}.").split(".")[:-1]:
        outer, inner = inner, PassThrough()
        outer.add_module(name, inner)
    return whole


def _named_elsewhere(anatomy: Anatomy, blocks: range, *, tied: bool) -> dict[str, nn.Module]:
    """Returns the parts of the whole model whose parameters a stage may have though the parts are not on it."""
    shared = [group.start for group in anatomy.shared if group.start < blocks.start < group.stop]
    found: dict[str, nn.Module] = {f"{anatomy.blocks_name}.{first}": anatomy.blocks[first] for first in shared}
    if tied:
        found[anatomy.embedding] = anatomy.model.get_submodule(anatomy.embedding)
    return found


def _place_buffers(anatomy: Anatomy, device: torch.device) -> None:
    """Put buffers (rotary frequencies) that have values already on the device; `_fill_buffers` puts the others there.

    From the CPU they would be copied in every pass, for which the host would wait.
    """
    for module in anatomy.model.modules():
        for key, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                module._buffers[key] = buffer.to(device)


def _place_parameters(anatomy: Anatomy, groups: Mapping[str, FlatGroup]) -> None:
    """Gives every parameter of the stage its view of a flat buffer, in the modules of the whole model.

    Modules that share a parameter have views of their own: one backward pass adds the gradient of each use in turn, as
    the two parts of a split one do.
    """
    for group in groups.values():
        for entry in group.entries:
            for name in entry.holders:
                owner, _, leaf = name.rpartition(".")
                module = anatomy.model.get_submodule(owner)
                if group.name == FROZEN:
                    module._buffers[leaf] = group.view(group.params, entry)
                else:
                    setattr(module, leaf, group.parameter(entry))


def _keep_slice(anatomy: Anatomy, blocks: range, *, first: bool, last: bool) -> dict[str, nn.Module]:
    """Cuts the whole model down to one stage in place; returns the parts that stay, by their full names."""
    model = anatomy.model
    units = {f"{anatomy.blocks_name}.{i}": anatomy.blocks[i] for i in blocks}
    for names, here in ((anatomy.entry, first), (anatomy.exit, last)):
        for name in names:
            module = model.get_submodule(name)
            if here:
                units[name] = module
            elif names is anatomy.exit or any(True for _ in module.parameters()) or isinstance(module, nn.Dropout):
                model.set_submodule(name, Nothing() if isinstance(module, nn.Embedding) else Same())
    sliced = _sliced(model.config, len(anatomy.blocks), blocks)
    model.set_submodule(anatomy.blocks_name, nn.ModuleList(list(anatomy.blocks)[blocks.start : blocks.stop]))
    # Blocks keep the whole configuration (a scale may depend on the depth); what loops over them gets the slice.
    for module in anatomy.base.modules():
        if isinstance(module, PreTrainedModel):
            module.config = sliced
    return units


def _sliced(whole: PreTrainedConfig, count: int, blocks: range) -> PreTrainedConfig:
    """Return the configuration of some of `count` blocks: lists with an entry a block have those of these blocks.

    Some families compute such a list (jamba's kinds of layers), by a rule that begins at block 0 however many there
    are: it is computed for the whole model.
    """
    family, sliced = type(whole), copy.deepcopy(whole)
    sliced.num_hidden_layers = len(blocks)
    properties = [name for name, _ in inspect.getmembers(family, lambda member: isinstance(member, property))]
    computed: dict[str, property] = {}
    for name in (*vars(whole), *(name for name in properties if not hasattr(PreTrainedConfig, name))):
        value = getattr(whole, name)
        if not isinstance(value, list) or len(value) != count:
            continue
        here = value[blocks.start : blocks.stop]
        if name in vars(whole):
            setattr(sliced, name, here)
        else:
            computed[name] = _constant(here)
    if computed:
        sliced.__class__ = type(family.__name__, (family,), computed)
    return sliced


def _constant(value: list[Any]) -> property:
    return property(lambda _: value)


def _fill_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Gives buffers (rotary frequencies, ...) their values by the family's own rule, which `_init_weights` holds."""
    filled: list[tuple[str, nn.Module, str]] = []
    for name, module in model.named_modules():
        for key, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                fresh = torch.empty_like(buffer, device="cpu")
                module._buffers[key] = fresh.fill_(math.nan) if fresh.is_floating_point() else fresh.zero_()
                filled.append((name, module, key))
    for module in dict.fromkeys(module for _, module, _ in filled):
        init_module(model, module)
    if any(_is_unknown(module._buffers[key]) for _, module, key in filled):
        fill_from_above(model)
    for name, module, key in filled:
        value = module._buffers[key]
        assert value is not None
        if _is_unknown(value):
            raise unsupported(model.config, f"their buffer {name}.{key} has no rule that fills it")
        module._buffers[key] = value.to(device)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if left:
        raise unsupported(model.config, f"their part {left[0]} belongs to no single stage")


def _is_unknown(buffer: Tensor | None) -> bool:
    return buffer is not None and buffer.is_floating_point() and bool(buffer.isnan().any())
