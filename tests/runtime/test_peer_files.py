"""What a peer remembers in its folder from one start to the next."""

from __future__ import annotations

from pathlib import Path

from peers.memory import JoinedRun
from swarmflow.files import write_sealed
from swarmflow.runtime.transport.invite import TRAINERS_MAX
from tests.owners import invite_of
from tests.runtime.test_node import NAME, NO_PROCESSES

FIRST, LATER = f"/ip4/192.0.2.7/tcp/7/p2p/{NAME}", f"/dns4/example.org/tcp/7/p2p/{NAME}"
INVITE = invite_of(FIRST)


def test_what_is_no_address_of_a_process_is_not_remembered(tmp_path: Path) -> None:
    """A trainer says where it is, and what it says would be read at each start of every peer."""
    memory = JoinedRun(tmp_path)
    memory.join(INVITE.run_id)
    memory.keep_trainers((*NO_PROCESSES, LATER))
    assert JoinedRun(tmp_path).completed(INVITE).trainers == (LATER, FIRST)
    memory.keep_trainers(NO_PROCESSES)
    assert JoinedRun(tmp_path).completed(INVITE).trainers == (LATER, FIRST), "who is there says nothing of use"


def test_a_file_with_what_is_no_address_is_read_for_those_that_are(tmp_path: Path) -> None:
    memory = JoinedRun(tmp_path)
    memory.join(INVITE.run_id)
    lines = "\n".join((*NO_PROCESSES[:-1], *(f"{LATER[:-1]}{letter}" for letter in "WXYZ"), *TRAINERS_MAX * (LATER,)))
    write_sealed(tmp_path / "trainers", lines.encode())
    known = memory.completed(INVITE).trainers
    assert FIRST in known
    assert LATER in known
    assert not set(known) & set(NO_PROCESSES)
