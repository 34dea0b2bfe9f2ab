"""The directory over real DHT nodes: found, refreshed, expired, withdrawn, and not to be forged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration

from swarmflow.runtime.transport.directory import Directory
from swarmflow.runtime.transport.identity import load_identity
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.record_search import Found, plausible
from swarmflow.runtime.transport.records import OwnedRecords, owner_of
from tests.runtime.nodes import started

PEERS = DHTID.generate(source="swarmflow/run/peer")


@pytest.mark.asyncio
async def test_everybody_finds_what_everybody_announced(tmp_path: Path) -> None:
    async with started(tmp_path, 3) as nodes:
        directories = [Directory(node, "run") for node in nodes]
        for index, directory in enumerate(directories):
            assert await directory.announce("peer", {"stage": index}, 30.0)
        expected = {node.name: {"stage": index} for index, node in enumerate(nodes)}
        for directory in directories:
            assert await directory.find("peer") == expected
            assert list(await directory.find("peer")) == sorted(expected)
            assert await directory.find("trainer") == {}
        assert await Directory(nodes[0], "another run").find("peer") == {}


@pytest.mark.asyncio
async def test_a_newer_record_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, second):
        directory = Directory(first, "run")
        assert await directory.announce("peer", {"load": 1}, 60.0)
        assert await directory.announce("peer", {"load": 2}, 1.0)
        assert await Directory(second, "run").find("peer") == {first.name: {"load": 2}}
        assert await directory.withdraw("peer")
        assert await Directory(second, "run").find("peer") == {}
        assert await directory.announce("peer", {"load": 3}, 60.0)
        assert await Directory(second, "run").find("peer") == {first.name: {"load": 3}}


@pytest.mark.asyncio
async def test_a_silent_process_vanishes(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, second):
        announced_s = time.monotonic()
        assert await Directory(first, "run").announce("peer", {}, 0.5)
        reader = Directory(second, "run")
        while await reader.find("peer"):
            assert time.monotonic() - announced_s < 5.0
        assert time.monotonic() - announced_s >= 0.4


@pytest.mark.asyncio
async def test_a_record_outlives_the_node_it_was_announced_by(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, second):
        third = await Node.start(identity_path=tmp_path / "third", bootstrap=first.addresses())
        assert await Directory(third, "run").announce("peer", {"stage": 1}, 30.0)
        await third.stop()
        assert await Directory(second, "run").find("peer") == {third.name: {"stage": 1}}


@pytest.mark.asyncio
async def test_a_record_that_is_too_large_is_the_callers_error(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as (node,):
        with pytest.raises(ValueError, match="over the limit"):
            await Directory(node, "run").announce("peer", {"x": "x" * 5000}, 1.0)


class Careless(OwnedRecords):
    """An attacker's rules: signs with its own key and lets everything pass."""

    def validate(self, record: DHTRecord) -> bool:
        return True


@pytest.mark.asyncio
async def test_nobody_announces_for_another(tmp_path: Path) -> None:
    """The attacker signs with its own key, with none, with a key of its own under a victim's name, or says rubbish."""

    async def attack(node: Node, subkey: Any, value: Any) -> None:  # noqa: ANN401  # whatever msgpack can carry
        node.dht.protocol.record_validator = Careless(node.key)
        await node.dht.store("swarmflow/run/peer", value, time.time() + 60.0, subkey=subkey)

    async with started(tmp_path, 3) as (first, second, attacker):
        assert await Directory(first, "run").announce("peer", {"stage": 0}, 30.0)
        victim = OwnedRecords(first.key).own_subkey
        forged = msgspec.msgpack.encode({"stage": 9})
        await attack(attacker, victim, forged)
        await attack(attacker, victim + b"x", forged)
        await attack(attacker, first.name, forged)
        await attack(attacker, b"\xff", forged)
        await attack(attacker, None, forged)
        assert await Directory(second, "run").find("peer") == {first.name: {"stage": 0}}
        assert await Directory(first, "run").find("peer") == {first.name: {"stage": 0}}


