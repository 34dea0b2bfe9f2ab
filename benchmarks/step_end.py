"""What the end of a step takes beside its transfer: `python -m benchmarks.bookkeeping --parameters 1e9`.

The parts of a step's end, each as a peer runs it, over a stage of REPRESENTATIVE_ELEMENTS parameters; the seconds are
multiplied for a stage of the size that is asked for. Every part goes through the memory once, block by block, so that
its time is proportional to the number of parameters where they are more than fit in a cache. See README.md.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import piece_sums
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.stage_pieces import StagePieces
from swarmflow.compute.state_root import PIECE_ELEMENTS as PIECE
from swarmflow.compute.state_root import root_of
from swarmflow.compute.sums import digest_of_pieces
from swarmflow.compute.update_checksums import UpdateChecksums
from swarmflow.core.commit.reduce import PIECE_ELEMENTS
from swarmflow.core.protocol.piece_format import BLOCKWISE16

REPRESENTATIVE_ELEMENTS = 1 << 26  # 1.2 GB with optimizer and sums: forty times a cache of 32 MB
LINK_BITS_PER_S = 200e6
MICROBATCHES = 32
REPEATS = 3
BESIDE, AFTER_TRANSFER, AFTER_COMMIT = "beside the transfer", "after the transfer", "after the commit"
BESIDE_NEXT = "beside the next step"
NOT_AT_ALL = "not at all: to compare"


@dataclass(frozen=True)
class StepEndPart:
    """A part of a step's end: what it is, when a peer runs it, and its seconds for the whole stage."""

    name: str
    when: str
    seconds: float


class StepEndWork:
    """One of two peers of a stage, at the end of a step: it sums half of the pieces, and stores the others' sums."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        slot = TensorSlot("weight", (elements,), 0)
        self.group = FlatGroup.empty("own", (slot,), torch.device("cpu"), Blockwise(MICROBATCHES))
        self.own = self.group.sums
        assert isinstance(self.own, BlockwiseSums)
        self.optimizer = make_optimizer(OptimizerSettings())
        self.group.allocate(self.optimizer.state_names())
        self.own.grid.follow(torch.ones_like(self.own.peaks), 0)
        self.own.zero()
        generator = torch.Generator().manual_seed(0)
        for start in range(0, elements, PIECE_ELEMENTS):
            gradient = torch.randn(PIECE_ELEMENTS, generator=generator).mul_(0.25).clamp_(-1, 1)
            self.own.add(gradient, 1, 0, start // 256)
        self.reduced = self.own.empty()
        self.state = StagePieces([{"own": self.group}], self.optimizer)
        self.pieces = [(start, start + PIECE_ELEMENTS) for start in range(0, elements, PIECE_ELEMENTS)]

    def sum_pieces(self) -> None:
        """Sum the owned pieces, with what the other peer has sent, and name the sums by their digests."""
        for start, stop in self.pieces[::2]:
            self.reduced.total(start, stop, [self.own, self.own.pack(start, stop)])
            self.reduced.digest(start, stop)

    def store_pieces(self) -> None:
        """Store the other peer's sums."""
        for start, stop in self.pieces[1::2]:
            self.reduced.put(start, stop, self.own.pack(start, stop))

    def norm(self) -> None:
        """Add up the squares of each piece, for the norm."""
        for start, stop in self.pieces:
            self.reduced.block_squares(start, stop)

    def digest_of_gradient(self) -> None:
        """Compute the digest of the reduced gradient, piece by piece."""
        digest_of_pieces(self.reduced, PIECE_ELEMENTS)

    def update(self) -> None:
        """Apply the optimizer's update, follow the peaks with the grid, and set the sums to zero."""
        self._update(None)

    def checked_update(self) -> None:
        """Do the same, with checksums of what it reads and writes."""
        sums = UpdateChecksums([self.group], ("params", *self.optimizer.state_names()))
        self._update(sums)

    def _update(self, sums: UpdateChecksums | None) -> None:
        self.optimizer.apply(self.group, self.reduced.gradient(), 1e-3, 3e-4, 1, sums)
        self.group.learnt(self.reduced, 1)
        self.own.zero()

    def checksum(self) -> None:
        """Sum the bits of the weights."""
        piece_sums(self.group.params, PIECE)

    def hashes(self) -> None:
        """Hash the pieces of the state."""
        root_of(self.state.leaves(1))


def measure(parameters: float) -> list[StepEndPart]:
    """Return the parts for a stage of so many parameters, in their order; medians of CPU time on one thread."""
    work = StepEndWork(REPRESENTATIVE_ELEMENTS)
    steps: list[tuple[str, str, Callable[[], None]]] = [
        ("sums of own pieces, their digests", BESIDE, work.sum_pieces),
        ("the other peer's sums stored", BESIDE, work.store_pieces),
        ("norm of the gradient", BESIDE, work.norm),
        ("checksum of the weights", AFTER_TRANSFER, work.checksum),
        ("digest of the gradient", AFTER_TRANSFER, work.digest_of_gradient),
        ("update", AFTER_COMMIT, work.checked_update),
        ("update without checksums of the state", NOT_AT_ALL, work.update),
        ("hashes of the state", BESIDE_NEXT, work.hashes),
    ]
    taken: dict[str, list[float]] = {name: [] for name, _, _ in steps}
    for _, (name, _, run) in itertools.product(range(REPEATS), steps):
        began_s = time.thread_time()
        run()
        taken[name].append(time.thread_time() - began_s)
    scale = parameters / work.elements
    return [StepEndPart(name, when, scale * statistics.median(taken[name])) for name, when, _ in steps]


def transfer_s(parameters: float) -> float:
    """Return the seconds that one of two peers sends in an all-reduce: half as its parts, half as its sums."""
    return 8 * BLOCKWISE16.usual_bytes(int(parameters)) / LINK_BITS_PER_S


def show(parameters: float) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    parts, transfer = measure(parameters), transfer_s(parameters)
    print(f"a stage of {parameters:,.0f} parameters with 2 peers, blockwise16, adamw; measured on")
    print(
        f"{REPRESENTATIVE_ELEMENTS:,}, one thread. A transfer over {LINK_BITS_PER_S / 1e6:.0f} Mb/s: {transfer:.1f} s\n"
    )
    print(f"{'part':36s} {'when':22s} {'seconds':>8s} {'of a transfer':>14s}")
    for part in parts:
        print(f"{part.name:36s} {part.when:22s} {part.seconds:8.2f} {part.seconds / transfer:14.1%}")
    for when in (BESIDE, AFTER_TRANSFER, AFTER_COMMIT, BESIDE_NEXT):
        total = sum(part.seconds for part in parts if part.when == when)
        print(f"{'all ' + when:59s} {total:8.2f} {total / transfer:14.1%}")
