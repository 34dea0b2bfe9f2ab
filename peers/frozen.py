"""The frozen weights of the stage that a peer serves, where adapters are trained beside them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from peers.kept_base import KeptBase
from swarmflow.compute.base_weights import read_base, write_base
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.base_transfer import load_base, serve_base
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.session import Session

OnFilled = Callable[[ProcessId | str, int, int], None]
"""(donor, or what they are read from, bytes so far, bytes of all)."""


@dataclass(frozen=True)
class _HeldBase:
    """Those of a stage in memory."""

    served: Served

    def leaves(self) -> bytes:
        """Return the hashes of all pieces."""
        return self.served.base_leaves

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes start to stop."""
        base = self.served.stage.base
        assert base is not None, "it was loaded"
        return read_base(base, start, stop)


@dataclass
class FrozenLoader:
    """Loads them for a stage, and gives them to others."""

    manifest: Manifest
    session: Session
    serving: Callable[[], Served | None]
    near: Callable[[], frozenset[str]]  # the names of peers of this host, which are asked first
    trainers: Callable[[], Sequence[ProcessId]] = field(default=lambda: ())  # those that are known, the leader first
    disk: KeptBase = field(default_factory=lambda: KeptBase(None))

    async def fill(self, served: Served, peers: Sequence[ProcessId], on_progress: OnFilled) -> None:
        """Read the frozen weights of a stage from the disk, or fetch them, if it has some and lacks them.

        peers: that serve the stage. Raises NetworkError.
        """
        base, stage = served.stage.base, served.stage.layout.stage
        if base is None:
            return
        if stage >= len(self.manifest.base):
            raise NetworkError("the run's manifest does not name its frozen weights")
        root = self.manifest.base[stage]
        if not served.base_leaves:
            served.base_leaves = await self._leaves(stage, root, base, peers, on_progress)
        self.session.spawn(self.disk.keep(root, served.base_leaves, weakref.ref(base)), "keeping the frozen weights")

    async def _leaves(
        self, stage: int, root: str, base: Tensor, peers: Sequence[ProcessId], on_progress: OnFilled
    ) -> bytes:
        """Set the frozen weights, and return the hashes of their pieces. Raises NetworkError."""
        total_bytes, write = base.numel(), partial(write_base, base)
        leaves = await self.disk.read(root, total_bytes, write, partial(on_progress, "the state folder"))
        if leaves is not None:
            return leaves
        donors, beside = tuple(dict.fromkeys((*peers, *self.trainers()))), self.near()
        near = [peer for peer in peers if peer.name in beside]
        return await load_base(self.session.requests, donors, stage, root, total_bytes, write, on_progress, near=near)

    def serve(self) -> None:
        """Answer the requests for those of the stage that is served."""

        def held(stage: int) -> Served:
            served = self.serving()
            if served is None or served.stage.layout.stage != stage or not served.base_leaves:
                raise NetworkError(f"the frozen weights of stage {stage} are not here (any more)")
            return served

        serve_base(
            self.session.requests,
            lambda stage: _HeldBase(held(stage)),
            lambda stage: held(stage).stage.layout.base_bytes,
        )
