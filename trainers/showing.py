"""What a trainer shows of the run on its terminal, and what its log tells while another trainer leads."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from swarmflow.runtime.operations.showing import RunDisplay
from swarmflow.runtime.transport.node import Node
from swarmflow.view.watching import Question
from trainers.page import RunPage

if TYPE_CHECKING:
    from swarmflow.terminal.process_view import ProcessView


def show_run(stack: AsyncExitStack, page: RunPage, node: Node, view: ProcessView | None) -> None:
    """Keep the live view up to date until the stack is closed, or the log if there is none.

    page: knows the present incarnation of this trainer.
    """

    async def ask(question: Question | None) -> bytes:
        return await page.ask(question)

    shown = RunDisplay(view)
    shown.name, shown.ask = node.name, ask
    if view is not None:
        view.name = node.name[-6:]
    task = asyncio.get_running_loop().create_task(shown.keep_up())
    stack.callback(task.cancel)
