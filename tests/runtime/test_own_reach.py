"""How a peer is reached from outside: what trainers and connections show of it, and what its user is told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.own_reach import Answer, DialBack, ReachEvidence, direct_hosts, watch_reach
from tests.namespaces import ALLOWED, REASON, ROOT, WITHIN
from tests.owners import invite_of
from tests.runtime.nodes import started, until
from tests.runtime.test_session import opened

OWN = ["/ip4/10.0.0.7/tcp/7000/p2p/QmMe"]
RELAY = "/ip4/9.9.9.9/tcp/1/p2p/QmRelay/p2p-circuit"
FROM_OUTSIDE, FROM_LAN = "/ip4/9.9.9.9/tcp/1", "/ip4/10.0.0.8/tcp/1"


def test_nothing_is_known_at_first() -> None:
    evidence = ReachEvidence()
    assert evidence.reach == "unknown"
    assert "is not known: no trainer has dialled this peer from outside; to be dialled directly" in evidence.line()


def test_who_is_connected_within_private_networks_only_is_local() -> None:
    evidence = ReachEvidence()
    evidence.connected({"A": [FROM_LAN], "B": ["/ip6/::1/tcp/7"]}, OWN)
    evidence.asked([("A", Answer("10.0.0.8", 7000))])
    assert evidence.reach == "local", "a trainer of the same network says nothing about the outside"
    evidence.connected({"A": [FROM_LAN], "B": [FROM_OUTSIDE]}, OWN)
    assert evidence.reach == "unknown"


def test_who_was_dialled_from_outside_is_public() -> None:
    evidence = ReachEvidence()
    evidence.asked([("abc", Answer("9.9.9.7", 0, "no answer within 5 s"))])
    assert evidence.reach == "unknown"
    assert "trainer abc cannot dial this peer at 9.9.9.7 (no answer within 5 s); " in evidence.line()
    evidence.asked([("abc", Answer("2a00:1450::7", 7000))])
    assert (evidence.reach, evidence.line()) == ("public", "others reach this peer directly, at [2a00:1450::7]:7000")


def test_a_port_that_is_shut_later_is_public_no_more() -> None:
    evidence = ReachEvidence()
    evidence.asked([("abc", Answer("9.9.9.7", 7000))])
    evidence.asked([("abc", Answer(""))])
    assert evidence.reach == "public", "a trainer that sees it through a relay alone has tried nothing"
    evidence.asked([("abc", Answer("9.9.9.7", 0, "no answer within 5 s"))])
    assert evidence.reach == "unknown"
    evidence.asked([("abc", Answer("9.9.9.7", 0, "no answer within 5 s")), ("def", Answer("9.9.9.7", 7000))])
    assert (evidence.reach, evidence.failed) == ("public", "")


def test_a_relay_is_told_from_a_hole_that_was_punched() -> None:
    evidence = ReachEvidence()
    evidence.connected({"A": [FROM_OUTSIDE], "B": [RELAY]}, [*OWN, f"{RELAY}/p2p/QmMe"])
    assert evidence.reach == "relay"
    assert "through a relay, which is slow: to be dialled directly" in evidence.line()
    evidence.connected({"A": [FROM_OUTSIDE], "B": [RELAY, FROM_OUTSIDE]}, [*OWN, f"{RELAY}/p2p/QmMe"])
    assert evidence.reach == "punched"
    assert "through hole punching" in evidence.line()


def test_a_process_that_has_left_and_comes_back_directly_has_punched_nothing() -> None:
    evidence = ReachEvidence()
    for connections in ({"B": [RELAY]}, {}, {"B": [FROM_OUTSIDE]}):
        evidence.connected(connections, [*OWN, f"{RELAY}/p2p/QmMe"])
    assert evidence.reach == "relay"


def test_a_reason_from_the_network_is_cut_and_cleaned() -> None:
    evidence = ReachEvidence()
    evidence.asked([("abc", Answer("9.9.9.7", 0, "\x1b[31mred" + "x" * 1000))])
    assert "(\\x1b[31mred" in evidence.line()
    assert "\x1b" not in evidence.line()
    assert len(evidence.failed) < 200


def test_only_direct_connections_have_hosts_and_those_of_the_internet_come_first() -> None:
    connections = {"A": [FROM_LAN, RELAY, FROM_OUTSIDE, "/dns4/x.example/tcp/1", "nonsense"], "B": [RELAY]}
    assert direct_hosts(connections, "A") == ["9.9.9.9", "10.0.0.8"]
    assert direct_hosts(connections, "B") == direct_hosts(connections, "C") == []


@pytest.mark.asyncio
async def test_a_trainer_dials_the_host_that_it_sees_and_not_too_often(tmp_path: Path) -> None:
    now = 0.0
    async with started(tmp_path, 2) as (here, there):
        trainer, peer = await opened(here), await opened(there)
        peer.links.set_addresses(trainer.me, here.addresses())
        DialBack(here, lambda: now).serve(trainer.requests)
        port = int(there.addresses()[0].split("/")[4])

        async def ask(ports: str) -> Answer:
            (body,) = await peer.requests.ask(trainer.me, "dial-back", {"ports": ports})
            return msgspec.json.decode(body, type=Answer)

        assert await ask(f"0,x,{port}") == Answer("127.0.0.1", port)
        with pytest.raises(NetworkError, match="once in 10 s"):
            await ask(str(port))
        now = 11.0
        shut = await ask("1")
        assert (shut.host, shut.port) == ("127.0.0.1", 0)
        assert "refused" in shut.reason
        now = 22.0
        assert await ask("") == Answer("127.0.0.1", 0, "it has told no port")
        await peer.close(0.0)
        await trainer.close(0.0)


@pytest.mark.asyncio
async def test_a_swarm_on_one_machine_is_local_and_an_answer_that_is_none_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "swarmflow")
    async with started(tmp_path, 2) as (here, there):
        trainer, peer = await opened(here), await opened(there)
        peer.links.set_addresses(trainer.me, here.addresses())

        async def lies(sender: object, arguments: object) -> list[bytes]:
            return [b'{"host": "9.9.9.9; rm", "port": 7000}']

        trainer.requests.serve("dial-back", lies)
        found: list[str] = []
        invite = invite_of(*here.addresses())
        watching = asyncio.create_task(watch_reach(peer, invite, trainer.me, found.append))
        await until(lambda: bool(found))
        assert found == ["local"]
        assert "within its machine and private network only" in caplog.text
        watching.cancel()
        await peer.close(0.0)
        await trainer.close(0.0)


@pytest.mark.extended
@pytest.mark.skipif(not ALLOWED, reason=REASON)
def test_a_peer_at_a_public_address_is_told_from_one_behind_a_firewall(tmp_path: Path) -> None:
    command = [*WITHIN, sys.executable, "-m", "tests.runtime.outside", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["open", "public"], ["shut", "unknown"]], done.stderr
    assert lines[0][2].startswith("others reach this peer directly, at 9.9.9.1:")
    assert "cannot dial this peer at 9.9.9.1 (Connection refused); to be dialled directly" in lines[1][2]
