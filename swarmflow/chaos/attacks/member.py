"""A fork server whose processes can be attackers: peers that join with an invite and lie, and others that do not join.

For `swarmflow chaos --attack` alone: ForkServer(environment, "swarmflow.chaos.attacks.member") starts ordinary
processes. A peer lies as long as the file `attack` in its state folder names a kind (switch.py); all that it does
besides is done by the code of every peer. `swarmflow attack ...` runs an attacker that takes no part (outsider.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from swarmflow.chaos.attacks import hop_lies, order_lies, report_lies, switch, tensor_lies, version_lies
from swarmflow.chaos.attacks.lies import Insider, Lie
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Event
from swarmflow.core.protocol.types import ProcessId, Role
from swarmflow.errors import FrameError
from swarmflow.local import forkserver
from swarmflow.runtime.execution.driver import Driver, Machine
from swarmflow.runtime.execution.signatures import Signatures
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.lanes import Body, nothing
from swarmflow.runtime.transport.links import Links
from swarmflow.runtime.transport.wire import Request, decode_header, encode_header, message_name

OUTSIDE: Final = "attack"  # the word after `swarmflow` for an attacker that takes no part
_EVERY_S = 0.05
LIES: Final[dict[str, type[Lie]]] = {
    "done": hop_lies.FalseDone,
    "ready": report_lies.FalseReady,
    "overflow": hop_lies.FalseOverflow,
    "not-finite": hop_lies.FalseNotFinite,
    "accuse-one": report_lies.AccuseOne,
    "accuse-all": report_lies.AccuseAll,
    "orders": order_lies.FalseOrders,
    "lead": order_lies.FalseLead,
    "adopt": hop_lies.FalseAdopt,
    "forward": hop_lies.FalseForward,
    "relay": hop_lies.FalseRelay,
    "sums": tensor_lies.UnlikeSums,
    "named-sums": tensor_lies.UnlikeNamedSums,
    "sly-sums": tensor_lies.SlySums,
    "norms": report_lies.FalseNorms,
    "donor": tensor_lies.FalseWeights,
    "copies": version_lies.FalseCopies,
    "early-tensors": tensor_lies.EarlyTensors,
}


class _Present:
    """What this process does at the moment: the lie that is switched on, and all that was forged by it."""

    lie: Lie | None = None
    kind = ""
    sent: dict[str, int]

    def look(self, folder: Path, machine: PeerMachine, links: Links, signatures: Signatures) -> None:
        """Switch the lie on or off, as the state folder says; another life of the process begins it anew."""
        kind = switch.current(folder)
        if kind == self.kind and (self.lie is None or self.lie.insider.machine is machine):
            return
        former = self.lie.insider.sent if self.lie is not None and kind == self.kind else None
        self.kind, self.lie = kind, None
        if kind:
            self.lie = LIES[kind](Insider(machine, links, signatures))
            self.lie.insider.sent.update(former or {})


_present = _Present()


class _LyingLinks(Links):
    """Sends what the lie makes of the process' own messages."""

    def send(
        self,
        to: ProcessId,
        header: bytes,
        bodies: Sequence[Body] = (),
        *,
        lane: LaneName = "control",
        done: Callable[[], None] = nothing,
    ) -> None:
        if _present.lie is not None:
            message, bodies = _present.lie.outgoing(to, decode_header(header), bodies)
            header = encode_header(message)
        super().send(to, header, bodies, lane=lane, done=done)


class _LyingDriver(Driver):
    """Drives the machine of a peer, and lies beside it."""

    def run(self, machine: Machine, actions: list[Action]) -> None:
        if isinstance(machine, PeerMachine):
            self._striking = asyncio.get_running_loop().create_task(self._strike_often(machine))
        super().run(machine, actions)

    def halt(self) -> None:
        if striking := self.__dict__.get("_striking"):
            striking.cancel()
        super().halt()

    def post(self, event: Event) -> None:
        super().post(event if _present.lie is None else _present.lie.incoming(event))

    def receive(self, sender: ProcessId, header: bytes, bodies: list[memoryview], role: Role | None) -> None:
        if _present.lie is not None and message_name(header) == Request.__name__:
            with contextlib.suppress(FrameError):
                request = decode_header(header)
                assert isinstance(request, Request)
                _present.lie.on_request(sender, request)
        super().receive(sender, header, bodies, role)

    async def _strike_often(self, machine: PeerMachine) -> None:
        folder = Path(sys.argv[sys.argv.index("--state-dir") + 1])
        while True:
            assert self.links is not None, "a session connects its driver at once"
            assert self._signatures is not None, "it gives it signatures too"
            _present.look(folder, machine, self.links, self._signatures)
            if _present.lie is not None:
                _present.lie.strike()
                switch.report(folder, _present.lie.insider.sent)
            await asyncio.sleep(_EVERY_S if _present.lie is None else _present.lie.every_s)


def _attack_from_outside() -> None:
    """Run an attacker that takes no part, where the command is one."""
    if sys.argv[1:2] == [OUTSIDE]:
        from swarmflow.chaos.attacks import outsider

        sys.exit(outsider.main(sys.argv[2:]))


if __name__ == "__main__":
    from swarmflow.runtime.execution import session

    setattr(session, "Links", _LyingLinks)  # noqa: B010  # the session takes them from there
    setattr(session, "Driver", _LyingDriver)  # noqa: B010
    forkserver.main(_attack_from_outside)
