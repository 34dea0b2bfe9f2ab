"""The end of a step at one peer: gradients summed, sealed and applied in the compute thread."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat_tensors import SUM_BLOCK_ELEMENTS, added_up
from swarmflow.compute.layout import OWN
from swarmflow.compute.sums import Sums, digest_of_pieces, digest_of_texts
from swarmflow.core.commit import reduce
from swarmflow.core.protocol.actions import Apply, HashState, Seal, StorePiece, SumPiece
from swarmflow.core.protocol.events import (
    Applied,
    ComputedNotFinite,
    PieceFailed,
    PieceReduced,
    Sealed,
    StateDamaged,
    StateHashed,
)
from swarmflow.core.protocol.types import Epoch, Ref, Slice
from swarmflow.errors import FrameError
from swarmflow.runtime.execution.account import Account
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.execution.worker import Worker

_FIRST = (0.0,)  # all members wait for it

X = TypeVar("X")


class StepEnd:
    """Runs the actions of a peer's machine by which a step ends, on the stage that `serving` gives.

    serves: returns whether a stage is the one that is served.
    """

    def __init__(
        self,
        driver: Driver,
        compute: Worker,
        serving: Callable[[], Served],
        serves: Callable[[Served], bool],
        account: Account,
    ) -> None:
        self._driver = driver
        self._compute = compute
        self._serving = serving
        self._serves = serves
        self._account = account
        self._step_end_s = 0.0
        self._hashers = ThreadPoolExecutor(1, "hash")
        self._squares = _PieceSquares()

    def effects(self) -> dict[type[Any], Callable[[Any], None]]:
        """Return the effect of each kind of action."""
        return {
            SumPiece: self.sum_piece,
            StorePiece: self.store_piece,
            Seal: self.seal,
            Apply: self.apply,
            HashState: self.hash,
        }

    def begin(self) -> None:
        """Begin another epoch: work for the end of the last one is dropped."""
        self._step_end_s = 0.0

    def read(self, body: Slice) -> Callable[[], Buffer]:
        """Return a part of a flat gradient, fetched when it is sent."""
        served = self._serving()
        name = _flat_name(body.group)
        sums = served.reduced[name] if body.reduced else served.groups(served.version)[name].sums
        return lambda: sums.pack(body.start, body.stop)

    def sum_piece(self, action: SumPiece) -> None:
        """Add the members' parts in rank order into the reduced buffer, or apart from it for another stage."""
        if action.apart:
            return self._sum_apart(action)
        served = self._serving()
        own = served.groups(action.epoch.step)[_flat_name(action.group)].sums
        parts = [(part, own if part is None else self._driver.store.get(part)) for part in action.parts]

        def work() -> str:
            target = _reduced(served, action.epoch, action.group)
            _total(target, action.start, action.stop, parts)
            self._squares.add(action, target)
            return target.digest(action.start, action.stop)

        self._do_piece(action, work, lambda name: self._piece_reduced(action, name))

    def _sum_apart(self, action: SumPiece) -> None:
        # Of a group that has elements, whose grid tells whether this is a first step: that of none seems to be known.
        groups = self._serving().groups(action.epoch.step).values()
        like = max((group.sums for group in groups), key=lambda sums: sums.elements)
        parts = [(part, self._driver.store.get(part)) for part in action.parts if part is not None]
        elements = action.stop - action.start

        def work() -> tuple[Buffer, str]:
            total = like.empty(elements)
            _total(total, 0, elements, parts)
            return total.pack(0, elements), total.digest(0, elements)

        def done(summed: tuple[Buffer, str]) -> None:
            packed, name = summed
            self._piece_reduced(action, name, self._driver.store.add(packed))

        self._do_piece(action, work, done)

    def store_piece(self, action: StorePiece) -> None:
        """Copy a sum from its owner into the reduced buffer."""
        served, buffer = self._serving(), self._driver.store.get(action.sum)

        def work() -> None:
            target = _reduced(served, action.epoch, action.group)
            target.put(action.start, action.stop, buffer)
            self._squares.add(action, target)

        self._do_piece(action, work, lambda _: self._piece_reduced(action))

    def seal(self, action: Seal) -> None:
        """Compute norm and digest of every reduced gradient, and compare its pieces with what their owners summed.

        Before that, compare the parameters with their checksums: with damaged weights the gradient is wrong. The
        digest is of the state, too: so a peer that has made another state of the last update is found at each step,
        also where nobody hashes it.
        """
        served = self._serving()
        stage = served.runner(action.epoch.step).stage
        summed = dict(action.pieces)

        def work() -> tuple[list[tuple[str, float, str]], list[ComputedNotFinite]] | None:
            for name in action.alone:
                served.reduced.pop(_flat_name(name), None)
            if not served.weights_are_intact():
                return None
            results, broken = [], []
            for name in action.groups:
                alone = name in action.alone
                sums = stage.groups[_flat_name(name)].sums if alone else _reduced(served, action.epoch, name)
                squared = self._squares.sum(action, name, sums)
                if math.isfinite(squared):
                    state = served.name_of(_flat_name(name))
                    results.append((name, squared, _digest_of_sum(sums, squared, state, summed.get(name))))
                else:
                    broken.append(_unsound(action.epoch, name, sums, stage.gradients_broken_in()))
            return results, broken

        def done(outcome: tuple[list[tuple[str, float, str]], list[ComputedNotFinite]] | None) -> None:
            if outcome is None:
                self._driver.post(StateDamaged(action.epoch))
                return
            results, broken = outcome
            for event in broken:
                self._driver.post(event)
            if not broken:
                self._driver.post(Sealed(action.epoch, action.ballot, tuple(results)))

        self._do(work, done)

    def apply(self, action: Apply) -> None:
        """Apply the optimizer's update, and empty the accumulators.

        The whole state is compared with its checksums as it is read: of what is wrong in it no version is made.
        """
        served = self._serving()
        self._account.committed(action.epoch)

        hashing: list[Future[str | None]] = []
        if action.followed:
            served.log.want()

        def work() -> NotFiniteError | StateDamaged | None:
            try:
                intact = served.update(action.epoch.step, action.scale, action.learning_rate)
            except NotFiniteError as error:
                return error
            if intact and action.hashed:
                hashing.append(served.begin_hash(self._hashers))
            return None if intact else StateDamaged(action.epoch)

        def done(failed: NotFiniteError | StateDamaged | None) -> None:
            if isinstance(failed, NotFiniteError):
                self._driver.post(ComputedNotFinite(action.epoch, -1, failed.value, failed.layer))
            elif failed is not None:
                self._driver.post(failed)
            else:
                self._driver.metrics.update_seconds.observe(self._step_end_s)
                self._step_end_s = 0.0
                self._driver.post(Applied(action.epoch))
                for root in hashing:
                    self._tell_root(served, action.epoch.step + 1, root)

        self._do(work, done)

    def hash(self, action: HashState) -> None:
        """Hash the state beside the step at hand."""
        served = self._serving()
        if served.version == action.version:
            self._tell_root(served, action.version, served.begin_hash(self._hashers))

    def _tell_root(self, served: Served, version: int, root: Future[str | None]) -> None:
        """Tell the machine the root of the state once it is hashed, or that it has none; not of one served before."""

        def tell(found: asyncio.Future[str | None]) -> None:
            if (error := found.exception()) is not None:
                self._compute.on_error(error)
            elif self._serves(served):
                root = found.result()
                self._driver.post(StateDamaged() if root is None else StateHashed(version, root))

        asyncio.wrap_future(root).add_done_callback(tell)

    # --- details ------------------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], X], done: Callable[[X], None]) -> None:
        """Run a part of a step's end in the compute thread, then `done` on the event loop; add up the seconds."""
        clock = self._serving().clock

        def timed() -> tuple[X, float]:
            began_s = clock()
            return work(), clock() - began_s

        def finished(outcome: tuple[X, float]) -> None:
            result, seconds = outcome
            self._step_end_s += seconds
            done(result)

        self._compute.submit(_FIRST, timed, finished)

    def _do_piece(self, action: SumPiece | StorePiece, work: Callable[[], X], done: Callable[[X], None]) -> None:
        """Run `_do` for a piece. Where bytes of it do not decode, that is reported in place of `done`."""

        def decoded() -> X | FrameError:
            try:
                return work()
            except FrameError as error:
                return error

        def finished(outcome: X | FrameError) -> None:
            if isinstance(action, StorePiece):
                self._driver.store.release((action.sum,))
            if isinstance(outcome, FrameError):
                parts = outcome.parts if isinstance(outcome, _PartsError) else ()
                self._driver.post(PieceFailed(action.epoch, action.ballot, action.group, action.piece, parts))
            else:
                done(outcome)

        self._do(decoded, finished)

    def _piece_reduced(self, action: SumPiece | StorePiece, name: str = "", apart: Ref | None = None) -> None:
        self._driver.post(PieceReduced(action.epoch, action.ballot, action.group, action.piece, name, apart))


