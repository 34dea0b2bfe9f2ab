"""Whoever has no certificate of the owner, or not that of a trainer, beside a run of real processes that goes on."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.authority.certificates import CertifiedKey
from swarmflow.core.protocol.messages import Elect, ElectionReport, Join, Refused, Welcome
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.errors import NetworkError
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, toml_text
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.finding import find_leader
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.directory import Directory, Field
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.wire import decode_header, encode_header
from tests.runtime.nodes import until
from tests.swarm.commands import started, swarmflow
from tests.swarm.runs import TINY_LLAMA

pytestmark = [pytest.mark.swarm, pytest.mark.slow, pytest.mark.extended]

WAIT_S = 60.0
FOR_EVER = 100_000
TOPICS = [
    "describe",
    "status",
    "save",
    "tokenizer",
    "announced",
    "state/list",
    "state/read",
    "state/piece",
    "state/leaves",
]
DATA: dict[str, object] = {"path": "../text", "seq_len": 16}
RUN: dict[str, dict[str, object]] = {
    "run": {"name": "strangers", "output": "out"},
    "model": {"config": TINY_LLAMA, "stages": 1},
    "data": DATA,
    "train": {"steps": FOR_EVER, "microbatches": 4, "microbatch_sequences": 1, "checkpoint_every": FOR_EVER},
}


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> Iterator[LocalSwarm]:
    """A trainer and a peer at work, in a run for invited peers."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "text").write_bytes(bytes(range(256)) * 8)
    with LocalSwarm(folder / "swarm", RUN, forks=forks) as swarm:
        swarm.start_trainer()
        swarm.start_peer()
        swarm.wait_steps(1, WAIT_S)
        yield swarm
        swarm.wait_steps(len(swarm.steps()) + 3, WAIT_S)
        log = swarm.peers[0].log.read_text(encoding="utf-8")
        assert log.count("serving stage 0") == 1, "whatever the tests did, the peer followed its leader throughout"


@asynccontextmanager
async def attacker(
    swarm: LocalSwarm, folder: Path, key: CertifiedKey | None
) -> AsyncIterator[tuple[Session, list[object]]]:
    """A process of the run's network with this certificate, and all that others send it."""
    invite = Invite.parse(swarm.invite)
    node = await Node.start(identity_path=folder / "identity.key", bootstrap=list(invite.trainers))
    session, received = Session(node, AccessControl(invite.run_id, key), Metrics()), list[object]()
    session.open({}, lambda body: b"")
    handle = session.driver.receive

    def record(sender: ProcessId, header: bytes, *rest: object) -> None:
        received.append(decode_header(header))
        handle(sender, header, *rest)  # type: ignore[arg-type]

    session.links._on_message = record
    session.links.set_addresses(peer_of(invite.trainers[0]), invite.trainers)
    await session.links.start()
    try:
        yield session, received
    finally:
        await session.close(0.0)
        await node.stop()


async def peers_of(session: Session) -> dict[str, ProcessId]:
    """The peers of stage 0, as the DHT names them, which may take a moment."""
    while not (records := await session.directory.find("stage-0")):
        pass
    for name, record in records.items():
        assert isinstance(record["addresses"], list)
        session.links.set_addresses(name, record["addresses"])
    return {name: ProcessId(name, 0) for name in records}


@pytest.mark.asyncio
async def test_a_stranger_learns_that_there_is_a_run_and_no_more(swarm: LocalSwarm, tmp_path: Path) -> None:
    """It asks trainer and peer for all that is given to members, and reads everything that comes back."""
    invite = Invite.parse(swarm.invite)
    async with attacker(swarm, tmp_path, None) as (session, received):
        victims = [ProcessId(peer_of(invite.trainers[0]), 0), *(await peers_of(session)).values()]
        assert len(victims) == 2
        for victim in victims:
            for topic in TOPICS:
                with pytest.raises(NetworkError, match="the run is for invited peers"):
                    await session.requests.ask(victim, topic, timeout_s=WAIT_S)
        assert received == []
    (tmp_path / "elsewhere").mkdir()
    public = str(replace(invite, peer=None))
    asked = swarmflow("status", "--join", public, environment={"XDG_RUNTIME_DIR": str(tmp_path / "elsewhere")})
    assert "the run is for invited peers" in asked.complaint


