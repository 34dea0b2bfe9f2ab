"""A fork server whose processes take every detour, and have others sum their gradients, as if all ways were slow.

On one machine no way is slow. Each process leaves a file in its folder for what it has done for others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarmflow.core.commit import piece_owners, reduce
from swarmflow.core.commit.reduce import Reduction
from swarmflow.core.machines.serving import ballots, microbatches
from swarmflow.core.machines.serving.inbound import INBOUND, Inbound, Scope
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.protocol.actions import Action, SumPiece
from swarmflow.core.protocol.events import Received
from swarmflow.core.routing import link_rates, prober, relays
from swarmflow.local import forkserver

ANYTHING = 1e9
PIECE_ELEMENTS = 2**12  # a small model has as many pieces then as a large one
CARRIED, SUMMED = "has-carried", "has-summed-apart"


def _note(what: str) -> None:
    (Path(sys.argv[sys.argv.index("--state-dir") + 1]) / what).touch()


class _Noted(Reduction):
    def _sum(self, *of: object) -> list[Action]:
        actions: list[Action] = super()._sum(*of)  # type: ignore[arg-type]  # as it was called
        if any(isinstance(action, SumPiece) and action.apart for action in actions):
            _note(SUMMED)
        return actions


def _carry(peer: PeerState, event: Received, now: float) -> list[Action]:
    _note(CARRIED)
    return microbatches.on_relay_tensor(peer, event, now)


if __name__ == "__main__":
    import transformers.models.llama.modeling_llama  # noqa: F401  # once for all of them

    from swarmflow.core.protocol.messages import RelayTensor

    patch = pytest.MonkeyPatch()
    patch.setattr(prober, "PROBE_BYTES_MIN", 1)
    patch.setattr(link_rates, "CHANGED", 0.0)
    patch.setattr(piece_owners, "WORTH", ANYTHING)
    patch.setattr(relays, "WORTH", ANYTHING)
    patch.setattr(relays, "GAIN_MIN_S", -ANYTHING)
    patch.setattr(reduce, "PIECE_ELEMENTS", PIECE_ELEMENTS)
    patch.setattr(ballots, "Reduction", _Noted)
    patch.setitem(INBOUND, RelayTensor, Inbound(Scope.HOP, _carry))
    forkserver.main()