class _PartsError(FrameError):
    """Parts of a piece do not decode."""

    def __init__(self, parts: tuple[Ref, ...]) -> None:
        super().__init__(f"{len(parts)} parts of a piece do not decode")
        self.parts = parts


def _reduced(served: Served, epoch: Epoch, group: str) -> Sums:
    """Return the reduced buffer of a group.

    For the compute thread alone, which comes to the beginnings of steps and to ballots in their order: the buffer is on
    the grid of its step, and belongs to the members of its ballot.
    """
    name = _flat_name(group)
    if name not in served.reduced:  # a group without elements has no piece that comes first
        served.reduced[name] = served.groups(epoch.step)[name].sums.empty()
    return served.reduced[name]


def _total(target: Sums, start: int, stop: int, parts: Sequence[tuple[Ref | None, Sums | Buffer]]) -> None:
    """Replace a piece by the sum of its parts. Raises _PartsError with all that do not decode."""
    try:
        target.total(start, stop, [addend for _, addend in parts])
    except FrameError:
        elements = stop - start
        alone = target.empty(elements)
        packed = [(ref, addend) for ref, addend in parts if ref is not None]
        raise _PartsError(tuple(ref for ref, addend in packed if not _decodes(alone, addend))) from None


def _decodes(piece: Sums, part: Sums | Buffer) -> bool:
    try:
        piece.total(0, piece.elements, [part])
    except FrameError:
        return False
    return True


