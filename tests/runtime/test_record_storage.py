"""What others store here in the DHT is bounded: by owner, in time and in all; trainers' records have their own room."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from hivemind.dht.routing import DHTID

from swarmflow.runtime.transport import record_storage
from swarmflow.runtime.transport.directory import Directory
from swarmflow.runtime.transport.record_storage import CHANGES, EXPIRY_S_MAX, KEYS_OF_OWNER_MAX, RecordStorage
from tests.runtime.nodes import started


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def key(number: int) -> DHTID:
    return DHTID.generate(source=f"key-{number}")


def storage_of(clock: Clock, checked: DHTID | None = None) -> RecordStorage:
    return RecordStorage(lambda data: checked is not None and data == checked.to_bytes(), clock)


def test_an_owner_has_few_records_and_the_others_theirs() -> None:
    clock = Clock()
    storage = storage_of(clock)
    stored = [storage.store(key(number), b"value", clock.now + 30, subkey=b"owner") for number in range(20)]
    assert stored == [True] * KEYS_OF_OWNER_MAX + [False] * 4
    assert storage.store(key(19), b"value", clock.now + 30, subkey=b"another")
    assert storage.store(key(0), b"newer", clock.now + 31, subkey=b"owner"), "in the place of the one before"
    found = storage.get(key(0))
    assert found is not None
    assert found.value.get(b"owner").value == b"newer"
    clock.now += 32
    assert storage.store(key(20), b"value", clock.now + 30, subkey=b"owner"), "they have expired"


def test_a_record_that_would_stay_for_long_or_has_no_owner_is_not_stored() -> None:
    clock = Clock()
    storage = storage_of(clock)
    assert not storage.store(key(0), b"value", clock.now + EXPIRY_S_MAX + 1, subkey=b"owner")
    assert not storage.store(key(0), b"value", clock.now - 1, subkey=b"owner")
    assert not storage.store(key(0), b"value", clock.now + 30)
    assert storage.store(key(0), b"value", clock.now + 30, subkey=b"owner")
    assert not storage.store(key(0), b"older", clock.now + 29, subkey=b"owner")


def test_who_changes_a_record_without_end_waits_as_long_as_an_honest_process_would() -> None:
    clock = Clock()
    storage = storage_of(clock)
    stored = [storage.store(key(0), b"value", clock.now + 30 + n, subkey=b"owner") for n in range(CHANGES.burst + 8)]
    assert stored == [True] * CHANGES.burst + [False] * 8
    clock.now += 10
    assert storage.store(key(0), b"value", clock.now + 100, subkey=b"owner")


def test_owners_without_end_leave_room_for_records_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_storage, "RECORDS_MAX", 50)
    clock, trainers = Clock(), key(1000)
    storage = storage_of(clock, trainers)
    stored = [storage.store(key(n % 3), b"value", clock.now + 30, subkey=b"owner-%d" % n) for n in range(100)]
    assert stored == [True] * 50 + [False] * 50
    assert storage.store(trainers, b"value", clock.now + 30, subkey=b"trainer")
    clock.now += 31
    assert storage.store(key(0), b"value", clock.now + 30, subkey=b"owner-99")
    assert storage._counts == {False: 1, True: 0}
    assert set(storage._owned) == {b"owner-99"}


@pytest.mark.asyncio
async def test_a_node_that_stores_under_many_keys_fills_no_other_node(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (node, flooder):
        directory = Directory(flooder, "run")
        stored = 0
        for number in range(KEYS_OF_OWNER_MAX + 4):
            stored += await directory.announce(f"kind-{number}", {}, 30.0)
        assert stored == KEYS_OF_OWNER_MAX
        for each in (node, flooder):
            assert len(each.dht.protocol.storage) <= KEYS_OF_OWNER_MAX
        assert await Directory(node, "run").announce("peer", {"stage": 1}, 30.0)
        async with asyncio.timeout(20.0):
            assert await Directory(flooder, "run").find("peer") == {node.name: {"stage": 1}}
        assert not await directory.announce("long", {}, EXPIRY_S_MAX + 30)
