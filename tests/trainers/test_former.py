"""How far a run had come, as a trainer that is started again finds it in the folders of its output."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.core.durability.memories import NOTHING, Former
from trainers.found import newest_version
from trainers.state import StateFolder


def test_the_farthest_of_all_trainers_of_the_output_counts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, other = (StateFolder.open(stack, None, tmp_path) for _ in range(2))
        assert newest_version(one, tmp_path, "run").former == NOTHING
        one.keep_former(Former(7, frozenset(("a", "b"))))
        other.keep_former(Former(9, frozenset(("a",))))
        for folder in (one, other):
            assert newest_version(folder, tmp_path, "run").former == Former(9, frozenset(("a",)))


def test_the_generations_of_a_run_go_on_whoever_tells_of_the_last_one(tmp_path: Path) -> None:
    """Also after its end, since it may be given more steps."""
    with ExitStack() as stack:
        one, other = (StateFolder.open(stack, None, tmp_path) for _ in range(2))
        one.keep_former(Former(7, frozenset("ab"), 5))
        other.keep_former(Former(9, frozenset("a"), 3))
        assert newest_version(one, tmp_path, "run").former == Former(9, frozenset("a"), 5)
        for folder in (one, other):
            folder.forget_peers()
        assert newest_version(one, tmp_path, "run").former == Former(generation=5)


def test_nothing_is_left_of_a_run_that_is_over_although_a_thread_records_it_later(tmp_path: Path) -> None:
    with ExitStack() as stack:
        folder = StateFolder.open(stack, None, tmp_path)
        folder.keep_former(Former(7, frozenset(("a", "b"))))
        folder.forget_peers()
        folder.keep_former(Former(8, frozenset(("a", "b"))))
        assert newest_version(folder, tmp_path, "run").former == NOTHING


@pytest.mark.parametrize("data", [b"", b"{", b'{"version": "many"}', b"[]"])
def test_what_a_crash_has_cut_short_is_nothing(tmp_path: Path, data: bytes) -> None:
    with ExitStack() as stack:
        folder = StateFolder.open(stack, None, tmp_path)
        (folder.path / "former").write_bytes(data)
        assert newest_version(folder, tmp_path, "run").former == NOTHING
