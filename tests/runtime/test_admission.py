"""Who is let in over real connections, with which role, and who is put out when the run's policy changes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.authority.certificates import CertifiedKey
from swarmflow.authority.policy import AccessPolicy
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.transport import links
from swarmflow.runtime.transport.directory import Directory, Field
from swarmflow.runtime.transport.hello import Hello, pack_hello, read_reply
from swarmflow.runtime.transport.limits import DOOR
from swarmflow.runtime.transport.links import STREAM_PROTOCOL
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.requests import Arguments
from tests.owners import OTHER, OWNER, RUN_ID, trainer_access
from tests.runtime.nodes import DEADLINE_S, End, started

pytestmark = pytest.mark.asyncio
PEER, TRAINER = OWNER.certify("peer"), OWNER.certify("trainer")
INVITED, ANYONE = OWNER.policy(1, "m", "invited", ()), OWNER.policy(2, "m", "anyone", ())
REVOKED = OWNER.policy(3, "m", "anyone", (PEER.certificate.id,))


def access_with(key: CertifiedKey | None) -> AccessControl:
    access = AccessControl(RUN_ID, key)
    access.adopt(INVITED)
    return access


@asynccontextmanager
async def ends(folder: Path, *keys: CertifiedKey | None) -> AsyncIterator[list[End]]:
    """Processes with these keys, all of which know the first one's address."""
    async with started(folder, len(keys)) as nodes:
        made = [
            End(node, number + 1, access=access_with(key))
            for number, (node, key) in enumerate(zip(nodes, keys, strict=True))
        ]
        for end in made:
            await end.links.start()
            end.links.set_addresses(made[0].me, nodes[0].addresses())
        try:
            yield made
        finally:
            for end in made:
                await end.links.close(0.0)


async def test_each_message_comes_with_the_role_of_its_sender(tmp_path: Path) -> None:
    async with ends(tmp_path, TRAINER, PEER, TRAINER, None) as (here, peer, trainer, stranger):
        here.links._access.adopt(ANYONE)
        for end in (peer, trainer, stranger):
            end.links.send(here.me, b"hello")
        found = {sender: role for sender, _, _, role in [await here.messages.get() for _ in range(3)]}
        assert found == {peer.me: "peer", trainer.me: "trainer", stranger.me: None}


async def test_a_run_for_invited_peers_hears_nothing_of_a_stranger_and_tells_it_nothing(tmp_path: Path) -> None:
    """All that it reads is the reply, which names no run, owner or member."""
    async with ends(tmp_path, TRAINER, None) as (here, stranger):
        stranger.links.send(here.me, b"hello")
        process, reason = await stranger.losses.get()
        assert process == here.me
        assert "the run is for invited peers" in reason
        assert await here.refusals.get() == "hello"
        reader, writer = await stranger.node.open_stream(here.node.name, STREAM_PROTOCOL, (), 5.0)
        writer.write(pack_hello(Hello(RUN_ID, "control", 7, 0)))
        reply = await read_reply(reader, 5.0)
        assert reply.reason == "the run is for invited peers: join with an invite from its owner"
        assert await reader.read() == b"", "nothing follows"
        writer.close()
        assert here.messages.empty()


@pytest.mark.parametrize("shown", ["another process", "another run", "garbage"])
async def test_what_another_process_has_shown_lets_nobody_in(shown: str, tmp_path: Path) -> None:
    async with ends(tmp_path, TRAINER, None) as (here, stranger):
        name = stranger.node.name
        credential = {
            "another process": PEER.bind(here.node.name),
            "another run": OTHER.certify("peer").bind(name),
            "garbage": b"\xff" * 200,
        }[shown]
        reader, writer = await stranger.node.open_stream(here.node.name, STREAM_PROTOCOL, (), 5.0)
        writer.write(pack_hello(Hello(RUN_ID, "control", 7, 0, credential)))
        assert "its c" in (await read_reply(reader, 5.0)).reason
        writer.close()


async def test_who_is_revoked_is_put_out_and_stays_out_and_the_others_stay(tmp_path: Path) -> None:
    async with ends(tmp_path, TRAINER, PEER, OWNER.certify("peer")) as (here, revoked, other):
        for end in (revoked, other):
            end.links.send(here.me, b"hello")
            await here.messages.get()
        here.links._access.adopt(REVOKED)
        here.links.drop_excluded()
        process, reason = await here.losses.get()
        assert process == revoked.me
        assert f"certificate {PEER.certificate.id} was revoked" in reason
        assert (await revoked.losses.get())[0] == here.me
        revoked.links.send(here.me, b"again")
        assert "was revoked" in (await revoked.losses.get())[1]
        other.links.send(here.me, b"still here")
        assert (await here.messages.get())[:2] == (other.me, b"still here")
        assert other.losses.empty()


