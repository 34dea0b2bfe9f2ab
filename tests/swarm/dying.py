"""A fork server whose processes kill themselves amid an all-reduce, where the test has told them to.

The position is counted inside the process: from outside, nobody hits the one moment between two pieces.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from swarmflow.core.commit import reduce
from swarmflow.core.commit.reduce import Reduction
from swarmflow.core.machines.serving import ballots
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.types import Group, Ref
from swarmflow.local import forkserver

# A sixteenth of the usual size: what matters are the moments, of which a small model then has as many as a large one.
PIECE_ELEMENTS = 2**14
_FILE = "die-at"


def tell(state_folder: Path, pieces: int) -> None:
    """The peer with this folder dies by SIGKILL when so many pieces of its next all-reduce are reduced."""
    part = state_folder / f"{_FILE}.part"
    part.write_text(str(pieces), encoding="utf-8")
    part.replace(state_folder / _FILE)


def forgive(state_folder: Path) -> None:
    """Its next life is spared."""
    (state_folder / _FILE).unlink()


class _Mortal(Reduction):
    def begin(self, groups: tuple[Group, ...], gives: bool = True) -> list[Action]:
        if gives:  # else nothing is lost with it: all microbatches of its stage went to others
            self._die_at_target()
        return super().begin(groups, gives)

    def reduced(self, ballot: int, group: str, piece: int, digest: str, apart: Ref | None = None) -> list[Action]:
        actions = super().reduced(ballot, group, piece, digest, apart)
        self._die_at_target()
        return actions

    def _die_at_target(self) -> None:
        target = Path(sys.argv[sys.argv.index("--state-dir") + 1]) / _FILE
        pieces = sum(len(state.reduced) for state in self._groups.values())
        if target.is_file() and int(target.read_text(encoding="utf-8")) == pieces:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    import transformers.models.llama.modeling_llama  # noqa: F401  # once for all of them

    patch = pytest.MonkeyPatch()
    patch.setattr(reduce, "PIECE_ELEMENTS", PIECE_ELEMENTS)
    patch.setattr(ballots, "Reduction", _Mortal)
    forkserver.main()
