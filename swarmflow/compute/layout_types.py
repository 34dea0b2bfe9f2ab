"""The flat layout of a stage's parameters, whatever the model is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

OWN = "own"
TIED = "tied"


@dataclass(frozen=True)
class TensorSlot:
    """One parameter: its name in the whole Hugging Face model, its shape, its first element in the flat buffer.

    single_gradient: whether one backward pass gives the whole gradient of a microbatch. The head has several, one for
    each piece of its logits.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    single_gradient: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.elements


@dataclass(frozen=True)
class StageLayout:
    """The flat layout of one stage: reduction group -> its parameters, in the order of the whole model.

    The group `own` holds everything but the tied weight; the group `tied` holds that weight alone and exists only on
    the first and on the last of several stages. tied, tied_alias: its name, and the name of the head's weight that
    checkpoints may use instead. stored: name -> name in the family's checkpoints where that is another one. prefix: the
    base model's name, which some checkpoints leave out.
    """

    stage: int
    stages: int
    groups: Mapping[str, tuple[TensorSlot, ...]]
    stored: Mapping[str, str]
    prefix: str
    tied: str | None
    tied_alias: str | None

    def elements(self, group: str) -> int:
        """Number of elements of a group's flat buffer."""
        entries = self.groups[group]
        return entries[-1].stop if entries else 0

    @property
    def parameters(self) -> int:
        """Number of parameters of the stage, the tied weight included."""
        return sum(slot.elements for slots in self.groups.values() for slot in slots)

    @property
    def all_elements(self) -> int:
        """Number of elements of the flat buffers of all groups."""
        return sum(self.elements(group) for group in self.groups)
