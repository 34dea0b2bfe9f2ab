"""Who handed which hop to whom: signed by the giver, kept by the holder, shown with what the holder says of the hop.

So nobody but its holder can report a hop as done, or void a step on its account, and nobody can hand on what was not
handed to it, or relay what its origin did not send. Signatures are made and checked outside of the core, over the
statements made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import TypeVar

from swarmflow.core.protocol.messages import (
    Adopt,
    Done,
    ElectionReport,
    Forward,
    HopHandover,
    Message,
    NotFinite,
    Overflow,
    RelayedTensor,
    RelayTensor,
)
from swarmflow.core.protocol.messages.checks import MessageChecks
from swarmflow.core.protocol.types import Attempt, Microbatch, ProcessId

Sign = Callable[[bytes], bytes]
"""Returns this process' signature of a statement."""

IsSignedBy = Callable[[ProcessId, bytes, bytes], bool]
"""(process, statement, signature): whether that process has made it."""

Digest = Callable[[], bytes]
"""Returns a digest of the bodies of the message at hand."""

Offer = Forward | Adopt
SIGNED: frozenset[type] = frozenset((Forward, Adopt, RelayTensor))  # by who sends them; most messages are none of these
CHECKED = SIGNED | {RelayedTensor, Done, Overflow, NotFinite, ElectionReport}  # by who receives them
R = TypeVar("R", bound=Done | Overflow | NotFinite)


def handovers_of(sender: ProcessId, offer: Offer) -> tuple[HopHandover, ...]:
    """Return how a hop came to the receiver of an offer, and all the way before, from a trainer on."""
    return (HopHandover(sender, offer.stage, offer.attempt, _digest(offer.handovers), offer.proof), *offer.handovers)


def signed(message: Message, to: ProcessId, sign: Sign, digest: Digest) -> Message:
    """Return a message of this process with its signature, where it hands a hop over or has a tensor relayed."""
    match message:
        case Forward() | Adopt():
            return replace(message, proof=sign(_offered(message, to)))
        case RelayTensor():
            inner = message.forward
            offer = None if inner is None else replace(inner, proof=sign(_offered(inner, message.to)))
            return replace(message, forward=offer, proof=sign(_relayed(message, message.to, digest())))
    return message


def checked(
    message: Message, sender: ProcessId, me: ProcessId, by: IsSignedBy, digest: Digest, checks: MessageChecks
) -> Message | None:
    """Return a message that arrived here; None where it lacks a signature that its sender answers for.

    One that cannot be true is returned as it is: it is refused for that, and a signature takes 0.1 ms. Whoever has got
    a hop answers for the handover to itself. So of those that are shown, the first one that is not signed and all
    before it are left out: the giver of the one after that has accepted it.
    """
    if checks.wrong(message) is not None:
        return message
    match message:
        case Forward() | Adopt():
            shown = not isinstance(message, Adopt) or _shows_own(message, sender, by)
            return (
                message if shown and _is_whole(message) and by(sender, _offered(message, me), message.proof) else None
            )
        case RelayTensor():
            offered = message.forward is None or _is_whole(message.forward)  # else its receiver would blame the relay
            return message if offered and by(sender, _relayed(message, message.to, digest()), message.proof) else None
        case RelayedTensor():
            inner, origin = message.forward, message.origin
            offered = inner is None or (_is_whole(inner) and by(origin, _offered(inner, me), inner.proof))
            return message if offered and by(origin, _relayed(message, me, digest()), message.proof) else None
        case Done() | Overflow() | NotFinite():
            return _report(message, sender, by)
        case ElectionReport() if message.done:
            done = tuple(each for each in (_report(each, sender, by) for each in message.done) if each is not None)
            return replace(message, done=done) if len(done) == len(message.done) else None
    return message


def microbatch_of(report: Done | Overflow | NotFinite) -> Microbatch:
    """Return which microbatch a report is about."""
    return Microbatch(report.epoch, report.index) if isinstance(report, NotFinite) else report.microbatch


def _report(report: R, holder: ProcessId, by: IsSignedBy) -> R | None:
    if isinstance(report, NotFinite) and report.index < 0:
        return report  # of a sum over several microbatches
    if not report.handovers:
        return None
    microbatch, shown = microbatch_of(report), report.handovers
    itself = not isinstance(report, Done) or (shown[0].stage, shown[0].attempt) == (report.stage, report.attempt)
    if not itself or not _fit(shown):
        return None
    for place, handover in enumerate(shown):
        if not by(handover.giver, _handed(microbatch, handover, holder), handover.proof):
            return replace(report, handovers=shown[:place]) if place else None
        holder = handover.giver
    return report


def _is_whole(offer: Offer) -> bool:
    """Return whether an offer shows each handover from a trainer on. Who takes it will have to show the same."""
    stages = [handover.stage for handover in offer.handovers]
    return stages == list(range(offer.stage - 1, -1, -1)) and _fit(offer.handovers)


def _fit(handovers: tuple[HopHandover, ...]) -> bool:
    """Return whether each handover names the one before it, and the first of all none."""
    return all(each.before == _digest(handovers[place : place + 1]) for place, each in enumerate(handovers, 1))


def _shows_own(adopt: Adopt, sender: ProcessId, by: IsSignedBy) -> bool:
    """Return whether who asks for a hop shows that the one before was handed to it; a trainer has none to show.

    An Adopt changes what is here already and brings no bytes, so that nobody would find out about it later.
    """
    return all(by(own.giver, _handed(adopt.microbatch, own, sender), own.proof) for own in adopt.handovers[:1])


def _offered(offer: Offer, to: ProcessId) -> bytes:
    return _statement(offer.microbatch, offer.stage, offer.attempt, to, _digest(offer.handovers))


def _handed(microbatch: Microbatch, handover: HopHandover, holder: ProcessId) -> bytes:
    return _statement(microbatch, handover.stage, handover.attempt, holder, handover.before)


def _statement(microbatch: Microbatch, stage: int, attempt: Attempt, holder: ProcessId, before: bytes) -> bytes:
    epoch = microbatch.epoch
    numbers = (epoch.generation, epoch.step, microbatch.index, stage, *attempt, holder.incarnation)
    return f"hop {numbers} {before.hex()} {holder.name}".encode()


def _relayed(message: RelayTensor | RelayedTensor, to: ProcessId, digest: bytes) -> bytes:
    return f"relay {message.forward or message.backward!r} {to!r} {digest.hex()}".encode()


def _digest(handovers: tuple[HopHandover, ...]) -> bytes:
    """Return what a giver signs of how it got a hop; empty: it is a trainer.

    All of the last handover is in it, and so all before: what a holder changes later, it answers for itself.
    """
    if not handovers:
        return b""
    last = handovers[0]
    return blake2b(f"{last!r} {last.proof.hex()}".encode(), digest_size=16).digest()
