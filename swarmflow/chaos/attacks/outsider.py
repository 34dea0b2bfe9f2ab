"""`swarmflow attack KIND INVITE FOLDER`: an attacker that takes no part in the run, for `swarmflow chaos --attack`.

It has what its kind may have, and no more: nothing but the addresses, the certificate of a peer, or that of a trainer
which was revoked. It runs until it is killed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import uvloop

from swarmflow.authority.access import AccessControl
from swarmflow.authority.certificates import CertifiedKey
from swarmflow.chaos.attacks import record_attacks, stream_attacks, switch
from swarmflow.chaos.attacks.kinds import KINDS
from swarmflow.chaos.attacks.outside import Outside, no_gradient
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.node import Node

_EVERY_S = 0.1
_NICENESS = 19  # it has a machine of its own, it is assumed: here it takes what the swarm leaves


class _Attack(Protocol):
    def __init__(self, outside: Outside) -> None: ...

    async def strike(self) -> None:
        """Do what is due."""


ATTACKS: Final[dict[str, type[_Attack]]] = {
    "leader-record": record_attacks.FalseLeaderRecord,
    "dht-spam": record_attacks.RecordSpam,
    "requests": stream_attacks.EndlessRequests,
    "replay": stream_attacks.ReplayedCredential,
    "half-open": stream_attacks.HalfOpenStreams,
    "revoked": stream_attacks.RevokedTrainer,
}


def main(arguments: Sequence[str]) -> int:
    """Attack until the process is killed."""
    kind, text, folder = arguments
    os.nice(_NICENESS)
    uvloop.run(_attack(kind, Invite.parse(text), Path(folder)))
    return 0


def _key(kind: str, invite: Invite) -> CertifiedKey | None:
    by = next(each.by for each in KINDS if each.name == kind)
    return {"certified": invite.peer, "revoked": invite.trainer}.get(by)


async def _attack(kind: str, invite: Invite, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(kind, invite)
    public = replace(invite, peer=None, trainer=None)
    node = await Node.start(identity_path=folder / "identity.key", bootstrap=list(public.trainers))
    session = Session(node, AccessControl(public.run_id, key), Metrics())
    session.open({}, no_gradient)
    session.links.set_addresses(peer_of(public.trainers[0]), public.trainers)
    await session.links.start()
    outside = Outside(session, public, Counter())
    attack = ATTACKS[kind](outside)
    while True:
        try:
            await attack.strike()
        except NetworkError as error:  # of the DHT, which is busy; or of a process that is gone
            print(error, flush=True)
        switch.report(folder, outside.sent)
        await asyncio.sleep(_EVERY_S)
