"""Asks a run for its status and prints it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec

from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.asking import ask_status
from swarmflow.runtime.operations.left_runs import last_left, left_run
from swarmflow.runtime.transport.invite import Invite, read_invite

if TYPE_CHECKING:
    from swarmflow.terminal.shown_run import ShownRun

ROWS_MIN = 40  # a terminal that has fewer can scroll
ROWS_ELSEWHERE = 10_000


def main(text: str | None, as_json: bool) -> int:
    """Print the status of the run of this invite, or of the one run of this machine; the exit code.

    Raises NetworkError where no trainer answers, or what is no status; it tells how the run ended, where that is known.
    """
    show(_answer(_invite(text)), as_json)
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


def show(answer: bytes, as_json: bool) -> None:
    """Print an answer. Raises NetworkError where it is no status."""
    from swarmflow.terminal.shown_run import shown_run

    try:
        status = msgspec.json.decode(answer, type=dict[str, Any])
        # In ASCII: it holds texts of other machines, and a terminal may show it.
        shown = json.dumps(status, indent=2) if as_json else shown_run(status)
    except (*UNDECODABLE, ValueError) as error:
        raise NetworkError(f"the answer of the swarm cannot be read ({error})") from None
    if isinstance(shown, str):
        print(shown)
    else:
        _draw(shown)


def _draw(run: ShownRun) -> None:
    from rich.console import Console

    from swarmflow.terminal.swarm_view import SwarmView

    console = Console(highlight=False)
    rows = console.height if console.is_terminal else ROWS_ELSEWHERE
    console.print(SwarmView(run).draw(console.width, max(rows, ROWS_MIN)))