class _PieceSquares:
    """The squares of a reduction's pieces, taken as they come: beside the transfer, and not after the last one.

    For the compute thread alone. Digests are taken at the end all the same: bits may flip until then.
    """

    def __init__(self) -> None:
        # By group: the reduction (epoch, and the ballot in which it began), and by piece the squares of each block.
        self._of_group: dict[str, tuple[tuple[Epoch, int], dict[int, list[float]]]] = {}

    def add(self, action: SumPiece | StorePiece, sums: Sums) -> None:
        """Take those of a piece that is in the reduced buffer now; those of another reduction are dropped."""
        if reduce.PIECE_ELEMENTS % SUM_BLOCK_ELEMENTS:
            return  # a block would be in two pieces
        reduction, of_piece = self._of_group.get(action.group, (None, {}))
        if reduction != (action.epoch, action.ballot):
            of_piece = {}
            self._of_group[action.group] = (action.epoch, action.ballot), of_piece
        of_piece[action.piece] = sums.block_squares(action.start, action.stop)

    def sum(self, seal: Seal, group: str, sums: Sums) -> float:
        """Return the sum of squares of a gradient, to the bit as `sums` has it; computed anew if a piece is missing."""
        pieces = range(-(-sums.elements // reduce.PIECE_ELEMENTS))
        reduction, of_piece = self._of_group.get(group, (None, dict[int, list[float]]()))
        found = [of_piece.get(piece) for piece in pieces]
        if group in seal.alone or reduction != (seal.epoch, seal.ballot) or None in found:
            return sums.sum_of_squares()
        return added_up(itertools.chain.from_iterable(blocks for blocks in found if blocks is not None))


def _digest_of_sum(sums: Sums, squared: float, state: str, summed: tuple[str, ...] | None) -> str:
    """Return the digest of a reduced gradient and a state; empty where a piece is not what its owner has summed.

    Whoever has lost all others of its stage, and the leader, would else apply a flipped bit that nobody can outvote.
    squared: their sum of squares. state: its name. summed: the digests of the pieces by their owners; None: it is the
    own accumulator, of which nobody has a copy to compare: its bits are not read once more for a name.
    """
    if summed is None:
        return digest_of_texts((str(squared), " ", state))
    name, pieces = digest_of_pieces(sums, reduce.PIECE_ELEMENTS)
    return digest_of_texts((name, " ", state)) if pieces == summed else ""


def _unsound(epoch: Epoch, group: str, sums: Sums, layer: str | None) -> ComputedNotFinite:
    """Return the event of a norm that is not finite: by a layer of the own gradient, or by the first such piece."""
    if layer is not None:
        return ComputedNotFinite(epoch, -1, "gradient", layer)
    first = sums.first_not_finite()
    return ComputedNotFinite(epoch, -1, "sum", group=group, piece=(first or 0) // reduce.PIECE_ELEMENTS)


def _flat_name(group: str) -> str:
    """Return the flat buffer of a reduction group."""
    return OWN if group.startswith("stage-") else group
