"""What a trainer serves of the whole run, through whichever incarnation of it lives: a page, and metrics."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from swarmflow.errors import NetworkError
from swarmflow.monitoring.pages import swarm_pages
from swarmflow.page.server import PageServer
from swarmflow.page.serving import url_of
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.operations.answering import Report
from swarmflow.runtime.operations.watching import LiveFeed
from swarmflow.view.watching import Question
from trainers.options import TrainerOptions

log = logging.getLogger("swarmflow")


async def _begins(question: Question | None) -> bytes:
    raise NetworkError("the trainer is about to begin")


@dataclass(slots=True)
class RunPage:
    """Where page and metrics get their answers. It lasts as long as the process, and is there before the run is."""

    ask: Report = field(default=_begins)  # of the present incarnation

    @classmethod
    async def serve(cls, stack: AsyncExitStack, options: TrainerOptions, metrics: Metrics) -> RunPage:
        """Serve both until the stack is closed, the page if the user wants one. Raises NetworkError."""
        page = cls()
        stack.enter_context(metrics.pages(swarm_pages(lambda: page.ask(None))))
        if options.page_port is not None:
            server = PageServer(LiveFeed(page._answer))
            port = await server.start(options.page_host, options.page_port)
            stack.callback(server.close)
            log.info("page: %s", url_of(options.page_host, port))
        return page

    async def _answer(self, question: Question) -> bytes:
        return await self.ask(question)
