"""A microbatch on the wire, as the stages of a run take it: token ids and activations, or the tensors of a module."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from swarmflow.compute.codec import Codec, Encoding, decode_tokens, decode_words
from swarmflow.compute.device_work import AtOnce, DeviceWork, bytes_of, tensor_of
from swarmflow.compute.experts import packed, unpacked
from swarmflow.compute.finite import finite
from swarmflow.compute.graphs.description import INPUT_BYTES, BatchTensor, GraphModel, graph_model, is_graph
from swarmflow.compute.grouped_stage import GraphInput, GroupedStage, PackedInput, StageInput, two_documents
from swarmflow.errors import FrameError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.store import Buffer
from swarmflow.targets import EMPTY, IGNORED


class MicrobatchFormat(ABC):
    """Decodes what arrives with a microbatch, onto the device of a piece of work. dtype: of tensors at boundaries.

    Whatever does not fit the run raises FrameError: in the call, or where numbers are read when the work is done.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.dtype = torch.bfloat16 if manifest.precision == "bf16" else torch.float32

    @abstractmethod
    def input(
        self,
        stage: GroupedStage,
        data: Buffer,
        targets: Buffer,
        codec: Codec,
        rows: int | None = None,
        work: DeviceWork | None = None,
    ) -> StageInput:
        """Return what enters a stage.

        targets: travel with the microbatch. codec: of the boundary. rows: of the microbatch, where they may be fewer.
        work: of which the decoding is a part; None: the thread waits for the device.
        """

    @abstractmethod
    def targets(self, data: Buffer, rows: int | None = None) -> Tensor:
        """Return the targets of the last stage, in the memory of the host: they are counted there."""

    @abstractmethod
    def gradient(self, stage: GroupedStage, data: Buffer, codec: Codec, work: DeviceWork | None = None) -> Tensor:
        """Return the gradient of a stage's output. codec: of that boundary."""

    def encode(self, stage: GroupedStage, tensor: Tensor, codec: Codec, work: DeviceWork) -> Encoding:
        """Return the wire form of what leaves a stage, in either direction; None in it: a value is not finite."""
        # The conversion may turn a finite value into an infinite one.
        return codec.begin_encode(tensor.detach().to(self.dtype), work)

    @abstractmethod
    def trial(self, stage: GroupedStage) -> StageInput:
        """Return zeros that a stage can take."""

    def _boundary_tensor(self, shape: Sequence[int], data: Buffer, codec: Codec, work: DeviceWork) -> Tensor:
        tensor = codec.decode(data, shape, self.dtype, work=work)
        if work.at_once:
            _refuse_unless(finite(tensor))
        else:
            work.read([torch.isfinite(tensor).all()], lambda found: _refuse_unless(bool(found[0])))
        return work.hand_over(tensor)


