"""Asks a run for its status and prints it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from swarmflow.clean_text import clean
from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.asking import ask_status
from swarmflow.runtime.operations.left_runs import last_left, left_run
from swarmflow.runtime.transport.invite import Invite, read_invite


def main(text: str | None, as_json: bool) -> int:
    """Print the status of the run of this invite, or of the one run of this machine; the exit code.

    Raises NetworkError where no trainer answers; it tells how the run ended, where that is known here.
    """
    answer = _answer(_invite(text))
    if as_json:
        print(msgspec.json.format(answer).decode())
    else:
        _show(msgspec.json.decode(answer))
    return 0


def _invite(text: str | None) -> Invite:
    try:
        return read_invite(text)
    except NetworkError as error:
        ended = last_left() if not text else None
        if ended is None:
            raise
        raise NetworkError(f"{error}; the last one here: {ended}") from None


def _answer(invite: Invite) -> bytes:
    try:
        return asyncio.run(ask_status(invite))
    except NetworkError:
        ended = left_run(invite.run_id)
        if ended is None:
            raise
        raise NetworkError(f"{ended}; nobody answers for it any more") from None


def _show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    loss = "-" if status["loss"] is None else f"{status['loss']:.4f}"
    speed = "-" if status["tokens_per_s"] is None else f"{status['tokens_per_s']:.0f}"
    state = f"{status['phase']}, step {status['step']} of {status['steps']}"
    console.print(
        Text(f"{clean(status['run'])}: {state}, loss {loss}, {speed} tokens/s, {len(status['trainers'])} trainer(s)")
    )
    if status["waiting_for"]:
        console.print(Text(f"waiting for {clean(status['waiting_for'])}"))
    table = Table("stage", "peer", "phase", "version", "held", "queued", "capacity")
    for stage in status["stages"]:
        for peer in stage["peers"] or [None]:
            row = (
                [Text("nobody")]
                if peer is None
                else [Text(clean(str(peer[key]))) for key in ("id", "phase", "version", "held", "queued", "capacity")]
            )
            table.add_row(str(stage["stage"]), *row)
    console.print(table)
