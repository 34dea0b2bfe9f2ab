"""A process of its own for the tests to kill: greets the process at an address and prints what it is told."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.node import Node
from tests.runtime.nodes import End


async def main(identity: str, address: str) -> None:
    node = await Node.start(identity_path=Path(identity), bootstrap=[address])
    end = End(node, 7)
    await end.links.start()
    end.links.send(ProcessId(peer_of(address), 0), b"here I am")
    _, header, *_ = await end.messages.get()
    print(header, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
