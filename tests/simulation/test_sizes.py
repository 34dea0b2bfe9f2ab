"""Messages on the simulated wire are about as long as the runtime's."""

from __future__ import annotations

import pytest

from swarmflow.core.protocol.messages import (
    Adopt,
    CopiesHeld,
    Done,
    Forward,
    HopHandover,
    Join,
    KeepCopy,
    Message,
    NotFinite,
    Overflow,
    RelayedTensor,
    RelayTensor,
)
from swarmflow.core.protocol.types import Attempt, Epoch, Holding, Member, Microbatch, ProcessId, Snapshot
from swarmflow.runtime.transport.wire import encode_header
from swarmflow.simulator.sizes import FRAME, wire_bytes

SIGNATURE, EPOCH, ATTEMPT = bytes(64), Epoch(3, 100), Attempt(0, 0, 0)
MICROBATCH = Microbatch(EPOCH, 17)
PEER = ProcessId("12D3KooW" + 44 * "x", 1 << 62)
MEMBER = Member(PEER, 2, 4, (f"/ip4/203.0.113.17/tcp/31337/p2p/{PEER.name}",))
SNAPSHOT = Snapshot(100, (64 * "f",) * 8, SIGNATURE)
HOLDING = Holding(SNAPSHOT, (1, 2))


def chain(stages: int) -> tuple[HopHandover, ...]:
    """How a hop came through so many stages, from a trainer on."""
    return tuple(HopHandover(PEER, stage, ATTEMPT, bytes(32 * (stage > 0)), SIGNATURE) for stage in range(stages))


FORWARD = Forward(MICROBATCH, 3, ATTEMPT, handovers=chain(8), proof=SIGNATURE)


@pytest.mark.parametrize(
    "message",
    [
        Forward(MICROBATCH, 3, ATTEMPT, proof=SIGNATURE),
        FORWARD,
        Adopt(MICROBATCH, 3, ATTEMPT, handovers=chain(16), proof=SIGNATURE),
        Done(MICROBATCH, 3, ATTEMPT, 2.5, 512, chain(1), PEER),
        Done(MICROBATCH, 3, ATTEMPT, 2.5, 512, chain(16), PEER),
        Overflow(MICROBATCH, chain(4)),
        NotFinite(EPOCH, 17, "gradient", "layer.3", PEER, chain(4)),
        RelayTensor(PEER, FORWARD, None, SIGNATURE),
        RelayedTensor(PEER, FORWARD, None, SIGNATURE),
        Join("peer", "1.0.0", 64 * "f", MEMBER),
        Join("peer", "1.0.0", 64 * "f", MEMBER, copies=(HOLDING, HOLDING)),
        CopiesHeld((HOLDING, HOLDING)),
        KeepCopy(SNAPSHOT, (1, 2), ((MEMBER, MEMBER), (MEMBER,))),
    ],
)
def test_a_message_takes_about_as_many_bytes_as_in_the_runtime(message: Message) -> None:
    assert wire_bytes(message) == pytest.approx(FRAME + len(encode_header(message)), rel=0.2)
