"""What a peer shows of itself on its terminal, and what its log tells while it waits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

from swarmflow.activity import Waiting
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.protocol.messages import PeerSummary
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.summary import PeerReport
from swarmflow.runtime.operations.showing import RunDisplay, begins
from swarmflow.terminal.contribution import contribution
from swarmflow.terminal.shown_run import ShownSummary
from swarmflow.view.watching import Question

IDLE_S = 3.0  # a peer that has done nothing for so long asks what the run waits for
_ASK_S = 3.0
_LOOK_S = 1.0


async def show_peer(shown: RunDisplay, session: Session, machine: PeerMachine, report: PeerReport) -> None:
    """Keep up to date what this incarnation of a peer does and waits for.

    report: what the process has done so far.
    """

    async def ask(question: Question | None) -> bytes:
        if machine.lease.lost:
            raise NetworkError("the trainers are electing a leader")
        arguments = {} if question is None else asdict(question)
        answer = await session.requests.ask(machine.leader, "status", arguments, timeout_s=_ASK_S)
        return bytes(answer[0]) if answer else b""

    standing, worked_s, seen = Waiting(), time.monotonic(), -1
    shown.name, shown.ask = session.me.name, ask
    shown.own = lambda: (_place(machine), done_so_far(report.summary(session.node.addresses())))
    shown.idle = lambda: time.monotonic() - worked_s >= IDLE_S
    try:
        while True:
            if machine.done != seen:
                seen, worked_s = machine.done, time.monotonic()
            standing.set(_waits_for(machine))
            await asyncio.sleep(_LOOK_S)
    finally:
        standing.set("")
        shown.ask = begins
        shown.own = lambda: (done_so_far(report.summary(session.node.addresses())),)


def done_so_far(summary: PeerSummary) -> str:
    """Return what this process has done and uses, in a line."""
    return contribution(
        ShownSummary(
            microbatches=summary.hops,
            tokens=summary.tokens,
            compute_s=summary.compute_s,
            wasted_s=summary.wasted_s,
            sent_bytes=summary.sent_bytes,
            received_bytes=summary.received_bytes,
            memory_bytes=summary.memory_bytes,
            reach=summary.reach,
        )
    )


def _waits_for(machine: PeerMachine) -> str:
    """Return what this peer itself waits for; empty: nothing, or what the whole run waits for."""
    if machine.lease.lost:
        return "waiting until the trainers have elected a leader"
    if machine.phase is PeerPhase.JOINING:
        return f"waiting until the leader {machine.leader} grants this peer a stage"
    if machine.phase is PeerPhase.READY:
        return "waiting for a step that begins with this peer"
    return ""


def _place(machine: PeerMachine) -> str:
    """Return which stage this peer serves, and how busy it is."""
    if machine.stage < 0:
        return "this peer has no stage yet"
    words = {PeerPhase.LOADING: "loads", PeerPhase.READY: "has loaded", PeerPhase.MEMBER: "serves"}
    text = f"this peer {words.get(machine.phase, 'leaves')} stage {machine.stage}"
    if machine.hops is None:
        return text
    return f"{text} at version {machine.version}, holds {machine.hops.held} of {machine.hops.capacity} microbatches"
