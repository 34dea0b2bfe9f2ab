"""What anybody with an invite sends beside its work is refused and counted, and the run goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from swarmflow.core.protocol.messages import Evicted, Finished, Heartbeat, MemberFailed, Message
from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.directory import Directory
from swarmflow.runtime.transport.frames import FrameLimits, pack_front
from swarmflow.runtime.transport.hello import CONFIRMATION, Hello, pack_hello, read_reply
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.links import STREAM_PROTOCOL
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.wire import encode_header
from tests.swarm.runs import prepare, recipe, settings

pytestmark = [pytest.mark.asyncio, pytest.mark.swarm, pytest.mark.slow, pytest.mark.extended]

WAIT_S = 45.0
DIAL_S = 10.0
FOR_EVER = 100_000
HUGE = FrameLimits(bodies_bytes_max=1 << 50)
ANY = FrameLimits()


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[LocalSwarm]:
    """One trainer and one peer at work, both with metrics."""
    folder = tmp_path_factory.mktemp("hostile")
    model, corpus = prepare(folder, "gpt2")
    run = settings(model, corpus, recipe("sgd", steps=FOR_EVER, microbatches=4), stages=1)
    with LocalSwarm(folder / "swarm", run, forks=forks) as swarm:
        swarm.start_trainer("--metrics-port", "0")
        swarm.start_peer("--metrics-port", "0")
        swarm.wait_steps(1, WAIT_S)
        yield swarm


def frame(message: Message, sequence: int = 0) -> bytes:
    return pack_front(sequence, encode_header(message), (), ANY)


def said_gone(peer: ProcessId) -> MemberFailed:
    return MemberFailed(term=1, epoch=Epoch(0, 0), process=peer, reason="because I say so")


def attacks() -> list[tuple[str, bytes]]:
    """(reason under which it is to be counted, what is sent after a good hello)."""
    whole = frame(Heartbeat())  # a message that is not refused for its sender's certificate
    return [
        ("message", pack_front(0, b"\xc1 no message at all", (), ANY)),
        ("message", pack_front(0, msgspec.msgpack.encode(("Commit", {"epoch": "now"})), (), ANY)),
        ("message", pack_front(0, msgspec.msgpack.encode(("OpenStep", {})), (), ANY)),
        ("body_size", pack_front(0, encode_header(Heartbeat()), (1 << 40,), HUGE)),
        ("sequence", whole + whole),
        ("checksum", whole[:-1] + bytes([whole[-1] ^ 1])),
        ("truncated", whole[:-3]),
        ("magic", b"GET / HTTP/1.1\r\nHost: swarm\r\n\r\n"),
    ]


async def test_hostile_frames_are_refused_and_counted_and_the_run_goes_on(swarm: LocalSwarm, tmp_path: Path) -> None:
    trainer, peer = swarm.trainers[0], swarm.peers[0]
    before = {process.name: refused(process) for process in (trainer, peer)}
    sent = await attack_all(swarm, tmp_path)
    for process in (trainer, peer):
        after = refused(process)
        counted = {reason: after[reason] - before[process.name][reason] for reason in set(sent)}
        assert counted == {reason: sent.count(reason) for reason in set(sent)}
    steps = swarm.wait_steps(len(swarm.steps()) + 5, WAIT_S)
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert {step["retries"] for step in steps} == {0}
    assert {tuple(step["peers"]) for step in steps} == {(1,)}
    log = peer.log.read_text(encoding="utf-8")
    assert log.count("serving stage 0") == 1
    assert "finished" not in log


async def attack_all(swarm: LocalSwarm, folder: Path) -> list[str]:
    """Sends every attack, and orders that only the leader may give, to the trainer and to the peer: the reasons.

    Each attack is counted before the next one: a newer stream of one sender takes the place of the older.
    """
    invite = Invite.parse(swarm.invite)
    node = await Node.start(identity_path=folder / "identity.key", bootstrap=list(invite.trainers))
    try:
        async with asyncio.timeout(DIAL_S):
            while not (records := await Directory(node, invite.run_id).find("stage-0")):
                pass
        ((name, record),) = records.items()
        incarnation, addresses = record["incarnation"], record["addresses"]
        assert isinstance(incarnation, int)
        assert isinstance(addresses, list)
        peer = ProcessId(name, incarnation)
        victims = [(peer_of(invite.trainers[0]), invite.trainers), (name, tuple(addresses))]
        for process, (victim, where) in zip((swarm.trainers[0], swarm.peers[0]), victims, strict=True):
            for number, (reason, data) in enumerate(attacks()):
                wanted = refused(process)[reason] + 1
                await attack(node, invite, victim, where, data, incarnation=number + 1)
                swarm.wait(partial(has_refused, process, reason, wanted), f"{reason} to be counted", DIAL_S)
            orders: list[Message] = [Finished(7), Evicted("go"), said_gone(peer)]
            data = b"".join(frame(order, sequence) for sequence, order in enumerate(orders))
            await attack(node, invite, victim, where, data, incarnation=100)
    finally:
        await node.stop()
    return [reason for reason, _ in attacks()]


async def attack(
    node: Node, invite: Invite, victim: str, addresses: tuple[str, ...], data: bytes, incarnation: int
) -> None:
    """One stream: a good hello, the data, and the end; returns when the victim has closed its side."""
    reader, writer = await node.open_stream(victim, STREAM_PROTOCOL, addresses, DIAL_S)
    assert invite.peer is not None
    writer.write(pack_hello(Hello(invite.run_id, "control", incarnation, 0, invite.peer.bind(node.name))))
    assert not (await read_reply(reader, DIAL_S)).reason
    writer.write(CONFIRMATION + data)
    writer.write_eof()
    async with asyncio.timeout(DIAL_S):
        await reader.read()
    writer.close()


def has_refused(process: LocalProcess, reason: str, count: float) -> bool:
    return refused(process)[reason] >= count


def refused(process: LocalProcess) -> dict[str, float]:
    """swarmflow_frames_refused_total of a process, by reason."""
    found = re.search(r"metrics: (http://\S+)", process.log.read_text(encoding="utf-8"))
    assert found is not None
    with urlopen(found[1], timeout=DIAL_S) as page:
        text = page.read().decode()
    pattern = r'swarmflow_frames_refused_total\{reason="(\w+)"\} (\S+)'
    return {reason: float(count) for reason, count in re.findall(pattern, text)}
