"""A stage in memory, with its optimizer and state."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.grouped_stage import GroupedStage
from swarmflow.compute.optimizer import Optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage_pieces import StagePieces
from swarmflow.compute.stage_state import BEFORE, StageState
from swarmflow.compute.state_root import GRID, PIECE_ELEMENTS, Span, root_of, tensor_name
from swarmflow.compute.sums import Sums
from swarmflow.compute.update_checksums import UpdateChecksums
from swarmflow.compute.update_log import LoggedUpdate, UpdateLog, kept_sums

LEAVES_KEPT = 2  # versions: who loads compares its pieces while the next one may be made


@dataclass
class Served:
    """A stage in memory, once for each step that may be computed at a time.

    runners: step s is computed on the one with the number s modulo how many there are. One has the parameters of the
    version, and step v is computed at version v. Where updates are delayed by a step there are two. Then at version v,
    that of step v + 1 has the parameters of v; that of step v, which is reduced now, those of v - 1 (of v, where v is
    0), and they are kept for what has to be computed again. The update of step v makes version v + 1 in their place.
    They share the optimizer's state.
    """

    runners: tuple[StageRunner, ...]
    optimizer: Optimizer
    version: int  # of the state; -1: it is being loaded, or changed
    reduced: dict[str, Sums] = field(default_factory=dict)  # summed gradients of a ballot, by flat group
    log: UpdateLog = field(default_factory=UpdateLog)  # for peers that load the stage from here
    base_leaves: bytes = b""  # the hashes of all pieces of the frozen weights, if there are some that are loaded
    leaves: dict[int, bytes] = field(default_factory=dict)  # the hashes of all pieces, of the last versions
    roots: dict[int, str] = field(init=False, default_factory=dict)  # over these
    pieces: StagePieces = field(init=False)
    # Of each piece of the tensors of a version's state, when it was made or loaded.
    _checksums: tuple[int, dict[str, torch.Tensor]] = field(init=False, default=(-1, {}))
    # What reads the present version, in other threads: no update is made until it is done.
    _readers: list[Future[Any]] = field(init=False, default_factory=list)
    _changing: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.pieces = StagePieces([runner.stage.groups for runner in self.runners], self.optimizer)
        for runner in self.runners[1:]:
            for name, group in runner.stage.groups.items():
                group.state = self.stage.groups[name].state

    @property
    def stage(self) -> GroupedStage:
        """The stage, for what does not depend on the step."""
        return self.runners[0].stage

    def runner(self, step: int) -> StageRunner:
        """Return the runner that computes a step."""
        return self.runners[step % len(self.runners)]

    def groups(self, step: int) -> dict[str, FlatGroup]:
        """Return the parameters that a step is computed with, and the sums of its gradients."""
        return self.runner(step).stage.groups

    @property
    def state(self) -> StageState:
        """The state of the version that is here."""
        return self.state_of(self.version)

    def state_of(self, version: int) -> StageState:
        """Return the tensors of which the state of a version consists, or shall consist."""
        latest = self.groups(version + 1)
        if len(self.runners) == 1:
            return StageState(latest)
        before: dict[str, torch.Tensor] = {}
        for name, group in self.groups(version).items():
            tensors = group.tensors()
            before |= {tensor_name(name, BEFORE + key): tensors[key] for key in ("params", GRID) if key in tensors}
        return StageState(latest, before)

    @torch.no_grad()
    def begin(self) -> None:
        """Complete the state of version 0: its parameters are those of the version before, too."""
        latest = self.groups(1)
        for name, group in self.groups(0).items():
            group.params.copy_(latest[name].params)

    def update(self, step: int, scale: float, learning_rate: float) -> bool:
        """Apply the reduced gradients of a step, unless the state is not what it was when it was made or loaded.

        Returns whether it was: damage is found as the update comes to it, and then no version is here any more. Raises
        NotFiniteError.
        """
        version, changed = self.version, ("params", *self.optimizer.state_names())
        known, expected = self._checksums
        expected = expected if known == version else {}
        rest = self.state_of(version).piece_sums(but=changed)
        self._begin_change()
        sums = UpdateChecksums(self.groups(step).values(), changed)
        try:
            update = self._apply(step, scale, learning_rate, sums)
        except NotFiniteError:
            sums.complete_before()
            if _fit(sums.before | rest, expected):
                raise
            return False
        if not _fit(sums.before | rest, expected):
            return False
        self.log.add(update)
        self._checksums = step + 1, sums.after | self.state_of(step + 1).piece_sums(but=changed)
        self.version = step + 1
        return True

    def _apply(self, step: int, scale: float, learning_rate: float, sums: UpdateChecksums) -> LoggedUpdate | None:
        """Apply the reduced gradients of a step, and return the update for the log, if it is to be there."""
        latest, runner = self.groups(step + 1), self.runner(step)
        kept, ratios = self._kept_sums(runner) if self.log.wanted else None, {}
        for name, group in runner.stage.groups.items():  # all of them first: what a failing update leaves is compared
            if group is not latest[name]:
                _succeed(group, latest[name])
        for name, group in runner.stage.groups.items():
            reduced = self.reduced.get(name, group.sums)
            gradient = reduced.gradient()
            ratios[name] = self.optimizer.apply(group, gradient, scale, learning_rate, step, sums)
            group.learnt(reduced, step)
        self.reduced.clear()
        runner.weights_written()
        if runner.stage.rounding is not None:
            runner.stage.rounding.exponent = EXPONENT
        runner.clear()
        runner.copy_weights()
        return None if kept is None else LoggedUpdate(step, scale, learning_rate, ratios, kept)

    def _kept_sums(self, runner: StageRunner) -> dict[str, Sums] | None:
        """Return the sums of a step for the log; None where an update with them cannot be followed."""
        kept: dict[str, Sums] = {}
        for name, group in runner.stage.groups.items():
            sums = kept_sums(self.reduced.get(name, group.sums), own=name not in self.reduced)
            if sums is None:
                return None
            kept[name] = sums
        return kept

    def hash(self, version: int) -> str:
        """Hash the state, which was loaded at this version, and return its root."""
        return self.keep_leaves(version, b"".join(self.pieces.leaves(version)))

    def keep_leaves(self, version: int, leaves: bytes) -> str:
        """Keep the hashes of all pieces of a state that was loaded at this version, and return its root."""
        self._checksums = -1, {}
        self.keep_checksums(version)
        return self._keep(version, leaves)

    def _hash_made(self, version: int) -> str | None:
        leaves = b"".join(self.pieces.leaves(version))
        return self._keep(version, leaves) if self.is_intact() else None  # after all of it was read

    def _keep(self, version: int, leaves: bytes) -> str:
        """Keep the hashes of all pieces, for peers that load them, and return the root."""
        root = root_of([leaves])
        kept = range(version - LEAVES_KEPT + 1, version)
        self.leaves = {old: hashes for old, hashes in self.leaves.items() if old in kept} | {version: leaves}
        self.roots = {old: before for old, before in self.roots.items() if old in kept} | {version: root}
        return root

    def keep_checksums(self, version: int) -> None:
        """Take checksums of the state at this version, with which it is compared; those that are here remain."""
        if self._checksums[0] != version:
            self._checksums = version, self.state_of(version).piece_sums()

    def is_intact(self) -> bool:
        """Return whether the state in memory is still what it was when it was made or loaded."""
        return self._fits()

    def weights_are_intact(self) -> bool:
        """Return the same of what gradients are computed with.

        Of the optimizer's moments nothing but an update is made, which compares them itself.
        """
        return self._fits(but=self.optimizer.state_names())

    def _fits(self, but: tuple[str, ...] = ()) -> bool:
        version, expected = self._checksums
        return version != self.version or _fit(self.state_of(version).piece_sums(but), expected)

    def read(self, piece: Span, version: int) -> bytearray | None:
        """Return the state of a piece for another process; None: it is not what it was when it was made or loaded.

        What is given is compared, not what lies in memory a moment before or after. It is of no use where the version
        is another one by then.
        """
        data = self.pieces.read(piece, version)
        known, expected = self._checksums
        if known != version:
            return data
        number = piece.start // PIECE_ELEMENTS
        found = self.pieces.sums_of(piece, version, data)
        return data if all(int(expected[name][number]) == int(value) for name, value in found.items()) else None

    def name_of(self, group: str) -> str:
        """Return a name of a group's state, as its peers have it if they made the same updates."""
        self.keep_checksums(self.version)
        version, sums = self._checksums
        own = (name for name in sorted(sums) if name.startswith(f"{group}."))
        return f"{version} " + " ".join(str(int(sums[name].sum())) for name in own)

    def begin_hash(self, threads: Executor) -> Future[str | None]:
        """Begin to hash the state as it is now, beside the next step; return its root once that is done.

        None: it is damaged, and has no root.
        """
        reader = threads.submit(self._hash_made, self.version)
        with self._changing:
            self._readers.append(reader)
        return reader

    def begin_reading(self, version: int) -> Future[None] | None:
        """Keep this version as it is until the future has a result; None: it is not here (any more)."""
        with self._changing:
            if self.version != version:
                return None
            reader: Future[None] = Future()
            self._readers.append(reader)
            return reader

    def _begin_change(self) -> None:
        """Wait for who reads the version. Then it is neither the old nor the new one: nobody copies a mixture."""
        while True:
            with self._changing:
                self._readers = [reader for reader in self._readers if not reader.done()]
                if not self._readers:
                    self.version, self._checksums = -1, (-1, {})
                    return
            wait(self._readers)

    def clock(self) -> float:
        """Return the time: on a CPU the thread's own, as a frozen or waiting process does not compute."""
        return time.thread_time() if self.stage.device.type == "cpu" else time.monotonic()


def _fit(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Return whether the checksums of tensors are those that are expected of them, if any."""
    return all(torch.equal(expected.get(name, sums), sums) for name, sums in found.items())


@torch.no_grad()
def _succeed(group: FlatGroup, latest: FlatGroup) -> None:
    """Make a group the one that is updated next: from the latest parameters, on the grid that was learnt last."""
    group.params.copy_(latest.params)
    if isinstance(group.sums, BlockwiseSums) and isinstance(latest.sums, BlockwiseSums):
        group.sums.grid.spacings.copy_(latest.sums.grid.spacings)
