"""How far a load is: what is shown of it while bytes arrive, stall, or come from another donor."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.execution import load_progress
from swarmflow.runtime.execution.load_progress import LoadMeter, LoadProgress
from swarmflow.runtime.execution.state_transfer import CHUNK_ELEMENTS, Listing, first_donor, serve_state
from tests.runtime.nodes import until
from tests.runtime.test_copy_keeper import processes

A, B = ProcessId("QmNameOfDonorA", 11), ProcessId("QmNameOfDonorB", 22)
MB = 1_000_000
pytestmark = pytest.mark.asyncio


class Clock:
    """Set by the test."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def shown(meter: LoadMeter) -> LoadProgress:
    assert meter.progress is not None
    return meter.progress


async def test_rate_and_time_left_follow_what_arrives() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    assert meter.progress is None
    with meter.loading(1, 12) as progressed:
        assert shown(meter) == LoadProgress(1, 12)
        assert str(shown(meter)) == "loading stage 1: waiting for the answer of a process that has it"
        progressed(A, 0, 400 * MB)
        for second in range(1, 16):
            clock.now += 1.0
            progressed(A, 8 * MB * second, 400 * MB)
        assert shown(meter).bytes_per_s == pytest.approx(8 * MB)
        assert shown(meter).left_s == pytest.approx(35.0)
        line = "loading stage 1: 120.0 MB of 400.0 MB from DonorA.0011, 8.0 MB/s, 35 s left"
        assert str(shown(meter)) == line
        clock.now += 5.0
        assert shown(meter).bytes_per_s == pytest.approx(8 * MB * 5 / 10), "the last seconds count, which brought less"
        clock.now += 30.0
        assert shown(meter).left_s is None
        assert str(shown(meter)).endswith("from DonorA.0011, nothing arrives at the moment")
    assert meter.progress is None


async def test_updates_that_are_made_meanwhile_count_as_time_and_who_never_catches_up_is_told_why() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    with meter.loading(1, 12) as progressed:
        for second in range(61):
            clock.now += 1.0
            progressed(A, MB * second, 100 * MB + MB // 2 * second)
        assert shown(meter).left_s == pytest.approx(140.0), "half of what arrives is new"
        for second in range(61, 150):
            clock.now += 1.0
            progressed(A, MB * second, 70 * MB + MB * second)
        assert shown(meter).left_s is None
        assert str(shown(meter)).endswith(
            "1.0 MB/s, and the run's updates are made as fast: this link may be too slow for its short steps"
        )


async def test_another_donor_begins_with_a_rate_of_its_own() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    with meter.loading(1, 12) as progressed:
        progressed(A, 0, 400 * MB)
        clock.now += 2.0
        progressed(A, 100 * MB, 400 * MB)
        progressed(B, 100 * MB, 400 * MB)
        assert (shown(meter).donor, shown(meter).bytes_per_s) == ("DonorB.0022", 0.0)
        clock.now += 2.0
        progressed(B, 102 * MB, 400 * MB)
        assert shown(meter).bytes_per_s == pytest.approx(1 * MB)


async def test_a_load_that_was_replaced_ends_without_the_later_one() -> None:
    meter = LoadMeter(Clock())
    with meter.loading(0, 3) as earlier:
        with meter.loading(1, 4) as later:
            earlier(A, 7, 10)
            later(B, 5, 10)
            assert shown(meter).received_bytes == 5
            with meter.loading(2, 4):
                pass
        assert meter.progress is None


async def test_a_long_load_is_told_and_a_short_one_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_progress, "LOG_EVERY_S", 0.05)
    meter = LoadMeter()
    with caplog.at_level(logging.INFO, "swarmflow"):
        with meter.loading(1, 12) as progressed:
            progressed(A, 300, 900)
            await until(lambda: caplog.text.count("loading stage 1: 300 bytes of 900 bytes from DonorA.0011") >= 2)
            progressed(A, 900, 900)
        assert "received stage 1: 900 bytes from DonorA.0011 in " in caplog.text


async def test_what_a_donor_sent_before_it_failed_counts_for_the_next_one(tmp_path: Path) -> None:
    count, stops = 3 * CHUNK_ELEMENTS + 10, 2 * CHUNK_ELEMENTS
    reports: list[tuple[ProcessId, int, int]] = []
    async with processes(tmp_path, 3) as (reader, breaking, whole):
        for donor, sends in ((breaking, stops), (whole, count)):

            def read(
                stage: int, version: int, file: str, tensor: str, start: int, stop: int, sends: int = sends
            ) -> bytes:
                return bytes(4 * (stop - start)) if stop <= sends else b""

            serve_state(donor.session.requests, lambda stage, version, file: Listing({"w": count}), read)
        await first_donor(
            reader.session.requests,
            (breaking.member, whole.member),
            1,
            12,
            {"w": count},
            lambda name, start, data: None,
            lambda *report: reports.append(report),
        )
    chunk, total = 4 * CHUNK_ELEMENTS, 4 * count
    first, second = breaking.session.me, whole.session.me
    assert reports == [
        *((first, received, total) for received in (0, chunk, 2 * chunk)),
        *((second, received, total) for received in (2 * chunk, 3 * chunk, total)),
    ]
