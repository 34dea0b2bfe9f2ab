"""How documents become rows of T tokens: the rule of data.packing, the same on every machine and for ever.

A row of T inputs and T targets holds fragments: ranges of documents of m + 1 tokens, of which the first m are inputs
and the last m targets. `wrapped`: the documents one after another, cut every T tokens. `none`: a fragment a row.
`bfd` (best fit decreasing, as TRL calls it): fragments in rows so that few places are left, and nothing of a fragment
depends on the others in its row. What has no target that counts is left out.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from swarmflow.errors import DataError
from swarmflow.targets import EMPTY, IGNORED
from trainers.document_cache import Documents
from trainers.documents import ids_of, targets_of

Ints: TypeAlias = npt.NDArray[np.int64]

_CHUNK = 1 << 22  # tokens that are looked at at a time


@dataclass(frozen=True)
class PackedRows:
    """Rows of T tokens. The fragments of row k are `order[edges[k] : edges[k + 1]]`.

    starts, sizes: of the fragments: the first token and the number of inputs. separate: whether fragments of one row
    see nothing of each other. cut, left_out: documents that were cut short, or have nothing to learn in T tokens.
    marked: whether it is told which places are left at the end of a row.
    """

    tokens: npt.NDArray[np.int32]
    seq_len: int
    starts: Ints
    sizes: Ints
    order: Ints
    edges: Ints
    separate: bool
    cut: int = 0
    left_out: int = 0
    marked: bool = False

    @property
    def count(self) -> int:
        """Their number."""
        return len(self.edges) - 1

    def batch(self, rows: Sequence[int]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return inputs [B, T] and what travels with them: targets [B, T], or [B, 2, T] with positions.

        A position is the place of a token in its fragment; places that are left at the end are a fragment, with the
        input 0 and no target that counts, or their position is EMPTY where they are marked.
        """
        inputs = np.zeros((len(rows), self.seq_len), dtype=np.int32)
        targets = np.full((len(rows), 2, self.seq_len), IGNORED, dtype=np.int32)
        for row, number in enumerate(rows):
            at = 0
            for fragment in self.order[self.edges[number] : self.edges[number + 1]]:
                start, size = int(self.starts[fragment]), int(self.sizes[fragment])
                inputs[row, at : at + size] = ids_of(self.tokens[start : start + size])
                targets[row, 0, at : at + size] = targets_of(self.tokens[start + 1 : start + size + 1], IGNORED)
                targets[row, 1, at : at + size] = np.arange(size)
                at += size
            targets[row, 1, at:] = EMPTY if self.marked else np.arange(self.seq_len - at)
        return inputs, targets if self.separate or self.marked else np.ascontiguousarray(targets[:, 0])


def pack(documents: Documents, seq_len: int, packing: str, *, split: bool) -> PackedRows:
    """Return the rows of a corpus.

    split: cut a document of more than T + 1 tokens into several fragments; else it is cut short. Raises DataError where
    no row has a target that counts.
    """
    if packing == "wrapped":
        starts = np.arange(0, max(0, len(documents.tokens) - 1), seq_len, dtype=np.int64)
        sizes = np.minimum(seq_len, len(documents.tokens) - 1 - starts)
        cut = left_out = 0
        telling = _targets(documents.tokens, starts, sizes) > 0
    else:
        first = np.cumsum(documents.lengths) - documents.lengths
        starts, sizes, cut = _fragments(first, documents.lengths - 1, seq_len, split=split)
        telling = _targets(documents.tokens, starts, sizes) > 0
        left_out = int((~telling).sum())
    starts, sizes = starts[telling], sizes[telling]
    if not len(starts):
        raise DataError(f"no target within {seq_len} tokens counts in the loss; raise data.seq_len")
    if packing == "bfd":
        order, edges = _best_fit(sizes, seq_len)
    else:
        order, edges = np.arange(len(starts)), np.arange(len(starts) + 1)
    return PackedRows(documents.tokens, seq_len, starts, sizes, order, edges, packing == "bfd", cut, left_out)


def _fragments(first: Ints, sizes: Ints, seq_len: int, *, split: bool) -> tuple[Ints, Ints, int]:
    """Return start and size of the fragments of all documents, and how many documents are cut short.

    first: token of each document; sizes: its inputs, -1 for an empty document.
    """
    cut = int((sizes > seq_len).sum())
    if not split:
        return first, np.minimum(sizes, seq_len), cut
    counts = np.maximum(-(-sizes // seq_len), 0)
    of = np.repeat(np.arange(len(sizes)), counts)
    within = (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * seq_len
    return first[of] + within, np.minimum(seq_len, sizes[of] - within), 0


def _targets(tokens: npt.NDArray[np.int32], starts: Ints, sizes: Ints) -> Ints:
    """Return how many targets of each fragment count. The fragments are in their order and do not overlap."""
    edges = np.stack((starts + 1, starts + 1 + np.maximum(sizes, 0)), axis=1).reshape(-1)
    before = np.zeros(len(edges), dtype=np.int64)  # how many tokens before each edge count
    seen = 0
    for low in range(0, len(tokens), _CHUNK):
        chunk = np.concatenate(([0], np.cumsum(tokens[low : low + _CHUNK] >= 0)))
        here = slice(*np.searchsorted(edges, (low, low + len(chunk) - 1), side="left"))
        before[here] = seen + chunk[edges[here] - low]
        seen += int(chunk[-1])
    before[np.searchsorted(edges, len(tokens), side="left") :] = seen
    return before[1::2] - before[::2]


def _best_fit(sizes: Ints, seq_len: int) -> tuple[Ints, Ints]:
    """Return the fragments of all rows, and the edges of the rows among them: best fit decreasing.

    Fragments of one size go in their order; of the rows with the least room that is enough, into the one that has had
    this room for the longest time. Rows are in the order of their first fragments in the corpus, and so are fragments
    within a row.
    """
    rows: list[list[int]] = []
    with_room: dict[int, deque[int]] = {}  # room -> rows, in the order in which they came to have it
    rooms: list[int] = []  # those that some row has, rising
    for fragment in np.argsort(-sizes, kind="stable"):
        size = int(sizes[fragment])
        place = bisect.bisect_left(rooms, size)
        if place == len(rooms):
            row, room = len(rows), seq_len
            rows.append([])
        else:
            room = rooms[place]
            row = with_room[room].popleft()
            if not with_room[room]:
                del with_room[room], rooms[place]
        rows[row].append(int(fragment))
        if left := room - size:
            if left not in with_room:
                with_room[left] = deque()
                bisect.insort(rooms, left)
            with_room[left].append(row)
    for members in rows:
        members.sort()
    rows.sort()
    return (
        np.asarray([fragment for members in rows for fragment in members], dtype=np.int64),
        np.cumsum([0, *map(len, rows)], dtype=np.int64),
    )
