"""The data of a run of a module: records, which the user's collate function turns into the tensors of microbatches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import blake3
import msgspec
import numpy as np
import numpy.typing as npt

from swarmflow.compute.graphs.description import INPUT_BYTES, BatchTensor, graph_model
from swarmflow.config import DataSection, RunConfig
from swarmflow.errors import DataError
from swarmflow.manifest import Manifest
from trainers.data import Batch
from trainers.hub import one_line
from trainers.order import SequenceOrder
from trainers.sources import file_records, set_records

Tensors = dict[str, npt.NDArray[Any]]


class Records:
    """The training records of a run, and its validation records where it has some; they are kept in memory, packed.

    A microbatch holds the next B = train.microbatch_sequences records, by the same order as sequences of text.
    """

    def __init__(
        self,
        name: str,
        collate: Callable[..., object],
        order: SequenceOrder,
        training: Sequence[bytes],
        validation: Sequence[bytes] = (),
    ) -> None:
        """name: of the collate function. order: over the training records."""
        self._name = name
        self._collate = collate
        # A trainer that begins a new life may form microbatches while a thread of its former one ends.
        self._collating = threading.Lock()
        self._order = order
        self._training = training
        self._validation = validation
        self.digest = _digest(name, order.microbatch_sequences, training)
        self.summary = f"{len(training)} records"
        self.first = self._tensors([training[place] for place in order.of_microbatch(0, 0)])
        self.inputs = [BatchTensor(key, each.shape, each.dtype.name) for key, each in self.first.items()]
        self._early: Sequence[BatchTensor] = ()
        self._late: Sequence[BatchTensor] = ()

    def fit(self, manifest: Manifest) -> None:
        """Pack microbatches as the stages of this run take them from now on. Raises DataError: its batch is another."""
        model = graph_model(manifest.model)
        if [replace(each, last_use=-1) for each in model.inputs] != self.inputs:
            raise DataError(
                f"data.collate = {self._name!r} makes {_form(self.inputs)} here, and {_form(model.inputs)} where the "
                "run began: install the same version of its package"
            )
        self._early, self._late = model.early(manifest.cut), model.late(manifest.cut)

    def microbatch(self, step: int, index: int) -> Batch:
        """Return the tensors of microbatch `index` of step `step` as words, int32 [1, n] and [1, m].

        First those that the first stage alone needs. Raises DataError, as `tensors`.
        """
        return self._packed(self.tensors(step, index))

    def tensors(self, step: int, index: int) -> Tensors:
        """Return the same by name. Raises DataError where their form is not that of the first one."""
        return self._alike([self._training[place] for place in self._order.of_microbatch(step, index)])

    def validation(self) -> Iterator[Batch]:
        """Return the validation records in order, B at a time; the last ones, where they are fewer, are left out."""
        width = self._order.microbatch_sequences
        for first in range(0, len(self._validation) - width + 1, width):
            yield self._packed(self._alike(self._validation[first : first + width]))

    def save_tokenizer(self, folder: Path) -> None:
        """Make the folder, and write nothing into it: there is no tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)

    def _packed(self, tensors: Tensors) -> Batch:
        return pack(self._early, tensors), pack(self._late, tensors)

    def _alike(self, records: Sequence[bytes]) -> Tensors:
        tensors = self._tensors(records)
        found = [BatchTensor(key, each.shape, each.dtype.name) for key, each in tensors.items()]
        if found != self.inputs:
            raise DataError(
                f"data.collate = {self._name!r} returns {_form(found)}, and {_form(self.inputs)} for the first "
                "microbatch; names, shapes and dtypes have to stay the same"
            )
        return tensors

    def _tensors(self, records: Sequence[bytes]) -> Tensors:
        given = [msgspec.msgpack.decode(record) for record in records]
        where = f"data.collate = {self._name!r}"
        try:
            with self._collating:
                batch = self._collate(given)
        except Exception as error:  # code of a user fails in its own way
            raise DataError(
                f"{where} fails for {len(given)} records ({type(error).__name__}: {one_line(error)})"
            ) from error
        if not isinstance(batch, Mapping) or not batch or not all(isinstance(key, str) for key in batch):
            raise DataError(f"{where} returns {type(batch).__name__}; it has to return a dict of named tensors")
        return {key: _array(where, key, value) for key, value in batch.items()}


