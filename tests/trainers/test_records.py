"""Records become the tensors of microbatches, and arrive at stages as they were."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.compute.codec import encode_tokens
from swarmflow.compute.graphs.description import BatchTensor, GraphModel, graph_as_json
from swarmflow.config import load
from swarmflow.errors import DataError, FrameError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.microbatch_format import unpack
from tests.runtime.manifests import manifest
from trainers.records import Records, open_records, pack

HERE = "tests.trainers.test_records"
NUMBERS = [{"value": number} for number in range(7)]


def collate(records: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Values, as they are."""
    return {"value": np.array([record["value"] for record in records])}


def growing(records: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """As many values as the first record says."""
    return {"value": np.zeros(1 + records[0]["value"])}


def doubles(records: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Of a dtype that is not sent."""
    return {"value": torch.zeros(len(records), dtype=torch.float64)}


def nothing(records: list[dict[str, Any]]) -> list[int]:
    """What is no dict."""
    return [len(records)]


both = threading.Barrier(2, timeout=0.3)


def meeting(records: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Whether another thread is here at the same time."""
    met = False
    if threading.current_thread() is not threading.main_thread():
        try:
            both.wait()
            met = True
        except threading.BrokenBarrierError:
            pass
    return {"value": np.array([met])}


def opened(
    folder: Path,
    function: str = "collate",
    records: list[Any] = NUMBERS,
    name: str = "r.jsonl",
    held_out: list[Any] | None = None,
) -> Records:
    """The records of a run, two of which make a microbatch."""
    (folder / name).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    validation = ""
    if held_out is not None:
        (folder / "held-out.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in held_out))
        validation = 'validation_path = "held-out.jsonl"\n'
    (folder / "RUN.toml").write_text(
        f'[model]\nmodule = "a:b"\nstages = 1\n[data]\npath = "{name}"\ncollate = "{HERE}:{function}"\n'
        f"{validation}[train]\nmicrobatches = 2\nmicrobatch_sequences = 2\n"
    )
    return open_records(load(folder / "RUN.toml"))


def test_microbatches_have_the_next_records_again_and_again(tmp_path: Path) -> None:
    records = opened(tmp_path)
    assert records.summary == "7 records"
    assert records.inputs == [BatchTensor("value", (2,), "int64")]
    found = [records.tensors(step, index)["value"].tolist() for step in range(2) for index in range(2)]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 0]]


def test_two_lives_do_not_make_batches_at_a_time(tmp_path: Path) -> None:
    records = opened(tmp_path, "meeting")
    with ThreadPoolExecutor(2) as threads:
        met = list(threads.map(lambda index: bool(records.tensors(0, index)["value"]), range(2)))
    assert met == [False, False]


def test_other_records_have_another_digest(tmp_path: Path) -> None:
    one = opened(tmp_path).digest
    assert opened(tmp_path).digest == one
    assert opened(tmp_path, records=NUMBERS[:-1]).digest != one


@pytest.mark.parametrize(
    ("function", "records", "name", "reason"),
    [
        ("collate", [{"other": 1}] * 2, "r.jsonl", r"fails for 2 records \(KeyError: 'value'\)"),
        ("collate", [{"value": [1]}, {"value": "b"}], "r.jsonl", "fails for 2 records"),
        ("doubles", NUMBERS, "r.jsonl", "value is float64; allowed are float32, int64"),
        ("nothing", NUMBERS, "r.jsonl", "returns list; it has to return a dict of named tensors"),
        ("collate", NUMBERS[:1], "r.jsonl", "holds 1 records: one microbatch needs"),
        ("collate", NUMBERS, "r.txt", "r.txt holds no records; give .jsonl"),
    ],
)
def test_records_that_make_no_batch_are_refused(
    tmp_path: Path, function: str, records: list[Any], name: str, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        opened(tmp_path, function, records, name)


def test_a_batch_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"value is float64|returns value \w+ \[3\], and value \w+ \[1\]"):
        opened(tmp_path, "growing").tensors(0, 1)


def test_a_collate_function_of_another_version_is_refused(tmp_path: Path) -> None:
    def of(*inputs: BatchTensor) -> Manifest:
        return manifest(model=graph_as_json(GraphModel("a:b", {}, 2, inputs, (), (0,), "")), cut=())

    records = opened(tmp_path)
    records.fit(of(BatchTensor("value", (2,), "int64", 0)))
    assert [part.shape for part in records.microbatch(0, 0)] == [(1, 4), (1, 0)]
    with pytest.raises(DataError, match=r"makes value int64 \[2\] here, and value int64 \[3\] where the run began"):
        records.fit(of(BatchTensor("value", (3,), "int64", 0)))


@given(st.data())
def test_tensors_come_through_as_they_were(data: st.DataObject) -> None:
    batch: dict[str, npt.NDArray[Any]] = {}
    for number, dtype in enumerate(
        data.draw(st.lists(st.sampled_from(["float32", "int64", "int32", "uint8", "bool"])))
    ):
        shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
        drawn = np.random.default_rng(number).integers(0, 2 if dtype == "bool" else 200, shape)
        batch[f"tensor {number}"] = drawn.astype(dtype)
    tensors = [BatchTensor(name, value.shape, value.dtype.name) for name, value in batch.items()]
    found = unpack(encode_tokens(pack(tensors, batch)), tensors)
    assert found.keys() == batch.keys()
    for name, value in batch.items():
        assert found[name].numpy().dtype == value.dtype
        np.testing.assert_array_equal(found[name].numpy(), value)


@pytest.mark.parametrize(
    ("value", "dtype"), [(np.array([np.nan], dtype=np.float32), "float32"), (np.array([2], dtype=np.uint8), "bool")]
)
def test_what_is_no_number_is_refused(value: npt.NDArray[Any], dtype: str) -> None:
    sent = pack([BatchTensor("x", (1,), value.dtype.name)], {"x": value})
    with pytest.raises(FrameError, match="the tensor x has"):
        unpack(encode_tokens(sent), [BatchTensor("x", (1,), dtype)])


def test_a_batch_of_another_length_is_refused() -> None:
    sent = pack([BatchTensor("x", (1,), "int64")], {"x": np.array([2])})
    with pytest.raises(FrameError, match="bytes came where"):
        unpack(encode_tokens(sent), [BatchTensor("x", (2,), "int64")])


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_records_for_validation_are_told(count: int, tmp_path: Path) -> None:
    complaint = rf"held-out\.jsonl holds {count} records: one microbatch needs train\.microbatch_sequences = 2"
    with pytest.raises(DataError, match=complaint):
        opened(tmp_path, held_out=NUMBERS[:count])
    assert len(list(opened(tmp_path, held_out=NUMBERS[:3]).validation())) == 1
