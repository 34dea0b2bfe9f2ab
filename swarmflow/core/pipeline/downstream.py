"""What a peer does with the answers of the stage after: its microbatches are held there, denied, passed on."""

from __future__ import annotations

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import (
    Accepted,
    Backward,
    CreditAvailable,
    Denied,
    DownstreamCost,
    Forward,
    Probed,
    Recall,
    Routed,
    SlotReserved,
)
from swarmflow.core.protocol.types import ProcessId, Ref

Bodies = tuple[Ref, ...]


def on_accepted(hops: HopTable, sender: ProcessId, message: Accepted, bodies: Bodies, now: float) -> list[Action]:
    """Record that the successor holds a microbatch."""
    hops.early.answered(sender, message)
    actions = lateness.accepted(hops.dispatcher, sender, message, now)
    return actions + hops.report_successor(hops.find(message.microbatch))


def on_denied(hops: HopTable, sender: ProcessId, message: Denied, bodies: Bodies, now: float) -> list[Action]:
    """Dispatch a microbatch to another peer after a denial."""
    return hops.report_successors(offers.denied(hops.dispatcher, sender, message, now))


def on_slot_reserved(
    hops: HopTable, sender: ProcessId, message: SlotReserved, bodies: Bodies, now: float
) -> list[Action]:
    """Send the bytes for a reserved slot, and ask for more slots where microbatches wait."""
    return hops.report_successors(offers.reserved(hops.dispatcher, sender, message, now))


def on_routed(hops: HopTable, sender: ProcessId, message: Routed, bodies: Bodies, now: float) -> list[Action]:
    """Record that the successor has passed a microbatch on."""
    hops.early.answered(sender, message)
    hops.dispatcher.routed(sender, message.microbatch, message.attempt, message.successor, now)
    return []


def on_recall(hops: HopTable, sender: ProcessId, message: Recall, bodies: Bodies, now: float) -> list[Action]:
    """Give a neighbour a tensor of a hop again, or say that it is not here."""
    early = message.stage == hops.stage and message.microbatch not in hops.hops and hops.early.recall(sender, message)
    return [] if early else hops.restorer.on_recall(sender, message)


def on_credit_available(
    hops: HopTable, sender: ProcessId, message: CreditAvailable, bodies: Bodies, now: float
) -> list[Action]:
    """Use a credit of a peer of the next stage."""
    return hops.report_successors(hops.dispatcher.credit(sender, now))


def on_probed(hops: HopTable, sender: ProcessId, message: Probed, bodies: Bodies, now: float) -> list[Action]:
    """Record the answer to a probe."""
    hops.dispatcher.probed(sender, message, now)
    return hops.announce_cost()


def on_downstream_cost(
    hops: HopTable, sender: ProcessId, message: DownstreamCost, bodies: Bodies, now: float
) -> list[Action]:
    """Record a peer's downstream cost."""
    hops.dispatcher.router.record_downstream(sender, message.downstream_s)
    return hops.announce_cost()


def again(hops: HopTable, to: ProcessId, message: Forward | Backward, now: float) -> list[Action]:
    """Re-send a tensor that was lost with the peer that relayed it."""
    if to in hops.dead:
        return []
    if isinstance(message, Forward):
        return lateness.send_again(hops.dispatcher, message.microbatch, to, now)
    hop = hops.find(message.microbatch)
    due = hop is not None and hop.given_back and hop.upstream == to
    return hops.restorer.give_back(hop) if hop is not None and due else []