async def test_streams_that_are_kept_half_open_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names their owner makes: for each further one the oldest is closed."""
    monkeypatch.setattr(links, "DOOR", replace(DOOR, unfinished=6))
    async with ends(tmp_path, TRAINER, PEER, None, None) as (here, honest, *flooders):
        silent = [
            await flooder.node.open_stream(here.node.name, STREAM_PROTOCOL, here.node.addresses(), 5.0)
            for _ in range(6)
            for flooder in flooders
        ]
        for reader, _ in silent[:6]:
            assert await reader.read() == b"", "the oldest are closed"
        honest.links.send(here.me, b"hello")
        assert (await here.messages.get())[:2] == (honest.me, b"hello")
        for _, writer in silent:
            writer.close()


async def opened(node: Node, access: AccessControl) -> Session:
    session = Session(node, access, Metrics())
    session.open({}, lambda body: b"")
    await session.links.start()
    return session


async def answer(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
    return [b"answer"]


async def test_what_is_for_trainers_is_not_for_peers_and_what_a_trainer_must_say_no_peer_says(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as nodes:
        trainer, peer = await opened(nodes[0], trainer_access()), await opened(nodes[1], access_with(PEER))
        for session, other in ((trainer, peer), (peer, trainer)):
            session.links.set_addresses(other.me, other.node.addresses())
            session.requests.serve("save", answer, for_trainers=True)
            session.requests.serve("describe", answer)
        assert await trainer.requests.ask(peer.me, "save") == [b"answer"]
        with pytest.raises(NetworkError, match="'save' is for trainers"):
            await peer.requests.ask(trainer.me, "save")
        assert await peer.requests.ask(trainer.me, "describe", of_trainer=True) == [b"answer"]
        with pytest.raises(NetworkError, match="answers without the certificate of a trainer"):
            await trainer.requests.ask(peer.me, "describe", of_trainer=True)
        await trainer.close(0.0)
        await peer.close(0.0)


async def test_a_policy_that_is_passed_on_holds_at_once_and_an_older_or_a_forged_one_does_not(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as nodes:
        trainer, peer = await opened(nodes[0], trainer_access()), await opened(nodes[1], access_with(PEER))
        trainer.links.set_addresses(peer.me, peer.node.addresses())
        adopted: list[AccessPolicy] = []
        peer.on_policy = adopted.append
        peer.requests.serve("describe", answer)
        await trainer.requests.ask(peer.me, "describe")
        for policy in (ANYONE, INVITED):
            trainer.spread(policy)
            await trainer.requests.ask(peer.me, "describe")
        trainer.spread(OTHER.policy(9, "m", "anyone", ()))
        with pytest.raises(NetworkError, match="lost"):  # who sends what cannot be is not read on
            await trainer.requests.ask(peer.me, "describe")
        assert adopted == [ANYONE]
        assert peer.access.policy == ANYONE
        await trainer.close(0.0)
        await peer.close(0.0)


async def test_records_that_prove_nothing_hide_no_trainer(tmp_path: Path) -> None:
    """Processes of the run neither store them nor find them; whoever stores them itself is asked in vain."""
    async with started(tmp_path, 3) as nodes:
        trainer, peer = await opened(nodes[0], trainer_access()), await opened(nodes[1], access_with(PEER))
        outside = Directory(nodes[2], RUN_ID)
        claim: dict[str, Field] = {"leads": True, "incarnation": 1, "addresses": nodes[2].addresses()}
        for shown in ({}, {"credential": base64.b64encode(PEER.bind(nodes[2].name)).decode()}):
            await outside.announce("trainer", {**claim, **shown}, 60.0)
        trainer.announce(lambda: "trainer", lambda: {"leads": True, "version": 1})
        async with asyncio.timeout(DEADLINE_S):
            while not (found := await peer.trainers()):
                await asyncio.sleep(0.05)
        assert list(found) == [trainer.me.name]
        assert list(await peer.directory.find("trainer")) == [trainer.me.name]
        await trainer.close(0.0)
        await peer.close(0.0)
