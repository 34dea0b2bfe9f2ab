"""Asks a run's leader for its status and prints it."""

from __future__ import annotations

from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from swarmflow.errors import NetworkError
from swarmflow.runtime.client import visit
from swarmflow.runtime.invite import Invite
from swarmflow.runtime.logs import set_up_logging


def main(invite: Invite, as_json: bool) -> int:
    """Print the status; the exit code."""
    set_up_logging()
    answer = uvloop.run(fetch_status(invite))
    if as_json:
        print(msgspec.json.format(answer).decode())
    else:
        _show(msgspec.json.decode(answer))
    return 0


async def fetch_status(invite: Invite) -> bytes:
    """The status as JSON. Raises NetworkError."""
    async with visit(invite) as (session, found):
        answer = await session.requests.ask(found.leader, "status")
        if len(answer) != 1:
            raise NetworkError("the leader's answer has no status in it")
        return bytes(answer[0])


def _show(status: dict[str, Any]) -> None:
    console = Console()
    loss = "-" if status["loss"] is None else f"{status['loss']:.4f}"
    speed = "-" if status["tokens_per_s"] is None else f"{status['tokens_per_s']:.0f}"
    console.print(
        f"[bold]{status['run']}[/bold]: {status['phase']}, step {status['step']} of {status['steps']}, "
        f"loss {loss}, {speed} tokens/s, {len(status['trainers'])} trainer(s)"
    )
    if status["waiting_for"]:
        console.print(f"waiting for {status['waiting_for']}")
    table = Table("stage", "peer", "phase", "version", "held", "queued", "capacity")
    for stage in status["stages"]:
        for peer in stage["peers"] or [None]:
            row = ["nobody"] if peer is None else [
                str(peer[key]) for key in ("id", "phase", "version", "held", "queued", "capacity")
            ]  # fmt: skip
            table.add_row(str(stage["stage"]), *row)
    console.print(table)
