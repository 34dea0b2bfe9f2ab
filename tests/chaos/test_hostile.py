"""A reduced run of `python -m swarmflow.chaos.hostile`: it ends no process and changes no digest."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.chaos.bad_frames import DAMAGES, bombard
from swarmflow.chaos.hostile import main
from swarmflow.core.protocol.actions import Send
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.messages.gwtf import InOrderAck
from swarmflow.core.protocol.types import Epoch, Plan, ProcessId
from swarmflow.simulator.faults import FuzzSwarm
from swarmflow.simulator.hostile import KINDS, SESSIONS_FROM, ForgedFlows, Mint, attacked
from swarmflow.simulator.settings import Settings
from tests.further import found


@pytest.mark.asyncio
async def test_malformed_frames_end_nothing_and_change_nothing() -> None:
    sent = await bombard(1500, seed=1)
    assert set(sent) == set(DAMAGES)


@pytest.mark.parametrize("seed", found((10, 27, 3, 138), 2))
def test_impossible_messages_end_no_process_and_change_no_digest(seed: int) -> None:
    """Each of these seeds has found something: bytes that nobody released, a stranger's Deposed, a forged sender."""
    world, sent = attacked(seed, 400)
    assert set(sent) == {kind.__name__ for kind in KINDS}
    assert sum(count for name, count in world.counts.items() if name.startswith("messages_refused")) > 50


def test_messages_of_every_class_can_be_made_so_and_otherwise() -> None:
    mint = Mint(Random(0), Plan(2, 4), [ProcessId("a", 1)], [Epoch(0, 0)])
    checks = checks_of(Plan(2, 4))
    for kind in KINDS:
        made = [(mint.message(kind, 0.3), mint.poisoned) for _ in range(200)]
        assert all(type(message) is kind for message, _ in made)
        poisoned = [message for message, count in made if count]
        refused = [message for message in poisoned if checks.wrong(message) is not None]
        assert len(refused) >= 0.8 * len(poisoned), "some of what may never stand in most fields may stand in a few"


def test_the_machine_of_gwtf_takes_forged_messages_for_those_of_a_neighbour() -> None:
    """Each receiver acknowledges sessions that no machine has begun, and goes on with their next messages."""
    world = FuzzSwarm(Settings(Plan(2, 8, router="gwtf"), steps=12), peers=6, trainers=2).start(0)
    world.clock.run(lambda: len(world.results) > 1, 1000.0)
    forged, sender = ForgedFlows(world, Random(0)), world.alive_peers()[0]
    mint, acknowledged = Mint(Random(0), world.settings.plan, list(world.alive_peers()), []), set[tuple[bool, int]]()
    for _ in range(100):
        found = forged.next(mint, sender)
        assert found is not None
        to, message = found
        flows, now = world.hosts[to].machine.flows, world.clock.now_s
        assert flows is not None
        flows.received(sender, message, now)
        sends = [action.message for action in flows.tick(now + 0.3) if isinstance(action, Send) and action.to == sender]
        payloads = [each.flow for each in sends if isinstance(each, Negotiate)]
        acknowledged |= {(ack.session >= SESSIONS_FROM, ack.number) for ack in payloads if isinstance(ack, InOrderAck)}
    assert {(True, 1), (True, 2), (True, 3)} <= acknowledged


def test_the_command_says_what_it_has_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--frames", "20", "--messages", "30", "--seed", "5"]) == 0
    output = capsys.readouterr().out
    assert "20 frames" in output
    assert "30 messages of" in output