def test_a_record_is_bound_to_its_owner_key_and_expiry(tmp_path: Path) -> None:
    key = load_identity(tmp_path / "id")
    records = OwnedRecords(key)
    assert owner_of(records.own_subkey) == key.name

    def record(value: bytes, *, subkey: bytes = records.own_subkey, expiry: float = 2e9) -> DHTRecord:
        return DHTRecord(b"k" * 20, MSGPackSerializer.dumps(subkey), value, expiry)

    signed = records.sign_value(record(MSGPackSerializer.dumps(b"value")))
    assert records.validate(record(signed))
    assert not records.validate(record(signed, expiry=2e9 + 1))
    assert not records.validate(record(signed.replace(b"value", b"other", 1)))
    assert not records.validate(record(signed, subkey=OwnedRecords(load_identity(tmp_path / "other")).own_subkey))
    assert not records.validate(record(MSGPackSerializer.dumps(b"value")))
    assert not records.validate(record(records.sign_value(record(MSGPackSerializer.dumps({"no": "bytes"})))))
    assert not records.validate(record(records.sign_value(record(MSGPackSerializer.dumps(b"x" * 9000)))))
    assert not records.validate(record(records.sign_value(record(b"\xc1"))))


@pytest.mark.asyncio
async def test_owned_records_whose_content_is_no_record_are_left_out(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, second):
        subkey = OwnedRecords(second.key).own_subkey
        contents = [b"\xc1", b"\x91" * 3000, b"\x81\xa1x" + b"\x91" * 3000]
        malformed: list[object] = [[1], {1: 2}, {"x": {}}, {"x": [1]}, {"x": None}]
        contents += map(msgspec.msgpack.encode, malformed)
        for index, content in enumerate(contents):
            expiry = time.time() + 60.0 + index
            assert await second.dht.store("swarmflow/run/peer", content, expiry, subkey=subkey)
            assert await Directory(first, "run").find("peer") == {}


@pytest.mark.asyncio
async def test_an_answer_that_no_honest_node_gives_ends_no_search(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, attacker):
        directory = Directory(first, "run")
        assert await directory.announce("peer", {"stage": 1}, 30.0)
        broken = DictionaryDHTValue()
        broken.maxsize = "no number"
        attacker.dht.protocol.storage.get = lambda key: ValueWithExpiration(broken, time.time() + 60.0)
        assert await directory.find("peer", timeout_s=5.0) == {first.name: {"stage": 1}}


@pytest.mark.asyncio
async def test_values_without_records_or_that_never_expire_are_not_taken() -> None:
    now, answers = 1000.0, dict[DHTID, ValueWithExpiration[Any]]()

    async def find(peer: PeerID, keys: Collection[DHTID]) -> Found:
        return {key: (answers[key], {}) for key in keys}

    def value(*records_until_s: float) -> DictionaryDHTValue:
        with DictionaryDHTValue().freeze() as made:
            for number, until_s in enumerate(records_until_s):
                made.store(number, b"", until_s)
        return made

    for found, until_s, taken in (
        (value(1030.0, 1300.0), 1300.0, True),
        (value(), 1030.0, False),
        (value(1030.0), inf, False),
        (value(1030.0, inf), 1030.0, False),
        (value(1030.0), nan, False),
        (b"no dictionary", 1030.0, False),
    ):
        answers[PEERS] = ValueWithExpiration(found, until_s)
        result = await plausible(find, lambda: now)(PeerID(b""), [PEERS])
        assert result == {PEERS: (answers[PEERS] if taken else None, {})}


@pytest.mark.asyncio
async def test_announcing_at_once_does_not_lose_anybody(tmp_path: Path) -> None:
    async with started(tmp_path, 4) as nodes:
        directories = [Directory(node, "run") for node in nodes]
        taken = await asyncio.gather(*(directory.announce("peer", {}, 30.0) for directory in directories))
        assert taken == [True] * 4
        assert set(await directories[-1].find("peer")) == {node.name for node in nodes}
