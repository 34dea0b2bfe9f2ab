"""Where a trainer listens that was told no port: where it did before, or elsewhere if that is another's by now."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.trainers.test_before_begun import opened
from trainers.process import start_node


@pytest.mark.asyncio
async def test_a_port_that_was_taken_meanwhile_keeps_no_trainer_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        other = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        taken = other.getsockname()[1]
        run.folder.keep_port(taken)
        with caplog.at_level(logging.WARNING, "swarmflow"):
            node = await start_node(run, None, first=True)
        try:
            assert f":{taken} is another's now" in caplog.text
            assert run.folder.port not in (0, taken)
            assert f"/tcp/{run.folder.port}/" in "".join(node.addresses())
        finally:
            await node.stop()