def open_records(config: RunConfig) -> Records:
    """Read the records of a run. Raises DataError: no data, unreadable, none; ModelError for the collate function."""
    from swarmflow.compute.graphs.user_functions import load_function  # loads torch, which text does not need here

    data, train = config.data, config.train
    assert data.collate is not None, "a run of a module has one"
    collate = load_function(data.collate, "data.collate")
    training = _packed_records(_records(data))
    name = data.dataset or data.path or ""
    held_out = [] if data.validation_path is None else _packed_records(file_records(data.validation_path))
    given = {name: training} if data.validation_path is None else {name: training, data.validation_path: held_out}
    for where, records in given.items():
        if len(records) < train.microbatch_sequences:
            raise DataError(
                f"{where} holds {len(records)} records: one microbatch needs train.microbatch_sequences = "
                f"{train.microbatch_sequences}"
            )
    order = SequenceOrder(
        sequences=len(training),
        microbatches=train.microbatches,
        microbatch_sequences=train.microbatch_sequences,
        seed=train.seed if data.order == "shuffled" else None,
    )
    return Records(data.collate, collate, order, training, held_out)


def _records(data: DataSection) -> Iterable[tuple[str, object]]:
    if data.dataset is not None:
        return set_records(data.dataset, data.dataset_config, data.split)
    if data.path is None:
        raise DataError("the run names no data; give data.path or data.dataset")
    return file_records(data.path)


def _packed_records(records: Iterable[tuple[str, object]]) -> list[bytes]:
    packed = []
    for where, record in records:
        try:
            packed.append(msgspec.msgpack.encode(record))
        except (TypeError, OverflowError, ValueError) as error:
            raise DataError(f"{where} holds something else than numbers, text, lists and objects: {error}") from None
    return packed


def _array(where: str, key: str, value: object) -> npt.NDArray[Any]:
    """Return a tensor of torch or numpy as an array. Raises DataError for another dtype than the wire has."""
    try:
        array = np.asarray(np.asarray(value), order="C")
    except Exception as error:  # torch refuses tensors on a device, or with a gradient
        raise DataError(f"{where}: {key} is no tensor on the CPU ({one_line(error)})") from error
    if array.dtype.name not in INPUT_BYTES:
        raise DataError(f"{where}: {key} is {array.dtype.name}; allowed are {', '.join(INPUT_BYTES)}")
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise DataError(f"{where}: {key} has a value that is not finite, which peers refuse (a mask: use torch.bool)")
    return array


def pack(tensors: Sequence[BatchTensor], batch: Tensors) -> npt.NDArray[np.int32]:
    """Pack tensors into words of 4 bytes, int32 [1, n], each tensor from a whole word on."""
    parts = []
    for each in tensors:
        raw = np.frombuffer(batch[each.name].astype(batch[each.name].dtype.newbyteorder("<")).tobytes(), dtype=np.uint8)
        parts.append(np.pad(raw, (0, 4 * each.words - len(raw))))
    flat = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)
    return flat.view("<i4").reshape(1, -1).astype(np.int32, copy=False)


def _form(tensors: Sequence[BatchTensor]) -> str:
    return ", ".join(f"{each.name} {each.dtype} {list(each.shape)}" for each in tensors)


def _digest(name: str, items: int, records: Sequence[bytes]) -> str:
    hasher = blake3.blake3(f"{name} {items} {len(records)}".encode())
    for record in records:
        hasher.update(len(record).to_bytes(8, "little") + record)
    return hasher.hexdigest()
