"""Asks a run for its status and prints it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.asking import ask_status
from swarmflow.runtime.operations.left_runs import last_left, left_run
from swarmflow.runtime.transport.invite import Invite, read_invite

ROWS_MIN = 40  # a terminal that has fewer can scroll
ROWS_ELSEWHERE = 10_000


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

    from swarmflow.terminal.shown_run import shown_run
    from swarmflow.terminal.swarm_view import SwarmView

    try:
        view = SwarmView(shown_run(status))
    except ValueError as error:
        raise NetworkError(f"the answer of the swarm cannot be read ({error})") from None
    console = Console(highlight=False)
    rows = console.height if console.is_terminal else ROWS_ELSEWHERE
    console.print(view.draw(console.width, max(rows, ROWS_MIN)))
