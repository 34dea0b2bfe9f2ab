"""Gives the frozen weights of a fine-tuned run to peers, from the model's folder."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from swarmflow.compute.base_weights import FolderBase, base_leaves, base_root
from swarmflow.compute.layout import layout_in_run
from swarmflow.errors import CheckpointError, NetworkError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.base_transfer import serve_base
from swarmflow.runtime.transport.requests import Requests

log = logging.getLogger("swarmflow")


class FrozenWeights:
    """The frozen weights of all stages of a run; a stage is hashed when it is first asked for."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self._manifest = manifest
        self._folder = folder
        self._stages: dict[int, _StageBase] = {}
        self._opening = threading.Lock()

    def serve(self, requests: Requests) -> None:
        """Answer the requests for them."""
        serve_base(requests, self._stage, lambda stage: self._stage(stage).total_bytes)

    def _stage(self, stage: int) -> _StageBase:
        """Raises NetworkError."""
        if not 0 <= stage < len(self._manifest.base):
            raise NetworkError(f"there are no frozen weights of a stage {stage}")
        try:
            with self._opening:
                if stage not in self._stages:
                    found = FolderBase(layout_in_run(self._manifest, stage), self._folder)
                    self._stages[stage] = _StageBase(found, self._manifest.base[stage], f"stage {stage}")
                return self._stages[stage]
        except CheckpointError as error:
            raise NetworkError(f"the frozen weights cannot be read: {error}") from error


@dataclass
class _StageBase:
    """The frozen weights of a stage, of which one range is read at a time."""

    source: FolderBase
    root: str
    name: str
    _leaves: bytes | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def total_bytes(self) -> int:
        """Return how many bytes there are."""
        return self.source.total_bytes

    def leaves(self) -> bytes:
        """Return the hashes of all pieces. Raises NetworkError where the folder was changed since the run began."""
        with self._lock:
            if self._leaves is None:
                try:
                    self._leaves = base_leaves(self.total_bytes, self.source.read)
                except CheckpointError as error:
                    raise NetworkError(f"the frozen weights cannot be read: {error}") from error
                if base_root(self._leaves) != self.root:
                    log.warning(
                        "model.path has other weights of %s than the run began with: peers take them from each other, "
                        "or from another trainer, as long as somebody has them",
                        self.name,
                    )
            if base_root(self._leaves) != self.root:
                raise NetworkError(f"this trainer has other weights of {self.name} than the run began with")
            return self._leaves

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes start to stop. Raises NetworkError."""
        try:
            with self._lock:
                return self.source.read(start, stop)
        except CheckpointError as error:
            raise NetworkError(f"the frozen weights cannot be read: {error}") from error
