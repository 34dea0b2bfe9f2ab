"""A fork server whose processes can be sabotaged: messages lost or damaged, microbatches not formed, numbers spoilt.

For `swarmflow chaos` and the tests alone: ForkServer(environment, "swarmflow.chaos.sabotage") starts ordinary
processes, which look at files in their state folder before they act; no other process imports anything of it.
Other faults are caused from outside: its disk is full (`fill`), one of its files is `damaged`.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from swarmflow.chaos import spoiling
from swarmflow.core.protocol.events import Event, MicrobatchFormed
from swarmflow.core.protocol.types import ProcessId
from swarmflow.local import forkserver
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.transport import links
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.lanes import Body, Buffer, OutboundLane, nothing
from swarmflow.runtime.transport.links import Links

_BLOCKED: Final = "blocked"
_STALLED: Final = "stalled"
_GARBLED: Final = "garbled"
# A stage's file is larger, logs are not.
FULL_BYTES: Final = 1 << 18
GARBLED_BYTES_MIN: Final = 1024  # of a piece: fronts of frames are shorter


def block(state_folder: Path, names: Sequence[str]) -> None:
    """Drop all messages of a process to those of these libp2p names from now on; neither side learns of it."""
    part = state_folder / f"{_BLOCKED}.part"
    part.write_text("\n".join(names), encoding="utf-8")
    part.replace(state_folder / _BLOCKED)


def unblock(state_folder: Path) -> None:
    """Deliver its messages again."""
    (state_folder / _BLOCKED).unlink(missing_ok=True)


def garble(state_folder: Path, lane: LaneName) -> None:
    """Flip a bit of the next tensor that a process writes on this lane, after its checksum was taken."""
    part = state_folder / f"{_GARBLED}.part"
    part.write_text(lane, encoding="utf-8")
    part.replace(state_folder / _GARBLED)


def has_garbled(state_folder: Path) -> bool:
    """Return whether it has been written."""
    return not (state_folder / _GARBLED).exists()


def stall(state_folder: Path) -> None:
    """Let a trainer form no microbatches from now on, and do everything else."""
    (state_folder / _STALLED).touch()


def resume(state_folder: Path) -> None:
    """Let it form microbatches again, and those that it has kept back."""
    (state_folder / _STALLED).unlink(missing_ok=True)


def fill(pid: int, full: bool) -> None:
    """Let a process's disk refuse files as large as a stage's, or accept them again."""
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES if full else hard, hard))


def damage(state_folder: Path, place: float) -> Path | None:
    """Flip a byte of the newest file of a stage in a folder. place: from 0 to 1 of the file. None: there is no file."""
    files = sorted(state_folder.rglob("stage-*.safetensors"), key=lambda path: (path.stat().st_mtime_ns, path))
    if not files:
        return None
    with files[-1].open("r+b") as file:
        at = int(place * (files[-1].stat().st_size - 1))
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return files[-1]


# --- in the process ---------------------------------------------------------------------------------------------------


def _own(name: str) -> Path:
    return Path(sys.argv[sys.argv.index("--state-dir") + 1]) / name


class _Blockable(Links):
    def send(
        self,
        to: ProcessId,
        header: bytes,
        bodies: Sequence[Body] = (),
        *,
        lane: LaneName = "control",
        done: Callable[[], None] = nothing,
    ) -> None:
        try:
            blocked = _own(_BLOCKED).read_text(encoding="utf-8").split()
        except FileNotFoundError:
            blocked = []
        if to.name in blocked:
            done()
        else:
            super().send(to, header, bodies, lane=lane, done=done)


class _Garbling(OutboundLane):
    async def _write_piece(self, writer: asyncio.StreamWriter, piece: Buffer) -> None:
        if len(piece) >= GARBLED_BYTES_MIN and _lane_to_garble() == self._hello.lane:
            _own(_GARBLED).unlink()
            garbled = bytearray(piece)
            # The sign and exponent of a number, in pieces of a body and before the checksum at the end of short frames.
            garbled[-9] ^= 0x10
            piece = bytes(garbled)
        await super()._write_piece(writer, piece)


def _lane_to_garble() -> str:
    try:
        return _own(_GARBLED).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


class _Stallable(Driver):
    """Keeps back formed microbatches while it is stalled, until the next event after that."""

    def post(self, event: Event) -> None:
        kept: list[Event] = self.__dict__.setdefault("formed", [])
        if isinstance(event, MicrobatchFormed) and _own(_STALLED).exists():
            kept.append(event)
            return
        while kept and not _own(_STALLED).exists():
            super().post(kept.pop(0))
        super().post(event)


def main() -> None:
    """As the fork server's main, for processes that can be sabotaged."""
    spoiling.prepare()
    from swarmflow.runtime.execution import session

    setattr(session, "Links", _Blockable)  # noqa: B010  # the session takes it from there
    setattr(links, "OutboundLane", _Garbling)  # noqa: B010
    setattr(session, "Driver", _Stallable)  # noqa: B010
    forkserver.main()


if __name__ == "__main__":
    main()