class TokenFormat(MicrobatchFormat):
    """Of a language model: token ids int32 [B, T] and targets alike; activations and gradients [B, T, H].

    Where several documents are in a row, or places without a token are not to count, targets are [B, 2, T]: beside each
    row of targets stand the positions of its tokens in their documents.
    """

    def input(
        self,
        stage: GroupedStage,
        data: Buffer,
        targets: Buffer,
        codec: Codec,
        rows: int | None = None,
        work: DeviceWork | None = None,
    ) -> StageInput:
        """Return token ids for the first stage, hidden states for the others, with positions where there are some."""
        work = work or AtOnce(stage.device)
        x: Tensor
        if stage.first:
            tokens = decode_tokens(data, self._shape(rows)[:2], self._manifest.vocab_size)
            x = work.hand_over(work.copy_in(tokens))
        else:
            x = self._boundary(stage, rows, data, codec, work)
        if not self._manifest.sends_positions:
            return x
        positions = work.hand_over(work.copy_in(self._positions(targets, rows)))
        return PackedInput(x, positions, separate=self._manifest.positions)

    def targets(self, data: Buffer, rows: int | None = None) -> Tensor:
        """Return the targets, int64 [B, T], at least one of which counts in the loss."""
        if not self._manifest.ignored_targets:
            return decode_tokens(data, self._shape(rows)[:2], self._manifest.vocab_size)
        found = self._targets_and_positions(data, rows)[0]
        if bool(((found < 0) & (found != IGNORED)).any()) or bool((found >= self._manifest.vocab_size).any()):
            raise FrameError(f"a target is neither {IGNORED} nor within [0, {self._manifest.vocab_size})")
        if bool((found == IGNORED).all()):
            raise FrameError("a microbatch came without a target that counts in the loss")
        return found

    def gradient(self, stage: GroupedStage, data: Buffer, codec: Codec, work: DeviceWork | None = None) -> Tensor:
        """Return the gradient of hidden states [B, T, H]."""
        return self._boundary(stage, None, data, codec, work or AtOnce(stage.device))

    def encode(self, stage: GroupedStage, tensor: Tensor, codec: Codec, work: DeviceWork) -> Encoding:
        """As of any format; what is beside the hidden states follows them in fp32, in whatever codec these are."""
        count = stage.layout.beside
        if not count:
            return super().encode(stage, tensor, codec, work)
        hidden, beside = unpacked(tensor.detach(), self._manifest.boundary_width, count)
        encoding = super().encode(stage, hidden, codec, work)

        def follow(found: list[Tensor]) -> None:
            wire, encoding.wire = encoding.wire, None
            if wire is not None and finite(found[0]):
                encoding.wire = memoryview(bytes(wire) + bytes(bytes_of(found[0].view(-1))))

        work.read([beside.contiguous()], follow)
        return encoding

    def _boundary(self, stage: GroupedStage, rows: int | None, data: Buffer, codec: Codec, work: DeviceWork) -> Tensor:
        count = stage.layout.beside
        if not count:
            return self._boundary_tensor(self._shape(rows), data, codec, work)
        view, shape = memoryview(data).cast("B"), self._shape(rows)
        end = view.nbytes - 4 * shape[0] * count
        if end < 0:
            raise FrameError(f"a tensor of {view.nbytes} bytes came without what balances experts")
        hidden = self._boundary_tensor(shape, view[:end], codec, work)
        beside = tensor_of(np.frombuffer(view[end:], dtype=np.uint8), shape[0] * count, torch.float32)
        _refuse_unless(finite(beside))
        return work.hand_over(packed(hidden, work.copy_in(beside.view(shape[0], count))))

    def trial(self, stage: GroupedStage) -> StageInput:
        """Return token ids for the first stage, hidden states for the others."""
        shape = self._shape()
        x = torch.zeros(shape[:2], dtype=torch.int64) if stage.first else torch.zeros(shape)
        if stage.layout.beside and not stage.first:
            x = packed(x, torch.zeros(shape[0], stage.layout.beside))
        return two_documents(x, shape[1]) if self._manifest.positions else x

    def _positions(self, data: Buffer, rows: int | None) -> Tensor:
        """Return positions, int64 [B, T]: each is 0 or follows the one before it; places left at the end are EMPTY."""
        positions = self._targets_and_positions(data, rows)[1]
        follows = torch.nn.functional.pad(positions[:, :-1] + 1, (1, 0))
        right = (positions == 0) | (positions == follows)
        if self._manifest.empty_places:
            left = (positions == EMPTY).flip(1).long().cumprod(1).flip(1)
            right |= left.bool()
        if not bool(right.all()):
            raise FrameError("positions came that neither begin a document nor go on with one")
        return positions

    def _targets_and_positions(self, data: Buffer, rows: int | None) -> tuple[Tensor, Tensor]:
        count, tokens, _ = self._shape(rows)
        if not self._manifest.sends_positions:
            found = decode_words(data, (count, tokens)).view(count, tokens).long()
            return found, torch.empty(0)
        both = decode_words(data, (count, 2, tokens)).view(count, 2, tokens).long()
        return both[:, 0], both[:, 1]

    def _shape(self, rows: int | None = None) -> tuple[int, int, int]:
        of = self._manifest
        return rows or of.microbatch_sequences, of.seq_len, of.boundary_width


