"""The root of a state is the same in memory and in a file, and every byte of it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.compute.stage_state import chunks
from swarmflow.compute.tensorfile import read_header
from swarmflow.errors import CorruptError
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.test_followed_pieces import MODES, stage_of, step


def write(served: Served, elements: dict[str, int], folder: Path) -> Checkpoint:
    """Write the state of a stage to a disk."""
    number = served.stage.layout.stage
    checkpoint = Checkpoint.begin(folder, served.version, "run", served.stage.layout.stages)
    writer = checkpoint.writer(number, elements)
    for name, start, stop in chunks(elements):
        writer.write(name, start, served.state.read(name, start, stop))
    checkpoint.add(number, writer)
    return checkpoint


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(("sums", "delay"), MODES)
@pytest.mark.parametrize("number", [0, 1])
def test_a_file_has_the_root_of_what_was_written(
    tmp_path: Path, number: int, sums: str, delay: int, optimizer: str
) -> None:
    of = manifest(**SUMS[sums], delay=delay, optimizer=optimizer)
    served = stage_of(of, number)
    for each in range(3):
        step(served, each, reduced=True)
    checkpoint = write(served, state_tensor_lengths(of, number), tmp_path)
    assert checkpoint.root(number) == served.hash(served.version)
    assert served.roots == {served.version: checkpoint.root(number)}


def test_a_bit_anywhere_in_a_file_is_found(tmp_path: Path) -> None:
    of = manifest(**SUMS["blockwise16"], delay=1)
    served = stage_of(of)
    step(served, 0, reduced=True)
    checkpoint = write(served, state_tensor_lengths(of, 0), tmp_path)
    path = checkpoint.path / "stage-0.safetensors"
    whole = path.read_bytes()
    shapes, at = read_header(path)
    for (count,) in shapes.values():
        for element in (0, count - 1):
            spoilt = bytearray(whole)
            spoilt[at + 4 * element] ^= 1
            path.write_bytes(spoilt)
            with pytest.raises(CorruptError, match="its root is not the one in the manifest"):
                checkpoint.state(0)
        at += 4 * count
    path.write_bytes(whole)
    checkpoint.state(0).close()
