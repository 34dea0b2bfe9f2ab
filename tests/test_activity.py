"""What a process does right now."""

from __future__ import annotations

import threading

import pytest

from swarmflow.activity import Waiting, current, doing


def test_the_last_that_began_is_named_until_it_is_over() -> None:
    assert current() is None
    with doing("joining"):
        with doing("dialling", lambda: "3 of 4"):
            now = current()
            assert now is not None
            assert now.line() == "dialling: 3 of 4"
        now = current()
        assert now is not None
        assert (now.line(), now.seconds >= 0) == ("joining", True)
    assert current() is None


def test_an_error_ends_it() -> None:
    with pytest.raises(ValueError, match="no"), doing("failing"):
        raise ValueError("no")
    assert current() is None


def test_a_reason_to_wait_lasts_while_only_its_numbers_change() -> None:
    waiting = Waiting()
    waiting.set("waits for 2 of 8 peers")
    first = current()
    waiting.set("waits for 3 of 8 peers")
    assert current() is first
    assert first is not None
    assert first.text == "waits for 3 of 8 peers"
    waiting.set("waits for the disk")
    assert current() is not first
    waiting.set("")
    assert current() is None


def test_threads_may_begin_and_end_while_another_one_looks() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with doing("outer"), doing("inner"):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = {now.text if (now := current()) is not None else "" for _ in range(20_000)}
    over.set()
    for thread in threads:
        thread.join()
    assert seen <= {"outer", "inner", ""}
    assert current() is None
