"""Transformers' search for several sequences in one row, without a look at what it finds: that waits for the device.

Where a model gets no mask, each forward pass computes from the positions of the tokens which of them belong together,
and reads on the host whether there is more than one sequence in a row. A stage knows: unless it gives positions, its
model numbers the tokens of a row one after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import masking_utils

_search = masking_utils.find_packed_sequence_indices
_thread = threading.local()


@contextlib.contextmanager
def unread_positions(device: torch.device, *, one_sequence: bool) -> Iterator[None]:
    """Within, this thread does not read positions on a device that it would wait for.

    one_sequence: whether no row of a batch has several. Else each gets a mask, also where one sequence fills it.
    """
    _thread.unread = None if device.type == "cpu" else one_sequence
    try:
        yield
    finally:
        _thread.unread = None


def _find(position_ids: Tensor) -> Tensor | None:
    """Return the number of the sequence of each token in its row, int64 [B, T]; None: there is one in each."""
    one_sequence: bool | None = getattr(_thread, "unread", None)
    if one_sequence is None:
        return _search(position_ids)
    if one_sequence:
        return None
    return (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)


setattr(masking_utils, "find_packed_sequence_indices", _find)  # noqa: B010  # there is no setting for it
