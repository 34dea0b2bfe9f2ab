"""What an attacker without a place in the swarm has: a node in its network, and the processes that it finds there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import Body, ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.invite import Invite

_STAGES_MAX = 8  # that are looked for in the DHT


@dataclass
class Outside:
    """The attacker's own session, and a count of what it has done."""

    session: Session
    invite: Invite  # without its certificates
    sent: Counter[str]  # by name of what was sent or refused
    _victims: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    async def victims(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return (name, addresses) of the first trainer of the invite, and of the peers that the DHT names."""
        if not self._victims:
            found: dict[str, tuple[str, ...]] = {peer_of(address): (address,) for address in self.invite.trainers}
            for stage in range(_STAGES_MAX):
                for name, record in (await self.session.directory.find(f"stage-{stage}")).items():
                    addresses = record.get("addresses")
                    if isinstance(addresses, list):
                        found[name] = tuple(addresses)
            for name, where in found.items():
                self.session.links.set_addresses(name, where)
            self._victims = sorted(found.items())
        return self._victims

    async def processes(self) -> list[ProcessId]:
        """Return the victims, whichever life of them answers."""
        return [ProcessId(name, 0) for name, _ in await self.victims()]


def no_gradient(body: Body) -> Callable[[], Buffer]:
    """Raises NetworkError: an attacker that serves no stage has no gradient to send."""
    raise NetworkError("an attacker serves no stage")