class GraphFormat(MicrobatchFormat):
    """Of a module: the tensors of a batch as words of 4 bytes [1, n], and those of a boundary packed into one [1, n].

    What the first stage alone needs of a batch goes to it; the rest travels with the microbatch, as targets do.
    """

    def __init__(self, manifest: Manifest, model: GraphModel) -> None:
        super().__init__(manifest)
        self.dtype = torch.float32  # of all tensors in one, whatever each of them has
        self._model = model
        self._early, self._late = model.early(manifest.cut), model.late(manifest.cut)

    def input(
        self,
        stage: GroupedStage,
        data: Buffer,
        targets: Buffer,
        codec: Codec,
        rows: int | None = None,
        work: DeviceWork | None = None,
    ) -> StageInput:
        """Return the boundary, and the tensors of the batch that this stage may need."""
        work = work or AtOnce(stage.device)
        batch = unpack(targets, self._late) | (unpack(data, self._early) if stage.first else {})
        there = {name: work.hand_over(work.copy_in(tensor)) for name, tensor in batch.items()}
        if stage.first:
            return GraphInput(None, there)
        return GraphInput(self._boundary_tensor(self._boundary(stage.layout.stage - 1), data, codec, work), there)

    def targets(self, data: Buffer, rows: int | None = None) -> Tensor:
        """Return nothing: the loss is in the graph."""
        return torch.empty(0)

    def gradient(self, stage: GroupedStage, data: Buffer, codec: Codec, work: DeviceWork | None = None) -> Tensor:
        """Return the gradient of the boundary after a stage."""
        return self._boundary_tensor(self._boundary(stage.layout.stage), data, codec, work or AtOnce(stage.device))

    def trial(self, stage: GroupedStage) -> StageInput:
        """Return zeros for the boundary and for the batch."""
        batch = {each.name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype)) for each in self._model.inputs}
        return GraphInput(None if stage.first else torch.zeros(self._boundary(stage.layout.stage - 1)), batch)

    def _boundary(self, number: int) -> tuple[int, int]:
        return 1, self._model.boundary(self._manifest.cut, number)


def _refuse_unless(is_finite: bool) -> None:
    if not is_finite:  # the computing peer reports such a value instead of sending it
        raise FrameError("a tensor with a value that is not finite came")


def unpack(data: Buffer, tensors: Sequence[BatchTensor]) -> dict[str, Tensor]:
    """Return the tensors of a batch, by name. Raises FrameError for what does not fit or is no number."""
    words = decode_words(data, (1, sum(each.words for each in tensors)))
    found: dict[str, Tensor] = {}
    start = 0
    for each in tensors:
        count = math.prod(each.shape) * INPUT_BYTES[each.dtype]
        raw = words[start : start + each.words].view(torch.uint8)[:count]
        start += each.words
        if each.dtype == "bool" and bool((raw > 1).any()):
            raise FrameError(f"the tensor {each.name} has truth values other than 0 and 1")
        # A copy lies where 8 bytes can be read at once.
        found[each.name] = raw.clone().view(getattr(torch, each.dtype)).view(each.shape)
        if each.dtype == "float32" and not finite(found[each.name]):
            raise FrameError(f"the tensor {each.name} has a value that is not finite")
    return found


def format_of(manifest: Manifest) -> MicrobatchFormat:
    """Return the format of a run's microbatches. Raises ModelError where its module is described wrongly."""
    if is_graph(manifest.model):
        return GraphFormat(manifest, graph_model(manifest.model))
    return TokenFormat(manifest)
