"""Microbatches are formed beside the event loop, in their order."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from swarmflow.compute.graphs.description import BatchTensor, GraphModel, graph_as_json
from swarmflow.config import load
from swarmflow.core.protocol.types import Epoch, Microbatch
from swarmflow.errors import DataError
from swarmflow.runtime.execution.microbatch_format import unpack
from tests.runtime.manifests import manifest
from trainers.forming import Encoded, Forming
from trainers.records import Records, open_records

TIMEOUT_S = 20.0
INPUT = BatchTensor("value", (2,), "int64", 0)
loop_ran = threading.Event()


def patient(records: list[dict[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Wait for the event loop; a negative value fails."""
    if threading.current_thread() is not threading.main_thread():
        assert loop_ran.wait(TIMEOUT_S), "the event loop waits for a microbatch"
    values = [record["value"] for record in records]
    if min(values) < 0:
        raise ValueError("negative")
    return {"value": np.array(values)}


def opened(folder: Path, values: list[int]) -> Records:
    """Records of which two make a microbatch; the first six are the held-out ones too."""
    for name, numbers in (("train", values), ("held-out", values[:6])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps({'value': each})}\n" for each in numbers))
    (folder / "RUN.toml").write_text(
        '[model]\nmodule = "a:b"\nstages = 1\n[data]\npath = "train.jsonl"\nvalidation_path = "held-out.jsonl"\n'
        f'collate = "{__name__}:patient"\n[train]\nmicrobatches = 4\nmicrobatch_sequences = 2\n'
    )
    records = open_records(load(folder / "RUN.toml"))
    records.fit(manifest(model=graph_as_json(GraphModel("a:b", {}, 2, (INPUT,), (), (0,), "")), cut=()))
    return records


def values_of(encoded: Encoded) -> list[int]:
    """What a microbatch holds."""
    return list(unpack(encoded[0], [INPUT])["value"].tolist())


@pytest.mark.asyncio
async def test_the_event_loop_runs_while_a_collate_function_takes_its_time(tmp_path: Path) -> None:
    loop_ran.clear()
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    forming = Forming(opened(tmp_path, [0, 1, 2, 3, 4, 5, -6, 7]), failure.set_result)
    formed: asyncio.Queue[Encoded] = asyncio.Queue()
    async with asyncio.timeout(TIMEOUT_S):
        for index in range(4):
            forming.form(Microbatch(Epoch(0, 0), index), formed.put_nowait)
        loop_ran.set()
        assert [values_of(await formed.get()) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        error = await failure
        assert isinstance(error, DataError)
        assert "negative" in str(error)
        held_out = [batch[0] async for batch in forming.validation()]
        assert [part.shape for part in held_out] == [(1, 4)] * 3
    forming.close()
