"""The flat layout of a stage's parameters, whatever the model is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swarmflow.boundary import Boundary

OWN = "own"
TIED = "tied"
FROZEN = "frozen"


@dataclass(frozen=True)
class TensorSlot:
    """One parameter: its name in the whole Hugging Face model, its shape, its first element in the flat buffer.

    single_gradient: whether one backward pass gives the whole gradient of a microbatch, at once. The head has several,
    one for each piece of its logits, and so have blocks that share their weights. holders: the full names under which
    the modules of the stage have it; empty: unknown. name is the first one of the whole model, which may be another.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    single_gradient: bool = False
    holders: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.elements


FORM_BYTES = {"F32": 4, "BF16": 2}  # of a number of a frozen tensor
NF4_BLOCK = 64  # numbers with one scale
BASE_ALIGN = 64  # bytes


@dataclass(frozen=True)
class BaseSlot:
    """A frozen tensor of a stage: its name and shape in the model without adapters, its first byte among all of them.

    form: "F32", "BF16", or "NF4": codes of 4 bits, two a byte, then an fp32 scale for each block of 64. holders: the
    full names under which the modules of the stage have it.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    offset: int
    holders: tuple[str, ...]

    @property
    def elements(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return how many bytes it takes."""
        if self.form == "NF4":
            return -(-self.elements // 2) + 4 * -(-self.elements // NF4_BLOCK)
        return FORM_BYTES[self.form] * self.elements


def placed(slots: Sequence[BaseSlot]) -> tuple[BaseSlot, ...]:
    """Return frozen tensors one after another, each at a multiple of BASE_ALIGN bytes."""
    found: list[BaseSlot] = []
    at = 0
    for slot in slots:
        found.append(replace(slot, offset=at))
        at += -(-slot.nbytes // BASE_ALIGN) * BASE_ALIGN
    return tuple(found)


@dataclass(frozen=True)
class StageLayout:
    """The flat layout of one stage: reduction group -> its parameters, in the order of the whole model.

    The group `own` holds what no other stage has. The group `tied` holds the tied weight alone and exists only on the
    first and on the last of several stages. The group `frozen` holds what no gradient trains, such as the biases by
    which deepseek_v3 chooses experts: it is part of the state, but never reduced nor updated. Blocks that share their
    weights are in `own` where they are all on this stage; the group `shared-N` holds the weights of the N-th of them
    (from 0), cut by the edge of a stage, and exists on each stage with such a block. tied, tied_alias: the tied
    weight's name, and the name of the head's weight that checkpoints may use instead. stored: name -> name in the
    family's checkpoints where that is another one. prefix: the base model's name, which some checkpoints leave out.
    spread: group -> the stages that have it, but for `own`. boundary: what compresses between the stages, if it is
    learnt. embeddings: the names of parameters outside the blocks, as modules hold them, that are looked up and
    multiply nothing. fp32_matrices: the names of matrices that passes in bf16 need in fp32. beside: how many numbers of
    a sequence travel beside its hidden states (`experts.py`). base: the frozen tensors beside adapters; none where all
    parameters are trained.
    """

    stage: int
    stages: int
    groups: Mapping[str, tuple[TensorSlot, ...]]
    stored: Mapping[str, str]
    prefix: str
    tied: str | None
    tied_alias: str | None
    spread: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    boundary: Boundary | None = None
    embeddings: frozenset[str] = frozenset()
    fp32_matrices: frozenset[str] = frozenset()
    beside: int = 0
    base: tuple[BaseSlot, ...] = ()

    def elements(self, group: str) -> int:
        """Number of elements of a group's flat buffer."""
        entries = self.groups[group]
        return entries[-1].stop if entries else 0

    @property
    def parameters(self) -> int:
        """Number of parameters of the stage, those included that other stages have too."""
        return sum(slot.elements for slots in self.groups.values() for slot in slots)

    @property
    def all_elements(self) -> int:
        """Number of elements of the flat buffers of all groups."""
        return sum(self.elements(group) for group in self.groups)

    @property
    def stored_parameters(self) -> int:
        """Number of parameters of the stage where each block has its own, as in exports and as computed with.

        Frozen ones included.
        """
        trained = sum(slot.elements * len(self.stored_of(slot)) for slots in self.groups.values() for slot in slots)
        return trained + sum(slot.elements for slot in self.base)

    @property
    def computed_parameters(self) -> int:
        """Number of parameters that a token is multiplied with: without tables, of which it takes a row."""
        slots: list[TensorSlot | BaseSlot] = [*itertools.chain(*self.groups.values()), *self.base]
        tables = [slot for slot in slots if self.embeddings.issuperset(slot.holders or (slot.name,))]
        return self.stored_parameters - sum(slot.elements for slot in tables)

    @property
    def base_bytes(self) -> int:
        """Number of bytes of the frozen tensors together."""
        return -(-(self.base[-1].offset + self.base[-1].nbytes) // BASE_ALIGN) * BASE_ALIGN if self.base else 0

    def stored_of(self, slot: TensorSlot) -> tuple[str, ...]:
        """Return the names of the model's tensors on this stage that are this parameter; a tied weight has one."""
        return (slot.name,) if slot.name == self.tied or not slot.holders else slot.holders
