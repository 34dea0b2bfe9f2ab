"""Finds a run: from an invite to its leader and its manifest."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from swarmflow import __version__
from swarmflow.activity import doing
from swarmflow.authority.policy import AccessPolicy
from swarmflow.core.protocol.types import ProcessId
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import AuthorityError, IncompatibleError, NetworkError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.invite import Invite

log = logging.getLogger("swarmflow")

_ASK_TIMEOUT_S = 10.0
_AGAIN_S = 1.0


@dataclass(frozen=True)
class Description:
    """A trainer's description of the run."""

    software: str  # its version
    leader: tuple[str, int, tuple[str, ...]] | None  # (name, incarnation, addresses) of the leader, if it knows one


@dataclass(frozen=True)
class FoundRun:
    """A run, and its leader."""

    leader: ProcessId
    manifest: Manifest
    policy: AccessPolicy  # which the session goes by from now on


async def find_leader(session: Session, invite: Invite, timeout_s: float | None = 20.0) -> FoundRun:
    """Ask the trainers of the invite, and those in the DHT, until one names a leader that answers.

    timeout_s: None waits for ever, and logs it, also where only trainers of other software answer. Raises NetworkError,
    IncompatibleError (other software).
    """
    reasons: list[str] = []

    def last() -> str:
        return reasons[-1] if reasons else ""

    with doing(f"looking for the trainer that leads run {invite.name}", last):
        return await _find_leader(session, invite, timeout_s, reasons)


async def _find_leader(session: Session, invite: Invite, timeout_s: float | None, last: list[str]) -> FoundRun:
    """Ask again and again; `last` always has why the last round has found none."""
    began_s = asyncio.get_running_loop().time()
    reported: set[str] = set()
    while True:
        reasons: list[str] = []
        unfit: IncompatibleError | None = None
        for name, addresses in (await _trainers(session, invite)).items():
            try:
                found = await _ask(session, name, addresses)
                if found is not None:
                    return found
                reasons.append("its trainers are electing a leader")
            except NetworkError as error:
                reasons.append(str(error))
            except IncompatibleError as error:  # it may be out of date itself, and another trainer may answer
                unfit = error
        if unfit is not None and timeout_s is not None:
            raise unfit
        reason = str(unfit) if unfit is not None else reasons[-1] if reasons else "no trainer of it is known"
        if timeout_s is not None and asyncio.get_running_loop().time() - began_s > timeout_s:
            raise NetworkError(f"run {invite.name} does not answer: {reason}; is its trainer running?")
        last[:] = [reason]
        kind = "" if unfit is None else reason
        if kind not in reported:
            level = logging.INFO if unfit is None else logging.WARNING
            log.log(level, "waiting for a trainer of run %s (%s)", invite.name, reason)
            reported.add(kind)
        await asyncio.sleep(_AGAIN_S)


async def leads_itself(session: Session, name: str, addresses: tuple[str, ...]) -> ProcessId | None:
    """Return the current life of a trainer that leads by its own account; None: it does not answer, or follows another.

    A record of the directory may be half a minute old, and its owner dead since.
    """
    try:
        description, *_ = await _describe(session, name, addresses)
    except (NetworkError, IncompatibleError) as error:
        log.debug("%s was said to lead: %s", name[-6:], error)
        return None
    return ProcessId(name, description.leader[1]) if description.leader and description.leader[0] == name else None


async def _trainers(session: Session, invite: Invite) -> dict[str, tuple[str, ...]]:
    """Return name -> addresses of trainers: first the leader by the DHT, then those of the invite."""
    known: dict[str, tuple[str, ...]] = {}
    try:
        records = await session.trainers(timeout_s=_ASK_TIMEOUT_S)
    except NetworkError as error:
        log.debug("the directory did not answer: %s", error)
        records = {}
    for name, record in sorted(records.items(), key=lambda item: not item[1].get("leads")):
        addresses = record.get("addresses", ())
        known[name] = tuple(addresses) if isinstance(addresses, list) else ()
    for address in invite.trainers:
        name = peer_of(address)
        if address not in known.get(name, ()):
            known[name] = (*known.get(name, ()), address)
    known.pop(session.me.name, None)
    return known


async def _ask(session: Session, name: str, addresses: tuple[str, ...]) -> FoundRun | None:
    """Ask a trainer, and then the leader that it names. None: it knows no leader."""
    description, manifest, policy = await _describe(session, name, addresses)
    if description.leader is None:
        return None
    leader_name, incarnation, where = description.leader
    if leader_name == session.me.name:
        return None  # an earlier life of this very process, whose death was not noticed yet
    if leader_name != name:
        itself, manifest, policy = await _describe(session, leader_name, where)
        if itself.leader is None or itself.leader[:2] != (leader_name, incarnation):
            return None
    leader = ProcessId(leader_name, incarnation)
    session.links.set_addresses(leader, where or addresses)
    session.adopt(policy)
    return FoundRun(leader, manifest, policy)


async def _describe(
    session: Session, name: str, addresses: tuple[str, ...]
) -> tuple[Description, Manifest, AccessPolicy]:
    """Ask a trainer. Raises NetworkError, IncompatibleError, and AuthorityError where it cannot prove what it says."""
    stranger = ProcessId(name, 0)  # whichever life of it answers
    session.links.set_addresses(stranger, addresses)
    answer = await session.requests.ask(stranger, "describe", timeout_s=_ASK_TIMEOUT_S, of_trainer=True)
    try:
        description = msgspec.json.decode(answer[0], type=Description)
    except (*UNDECODABLE, IndexError) as error:
        raise NetworkError(f"{name[-6:]} describes the run in a way that does not decode: {error}") from error
    if description.software != __version__:
        raise IncompatibleError(
            f"this run uses swarmflow {description.software}, not {__version__}: install that version"
        )
    if len(answer) != 3:
        raise NetworkError(f"{name[-6:]} does not hold the manifest of the run yet")
    manifest, policy = Manifest.decode(answer[1]), AccessPolicy.decode(answer[2], session.access.run_id)
    if (manifest.run_id, manifest.fingerprint) != (session.access.run_id, policy.manifest):
        raise AuthorityError(f"{name[-6:]} describes another run than the one that its owner has signed")
    return description, manifest, policy
