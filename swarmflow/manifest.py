"""The manifest of a run: all that a peer has to know of it, published by its trainers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
from blake3 import blake3

from swarmflow.boundary import Boundary
from swarmflow.core.protocol.piece_format import INT64, PieceFormat, piece_format
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import Plan, SharedWeights, tied_ends
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import IncompatibleError
from swarmflow.ownership import RUN_ID

MANIFEST_BYTES_MAX = 1 << 20
_ROOT = re.compile("[0-9a-f]{64}")  # of frozen weights, after which peers name files
_TENSOR_HEADER_BYTES = 1 << 16  # more than any codec puts before the numbers
ADAPTIVE = "adatopk"
# Fields that the folders of earlier versions lack: left out where they say nothing, so that such a run keeps its name.
_LATER = {"empty_places": False}
_BYTES = {"blockwise8": 1, "fp16": 2, "none": 4, ADAPTIVE: 1}  # of a number on the wire, about, or at most


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One run. Every process of a run holds the same bytes of it; its fingerprint says so.

    run_id: random, names the run in the DHT. model: config.json of the model, or a module's graph. cut: first block, or
    operator, of stages 1, 2, ... costs: measured seconds of each stage for one microbatch, relative. parameters: of
    each stage, a tied weight counted on both. Of a module, seq_len is 1, vocab_size 0, and hidden_size what crosses the
    widest boundary for one item. export_dtype: of the numbers in exports. config: fingerprint of RUN.toml, key by key.
    corpus: digest of the data. from_seed: fresh weights, drawn by each peer from `seed`; else the trainers hold version
    0. timeouts: of all its processes. boundary: how the tensors between its stages are compressed, None: not by what is
    learnt.
    """

    run_id: str
    name: str
    software: str
    model: dict[str, Any]
    cut: tuple[int, ...]
    costs: tuple[float, ...]
    parameters: tuple[int, ...]
    dropout: bool
    from_seed: bool
    seed: int
    vocab_size: int
    hidden_size: int
    seq_len: int
    microbatch_sequences: int
    microbatches: int
    optimizer: str
    betas: tuple[float, float]
    momentum: float
    eps: float
    weight_decay: float
    precision: str
    accumulate: str
    codec: str
    reduce_codec: str
    delay: int  # steps by which updates are delayed
    router: str
    tied: bool
    tokenizer: str
    corpus: str
    export_dtype: str
    config: dict[str, Any]
    timeouts: Timeouts
    cuts: int = 0  # how often the run was cut anew
    compression_ratio: float = 0.0  # of the slowest boundary, with an adaptive codec
    state_bits: int = 32  # of a number that the optimizer keeps for each parameter: 8 or 32
    boundary: Boundary | None = None
    shared: tuple[SharedWeights, ...] = ()  # of blocks that the edge of a stage separates; not the tied weight
    # Of each stage those that a token is multiplied with, where each block counts its own; empty: as `parameters`.
    computed_parameters: tuple[int, ...] = ()
    beside: int = 0  # fp32 numbers of a sequence that travel beside its hidden states, by which experts are balanced
    batch_words: int = 0  # of 4 bytes: of all tensors of a module's batch
    microbatch_gigaflops: float = 0.0  # counted, forward and backward; 0: they follow from the parameters
    ignored_targets: bool = False  # some targets do not count in the loss
    base: tuple[str, ...] = ()  # the root of each stage's frozen weights, where adapters are trained beside them
    positions: bool = False  # travel beside the targets: documents in one row see nothing of each other
    empty_places: bool = False  # of rows are marked in positions, which travel for that too: experts do not count them

    @property
    def stages(self) -> int:
        """Their number."""
        return len(self.cut) + 1

    @property
    def boundary_width(self) -> int:
        """How many numbers of a token travel between two stages."""
        return self.boundary.width(self.hidden_size) if self.boundary is not None else self.hidden_size

    @property
    def plan(self) -> Plan:
        """What the machines of the core need to know of it."""
        boundary_bytes = self.boundary_bytes(self.microbatch_sequences * self.seq_len * self.boundary_width)
        shared = (*self.shared, *(tied_ends(self.stages) if self.tied else ()))
        how = shared, self.gigaflops, self.router, boundary_bytes, self.delay, self.timeouts
        ratio = self.compression_ratio if self.codec == ADAPTIVE else 0.0
        return Plan(self.stages, self.microbatches, *how, tuple(map(self.piece.usual_bytes, self.parameters)), ratio)

    @property
    def sends_positions(self) -> bool:
        """Whether positions travel beside the targets."""
        return self.positions or self.empty_places

    def boundary_bytes(self, elements: int) -> int:
        """Return about how many bytes so many elements of a boundary tensor take on the wire."""
        return elements * _BYTES[self.codec]

    @property
    def tensor_bytes_max(self) -> int:
        """The largest tensor that travels in one frame: at a boundary, in whatever codec, with its header.

        Targets have one number a token, or two with positions.
        """
        boundary = self.microbatch_sequences * self.seq_len * max(self.boundary_width, 1 + self.sends_positions)
        beside = self.microbatch_sequences * self.beside
        return 4 * max(boundary + beside, self.batch_words) + _TENSOR_HEADER_BYTES

    @property
    def gigaflops(self) -> tuple[float, ...]:
        """The operations of a microbatch at each stage, forward and backward, in units of 10^9.

        If not counted, six a token and parameter that it is multiplied with (Kaplan et al., Scaling Laws for Neural
        Language Models), four where it is frozen: that has no gradient of its own. Divided among the stages as their
        measured seconds are.
        """
        tokens = self.microbatch_sequences * self.seq_len
        computed = sum(self.computed_parameters or self.parameters)
        trained = sum(self.parameters) if self.base else computed
        total = self.microbatch_gigaflops or 2e-9 * tokens * (2 * computed + trained)
        costs = self.costs or (1.0,) * self.stages
        return tuple(total * cost / sum(costs) for cost in costs)

    @property
    def piece(self) -> PieceFormat:
        """How many bytes a piece of its all-reduces may have."""
        return INT64 if self.accumulate == "exact" else piece_format(self.reduce_codec, self.delay)

    @property
    def fingerprint(self) -> str:
        """Names the manifest by its content."""
        return blake3(self.encode()).hexdigest()[:32]

    def encode(self) -> bytes:
        """As bytes, the same for the same manifest."""
        fields: dict[str, object] = msgspec.to_builtins(self)
        written = {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}
        return msgspec.json.encode(written, order="sorted")

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Manifest:
        """From bytes. Raises IncompatibleError when they are not a manifest that this software understands."""
        if len(data) > MANIFEST_BYTES_MAX:
            raise IncompatibleError(f"the run's manifest has {len(data)} bytes, more than {MANIFEST_BYTES_MAX}")
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except UNDECODABLE as error:
            raise IncompatibleError(f"the run's manifest does not fit this version of swarmflow: {error}") from error
        if not RUN_ID.fullmatch(manifest.run_id):
            raise IncompatibleError("the run's manifest has an impossible run id")
        for group, stages in manifest.shared:
            allowed = 1 < len(stages) == len(set(stages)) and all(0 <= stage < manifest.stages for stage in stages)
            if not (allowed and group.startswith("shared-")):
                raise IncompatibleError("the run's manifest has weights that no stages can share")
        if manifest.beside < 0:
            raise IncompatibleError(f"the run's manifest has an impossible beside, {manifest.beside}")
        if manifest.base and len(manifest.base) != manifest.stages:
            raise IncompatibleError("the run's manifest does not name the frozen weights of each stage")
        if not all(_ROOT.fullmatch(root) for root in manifest.base):
            raise IncompatibleError("the run's manifest has an impossible name of frozen weights")
        if problems := manifest.timeouts.problems():
            raise IncompatibleError(f"the run's manifest has an impossible timeouts.{problems[0]}")
        problem = manifest.boundary.problem(manifest.hidden_size) if manifest.boundary is not None else None
        if problem is not None:
            raise IncompatibleError(f"the run's manifest has an impossible boundary, {manifest.boundary}: {problem}")
        return manifest
