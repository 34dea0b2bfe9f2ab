"""The driver: what a machine raises over somebody's message puts out that one, and what it raises by itself ends it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from swarmflow.authority.access import AccessControl
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.events import BlamedError, DrainAsked, Event, Lost, Mishandled, Received, Tick
from swarmflow.core.protocol.messages import Adopt, Drain, Heartbeat, Message
from swarmflow.core.protocol.messages.checks import MessageChecks, checks_of
from swarmflow.core.protocol.proofs import with_proofs
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Microbatch, Plan, ProcessId
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.signatures import Signatures
from swarmflow.runtime.execution.store import Store
from swarmflow.runtime.transport.identity import IdentityKey
from swarmflow.runtime.transport.requests import Requests
from swarmflow.runtime.transport.wire import decode_header, encode_header
from tests.core.test_proofs import JOIN
from tests.owners import OTHER as OTHER_OWNER
from tests.owners import OWNER, RUN_ID, trainer_access
from tests.runtime.nodes import linked

pytestmark = pytest.mark.asyncio

ME, OTHER, THIRD = ProcessId("me", 1), ProcessId("other", 1), ProcessId("third", 1)


@dataclass
class Fragile:
    """A machine that raises over some events. events: all that it was given."""

    raises_over: tuple[type, ...]
    events: list[Event] = field(default_factory=list)
    checks: MessageChecks = field(default_factory=lambda: checks_of(Plan(stages=3, microbatches=4)))

    def handle(self, event: Event, now: float) -> list[Action]:
        self.events.append(event)
        if type(event) in self.raises_over or (isinstance(event, Received) and type(event.message) in self.raises_over):
            raise KeyError("what was not expected")
        return []

    def next_deadline(self) -> float:
        return 1e9


async def drive(machine: Fragile, *events: Event) -> list[BaseException]:
    """What the driver reports as the end of its driving."""
    failures: list[BaseException] = []
    driver = Driver(ME, Store(), Metrics(), {}, failures.append, lambda body: None)
    driver.run(machine, [])
    for event in events:
        driver.post(event)
    driver.halt()
    return failures


async def test_what_a_message_makes_a_machine_raise_puts_out_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    machine = Fragile((Drain,))
    assert not await drive(machine, Received(OTHER, Drain()), Received(OTHER, Heartbeat()))
    reason = "sent Drain, which could not be handled (KeyError)"
    assert machine.events[-3:] == [Received(OTHER, Drain()), Mishandled(OTHER, reason), Received(OTHER, Heartbeat())]
    assert "Traceback" in caplog.text
    assert "what was not expected" in caplog.text


async def test_what_was_said_before_and_makes_a_machine_raise_later_puts_out_who_said_it() -> None:
    @dataclass
    class Late(Fragile):
        def handle(self, event: Event, now: float) -> list[Action]:
            try:
                return super().handle(event, now)
            except KeyError as error:
                raise BlamedError(OTHER, "ElectionReport") from error

    for event in (DrainAsked(), Received(THIRD, Drain())):
        machine = Late((DrainAsked, Drain))
        assert not await drive(machine, event)
        assert machine.events[-1] == Mishandled(OTHER, "sent ElectionReport, which could not be handled (KeyError)")


async def test_what_a_machine_raises_by_itself_ends_it() -> None:
    for event in (DrainAsked(), Received(ME, Drain())):
        [failure] = await drive(Fragile((DrainAsked, Drain)), event, Received(OTHER, Heartbeat()))
        assert isinstance(failure, KeyError)


async def test_a_machine_that_cannot_even_put_out_the_sender_ends() -> None:
    machine = Fragile((Drain, Mishandled))
    [failure] = await drive(machine, Received(OTHER, Drain()), Received(OTHER, Heartbeat()))
    assert isinstance(failure, KeyError)
    assert isinstance(machine.events[-1], Mishandled)


async def test_a_version_that_no_trainer_has_signed_is_not_heard_of() -> None:
    """Neither on a disk nor in memory, whatever its number; what a trainer has signed may come from anybody."""
    failures: list[BaseException] = []
    machine, metrics = Fragile(()), Metrics()
    reader = AccessControl(RUN_ID, None)
    signatures = Signatures(reader, IdentityKey(SigningKey.generate()))
    driver = Driver(ME, Store(), metrics, {}, failures.append, lambda body: None, signatures=signatures)
    driver.run(machine, [])
    true = with_proofs(JOIN, trainer_access().prove)
    for access in (AccessControl(RUN_ID, OWNER.certify("peer")), trainer_access(OTHER_OWNER)):
        driver.receive(OTHER, encode_header(with_proofs(JOIN, access.prove)), [], "peer")
    driver.receive(OTHER, encode_header(JOIN), [], "peer")
    driver.receive(OTHER, encode_header(true), [], "peer")
    driver.halt()
    bare = replace(JOIN, copies=(), held=None)
    assert machine.events[1:] == [Received(OTHER, join, (), "peer") for join in (bare, bare, bare, JOIN)]
    assert metrics.registry.get_sample_value("swarmflow_decisions_total", {"kind": "claims_unproven:Join"}) == 3
    assert not failures


async def test_what_was_lost_before_a_machine_began_is_not_kept_for_it() -> None:
    """A peer waits for its run as long as it takes, and dials the trainers that it knew about once a second."""
    machine, failures = Fragile(()), list[BaseException]()
    driver = Driver(ME, Store(), Metrics(), {}, failures.append, lambda body: None)
    driver.lost(OTHER, "it cannot be dialled")
    driver.run(machine, [])
    driver.lost(OTHER, "its daemon ended")
    driver.halt()
    assert machine.events == [Tick(), Lost(OTHER, "its daemon ended")]
    assert not failures


async def test_each_message_arrives_as_what_it_is_though_equal_ones_are_encoded_once(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        failures: list[BaseException] = []
        driver = Driver(one.me, Store(), Metrics(), {}, failures.append, lambda body: None)
        driver.connect(one.links, Requests(one.links))
        first, second = Heartbeat(sent=1), Heartbeat(sent=2)
        sent: list[Message] = [first, first, second, Drain(), first]
        driver.perform([Send(two.me, message) for message in sent])
        assert [decode_header(header) for header in await two.headers(len(sent))] == sent
        assert not failures


async def test_each_receiver_gets_a_signature_of_its_own_and_another_ones_is_marked(tmp_path: Path) -> None:
    """The very message goes to two processes; what one of them was offered, it cannot pass for the other's."""
    async with linked(tmp_path) as (one, two):
        failures: list[BaseException] = []
        access = AccessControl(RUN_ID, None)
        driver = Driver(
            one.me,
            Store(),
            Metrics(),
            {},
            failures.append,
            lambda body: None,
            signatures=Signatures(access, one.node.key),
        )
        driver.connect(one.links, Requests(one.links))
        adopt = Adopt(Microbatch(Epoch(0, 0), 1), 0, FIRST_ATTEMPT)
        driver.perform([Send(two.me, adopt), Send(two.me, adopt)])
        offered = [decode_header(header) for header in await two.headers(2)]
        for me, name in ((two.me, one.me), (two.me, OTHER), (OTHER, one.me)):
            machine = Fragile(())
            receiver = Driver(
                me,
                Store(),
                Metrics(),
                {},
                failures.append,
                lambda body: None,
                signatures=Signatures(access, two.node.key),
            )
            receiver.run(machine, [])
            for message in offered:
                receiver.receive(name, encode_header(message), [], None)
            receiver.halt()
            signed = (me, name) == (two.me, one.me)
            assert machine.events[1:] == [Received(name, adopt, (), None, signed)] * 2
        assert not failures
