"""From one step to the next in a sender's and a peer's tables: a step is begun ahead, opened, and dropped when over."""

from __future__ import annotations

from collections.abc import Mapping

from swarmflow.core.pipeline import lateness
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, Discard
from swarmflow.core.protocol.types import Epoch, ProcessId


def begin_ahead(hops: HopTable) -> list[Action]:
    """Admit microbatches of the next step too, while this one is reduced."""
    hops.ahead = hops.epoch.following
    hops.admission.steps.add(hops.ahead)
    return hops.grant_credits()


def go_on(
    hops: HopTable,
    next_stage: tuple[ProcessId, ...],
    before: tuple[ProcessId, ...],
    shares: Mapping[ProcessId, int],
    mates: tuple[ProcessId, ...],
    now: float,
) -> list[Action]:
    """Begin the epoch that was begun ahead: what is here of it stays. Members that are not named any more are gone.

    The arguments are those of `HopTable.open`.
    """
    assert hops.ahead is not None, "no step was begun ahead"
    former, hops.epoch, hops.ahead, hops.ballot = hops.epoch, hops.ahead, None, 0
    actions = finish(hops, former)
    hops.admission.steps = {hops.epoch}
    hops.admission.mates, hops.dispatcher.senders = set(mates), 1 + len(mates)
    # Nobody announces a death between the decision of a step and the opening of the next one.
    near = ((tuple(hops.restorer.before), before), (hops.dispatcher.next_stage.availability.alive, next_stage))
    for process in [process for were, are in near for process in were if process not in are]:
        actions += hops.gone(process, now)
    hops.dead.intersection_update([hop.upstream for hop in hops.hops.values()])
    hops.restorer.before = dict.fromkeys(before)
    actions += dispatch_on(hops.dispatcher, hops.epoch, next_stage, shares, mates, now)
    return hops.report_successors(actions) + hops.restorer.resend()


def dispatch_on(
    dispatcher: Dispatcher,
    epoch: Epoch,
    peers: tuple[ProcessId, ...],
    shares: Mapping[ProcessId, int],
    mates: tuple[ProcessId, ...],
    now: float,
) -> list[Action]:
    """Begin an epoch whose microbatches are in flight already, with these peers of the stage (`Dispatcher.open`)."""
    left = [process for process in dispatcher.next_stage.availability.alive if process not in peers]
    actions = [action for process in left for action in lateness.gone(dispatcher, process, now)]
    for process in peers:
        dispatcher.next_stage.enter(process, shares.get(process, 0))
    dispatcher.router.go_on()
    dispatcher.measure_links(epoch, peers, mates)
    return actions + dispatcher.retry(now)


def finish(hops: HopTable, epoch: Epoch) -> list[Action]:
    """Drop the hops of a step that is committed, and of earlier ones, and what was kept for their repairs."""
    for kept in (hops.dropped, hops.floor):
        for microbatch in [microbatch for microbatch in kept if microbatch.epoch <= epoch]:
            del kept[microbatch]
    over = [hop for hop in hops.hops.values() if hop.microbatch.epoch <= epoch]
    actions: list[Action] = [Discard(hop.microbatch) for hop in over if hop.wanted is not None]
    for hop in over:
        hops.delete(hop)
    hops.admission.finish(epoch)
    hops.restorer.finish(epoch)
    return [*actions, *hops.early.finish(epoch), *hops.journal.finish(over), *finish_flights(hops.dispatcher, epoch)]


def finish_flights(dispatcher: Dispatcher, epoch: Epoch) -> list[Action]:
    """Release what was sent on in a step that is committed, and in earlier ones."""
    over = [microbatch for microbatch in dispatcher.flights.entries if microbatch.epoch <= epoch]
    return [action for microbatch in over for action in dispatcher.forget(microbatch)]