@pytest.mark.asyncio
async def test_a_record_that_claims_to_lead_is_followed_by_nobody(swarm: LocalSwarm, tmp_path: Path) -> None:
    """Neither without a certificate, nor with that of a peer."""
    invite = Invite.parse(swarm.invite)
    async with attacker(swarm, tmp_path, invite.peer) as (session, _):
        here, me = session.node.addresses(), session.me
        credential = base64.b64encode(session.access.credential(me.name)).decode()
        for shown in ({}, {"credential": credential}):
            record: dict[str, Field] = {
                "incarnation": me.incarnation,
                "addresses": here,
                "leads": True,
                "version": FOR_EVER,
                **shown,
            }
            await Directory(session.node, session.access.run_id).announce("trainer", record, WAIT_S)
        assert me.name not in await session.trainers()
        found = await find_leader(session, invite, timeout_s=WAIT_S)
        assert found.leader.name == peer_of(invite.trainers[0])


@pytest.mark.asyncio
async def test_the_certificate_of_a_peer_leads_nobody_and_saves_nothing(swarm: LocalSwarm, tmp_path: Path) -> None:
    invite = Invite.parse(swarm.invite)
    async with attacker(swarm, tmp_path, invite.peer) as (session, received):
        found = await find_leader(session, invite, timeout_s=WAIT_S)
        with pytest.raises(NetworkError, match="'save' is for trainers"):
            await session.requests.ask(found.leader, "save", timeout_s=WAIT_S)
        me = Member(session.me, -1, 1, tuple(session.node.addresses()))
        join = Join("trainer", "1", found.manifest.fingerprint, me)
        lost = set[str]()
        session.links._on_lost = lambda process, reason: lost.add(process.name)
        peers = await peers_of(session)
        for victim in (found.leader, *peers.values()):
            session.links.send(victim, encode_header(Elect(99, me)))
        await until(lambda: lost == {found.leader.name, *peers})
        session.links.send(found.leader, encode_header(join))
        await until(lambda: any(isinstance(message, Refused) for message in received))
        [refused] = [message for message in received if isinstance(message, Refused)]
        assert "Join without the certificate of a trainer" in refused.reason
        assert not [message for message in received if isinstance(message, ElectionReport | Welcome)]


def test_the_owner_invites_a_trainer_elsewhere_and_puts_it_out(
    swarm: LocalSwarm, tmp_path: Path, forks: ForkServer
) -> None:
    data = {**DATA, "path": str(swarm.folder.parent / "text")}
    (tmp_path / "RUN.toml").write_text(toml_text({**RUN, "data": data}))
    peers_only = str(replace(Invite.parse(swarm.invite), trainer=None))
    there = {"XDG_RUNTIME_DIR": str(tmp_path)}
    refused = swarmflow("trainer", tmp_path / "RUN.toml", "--join", peers_only, environment=there)
    assert "this trainer has no certificate for run" in refused.complaint
    printed = swarmflow("invite", swarm.run_file, "--trainer")
    invite = Invite.parse(printed.out)
    assert invite.trainer is not None
    assert invite.trainer.certificate.id in printed.err

    def trainers() -> int:
        return len(swarm.status()["trainers"])

    with started(tmp_path / "log", "trainer", str(tmp_path / "RUN.toml"), "--join", printed.out.strip()) as joined:
        swarm.wait(lambda: trainers() == 2, "the invited trainer", WAIT_S)
        assert "is revoked" in swarmflow("invite", swarm.run_file, "--revoke", printed.out.strip()).out
        swarm.wait(lambda: trainers() == 1, "the revoked trainer to be gone", WAIT_S)
        swarm.wait(lambda: "was revoked" in joined.log.read_text(), "it to be told why", WAIT_S)
    assert "1" in swarm.trainers[0].log.read_text().split("revoked certificates: ")[-1]


def test_a_run_for_anyone_is_served_by_peers_without_a_certificate(
    swarm: LocalSwarm, tmp_path: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its invite holds no secret, and with it nobody gets more than to work."""
    data = {**DATA, "path": str(swarm.folder.parent / "text")}
    settings = {**RUN, "run": {**RUN["run"], "peers": "anyone"}, "data": data, "train": {**RUN["train"], "steps": 8}}
    settings["train"]["checkpoint_every"] = 8
    with LocalSwarm(tmp_path / "open", settings, forks=forks) as opened:
        opened.start_trainer()
        assert Invite.parse(opened.invite).key is None
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # as on another machine
        opened.start_peer()
        opened.start_peer()
        opened.wait_finished(WAIT_S)
        assert [step["step"] for step in opened.steps()] == list(range(8))
