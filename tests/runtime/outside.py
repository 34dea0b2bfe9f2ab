"""A small internet on one machine: `unshare --map-root-user --net python -m tests.runtime.outside FOLDER`.

A trainer at a public address, and peers at a public address and behind a firewall.
Prints a line a peer: its name, how it is reached, and the sentence for its user.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import uvloop

from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations import own_reach
from swarmflow.runtime.operations.own_reach import DialBack, watch_reach
from swarmflow.runtime.transport.node import Node
from tests.owners import invite_of
from tests.runtime.test_session import opened

PUBLIC, PRIVATE = "9.9.9.1", "10.9.9.3"  # every process dials from the public one
PEERS = {"open": (PUBLIC, "public"), "shut": (PRIVATE, "unknown")}  # name: host, reach
FOUND_S = 60.0


class LastLine(logging.Handler):
    """Keeps the last line."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


async def peer(folder: Path, name: str, leader: Session, lines: LastLine) -> None:
    host, expected = PEERS[name]
    addresses = leader.node.addresses()
    node = await Node.start(identity_path=folder / name, listen=[f"{host}:0"], bootstrap=addresses)
    session, reached = await opened(node), asyncio.Event()
    session.links.set_addresses(leader.me, addresses)

    def found(reach: str) -> None:
        if reach == expected:
            print(name, reach, lines.text, flush=True)
            reached.set()

    session.spawn(watch_reach(session, invite_of(*addresses), leader.me, found), "the reach")
    try:
        await asyncio.wait_for(reached.wait(), FOUND_S)
    finally:
        await session.close(0.0)
        await node.stop()


async def main(folder: Path) -> None:
    for command in ("link set lo up", *(f"addr add {host}/32 dev lo" for host in (PUBLIC, PRIVATE))):
        subprocess.run(["ip", *command.split()], check=True)
    lines = LastLine()
    logging.getLogger("swarmflow").addHandler(lines)
    logging.getLogger("swarmflow").setLevel(logging.INFO)
    own_reach.LOOK_EVERY_S = 0.2
    trainer = await Node.start(identity_path=folder / "trainer", listen=[f"{PUBLIC}:0"], public=True)
    leader = await opened(trainer)
    DialBack(trainer).serve(leader.requests)
    try:
        for name in PEERS:
            await peer(folder, name, leader, lines)
    finally:
        await leader.close(0.0)
        await trainer.stop()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
