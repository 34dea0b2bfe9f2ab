"""The tables of what a step sends are what `python -m benchmarks.step_bytes` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.step_bytes import CODECS, PAGES, measure, sent_bytes, shown, table
from swarmflow.local.forkserver import ForkServer

STEPS = 20  # instead of the command's 100


def test_the_pages_show_one_table_as_the_command_writes_it() -> None:
    pages = [path.read_text(encoding="utf-8") for path in PAGES]
    [rows, *others] = map(shown, pages)
    assert [row.reduce_codec for row in rows] == list(CODECS)
    assert all(other == rows for other in others)
    assert all(table(rows) in page for page in pages)


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("reduce_codec", ["blockwise16", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_a_swarm_sends_what_the_table_shows(reduce_codec: str, tmp_path: Path, forks: ForkServer) -> None:
    [row] = [row for row in shown(PAGES[0].read_text(encoding="utf-8")) if row.reduce_codec == reduce_codec]
    found = sent_bytes(reduce_codec, measure(tmp_path, reduce_codec, STEPS, forks))
    # How many bits a sum needs depends on the gradients, which are not those of the later steps.
    rel = 0.1 if reduce_codec == "blockwise16" else 0.03
    assert found.a_parameter == pytest.approx(row.a_parameter, rel=rel)
    assert found.a_microbatch == pytest.approx(row.a_microbatch, rel=0.1), "it is read amid the microbatches of a step"
