"""How a peer's sum becomes the one that a ballot lists: what is listed elsewhere too is subtracted here."""

from __future__ import annotations

from collections.abc import Iterable

from swarmflow.core.pipeline.hop import Hop, HopState
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Denied
from swarmflow.core.protocol.types import Attempt, Microbatch


def reconcile(hops: HopTable, ballot: int, entries: tuple[tuple[int, Attempt], ...]) -> tuple[list[Action], str]:
    """Hold exactly the entries of a ballot of the epoch: begin to subtract everything else that was accumulated of it.

    Return the actions, and a reason if one of the entries is not here.
    """
    here = dict(hops.entries(hops.epoch))
    if any(here.get(index) != attempt for index, attempt in entries):
        return [], f"{len(here)} accumulated, {len(entries)} listed"
    hops.ballot = ballot
    hops.admission.close(hops.epoch)
    listed = {Microbatch(hops.epoch, index) for index, _ in entries}
    own = sorted(microbatch for microbatch in hops.hops if microbatch.epoch == hops.epoch)
    orphans = [hops.hops[each] for each in own if each not in listed and not hops.hops[each].orphan]
    return [action for hop in orphans for action in _disown(hops, hop)], ""


def disclaim(hops: HopTable, lost: Iterable[Microbatch]) -> list[Action]:
    """Tell the senders of orphans which of them are lost: of these no process has a gradient in its sum.

    After a death amid a ballot a repair may arrive before the Prepare of that ballot, which cannot list it. Its sender
    may have its gradient by now, and the leader its Done, which counts no more.
    """
    actions: list[Action] = []
    for microbatch in lost:
        hop, arrival = hops.find(microbatch), hops.dropped.get(microbatch)
        if hop is not None:
            arrival = (hop.upstream, hop.attempt) if hop.orphan else None
        if arrival is not None:
            sender, attempt = arrival
            actions.append(Send(sender, Denied(microbatch, hops.stage, attempt, "orphan")))
    return actions


def reopen(hops: HopTable) -> list[Action]:
    """Admit microbatches again after a ballot was revoked."""
    hops.admission.steps.add(hops.epoch)
    return hops.grant_credits()


def _disown(hops: HopTable, hop: Hop) -> list[Action]:
    """Drop an orphan, or subtract its gradient, now or once it is accumulated."""
    if hop.state not in (HopState.DONE, HopState.ACCUMULATING):
        # It may belong to a repair that arrived before the MemberFailed; its sender must learn that it is not here.
        actions = hops.drop(hop)
        reason = hops.admission.deny(hop.upstream, insist=True)
        return [*actions, Send(hop.upstream, Denied(hop.microbatch, hops.stage, hop.attempt, reason))]
    finished, hop.done = hop.state is HopState.DONE, None
    hop.move(HopState.SUBTRACTING if finished else HopState.DISOWNED)
    hops.admission.note(hop)
    return hops.restorer.undo(hop) if finished else []
