"""A trainer without a leader: whom it follows next, when it stands itself, and how it takes over."""

from __future__ import annotations

from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.machines.feeding.trainer_phase import TrainerPhase
from swarmflow.core.machines.feeding.trainer_state import TrainerState
from swarmflow.core.machines.leader import Leader
from swarmflow.core.protocol.actions import Action, Connect, Count, Log, Send, TookOver
from swarmflow.core.protocol.events import BlamedError
from swarmflow.core.protocol.messages import Deposed, Elect, ElectionReport
from swarmflow.core.protocol.types import ProcessId


def stand_s(trainer: TrainerState) -> float | None:
    """Return when this trainer stands for leader, unless another one has; None: the leader is not lost."""
    epoch_view, lost_s = trainer.epoch_view, trainer.lease.lost_s
    if lost_s is None or epoch_view is None or trainer.draining:
        return None
    others = [other for other in epoch_view.trainers() if other != trainer.leader]
    if trainer.me.process not in others:
        return None
    return lost_s + trainer.plan.timeouts.election_turn_s * others.index(trainer.me.process)


def succeed(trainer: TrainerState, now: float) -> list[Action]:
    """Act without a leader: stand, ask again, take over, or give up."""
    candidacy = trainer.candidacy
    if candidacy is not None:
        if candidacy.elected(now):
            return _take_over(trainer, candidacy, now)
        lost_s = trainer.lease.lost_s
        if lost_s is not None and now - lost_s >= trainer.plan.timeouts.majority_s and candidacy.settled(now):
            if not candidacy.sustained():
                return trainer.leave("no leader, and most of the swarm is gone, with all peers of a stage")
            return _take_over(trainer, candidacy, now, elected=False)
        if now - candidacy.began_s > trainer.plan.timeouts.candidacy_s:
            return _stand(trainer, now)
        return candidacy.tick(now)
    if not trainer.lease.lost:
        return []
    due_s = stand_s(trainer)
    if due_s is None or trainer.lease.expired(now):
        return trainer.leave(f"the leader {trainer.leader} was lost, and there is no other one")
    return _stand(trainer, now) if now >= due_s else []


def _stand(trainer: TrainerState, now: float) -> list[Action]:
    assert trainer.epoch_view is not None, "who was in no epoch cannot lead"
    trainer.lease.term += 1
    term, steps = trainer.lease.term, trainer.settings.steps
    trainer.candidacy = Candidacy(trainer.me, term, trainer.epoch_view, now, steps)
    trainer.waiting.clear()  # who follows in this term reports all anew
    trainer.move(TrainerPhase.STANDING)
    log = Log("warning", f"the leader {trainer.leader} is lost: standing for term {trainer.lease.term}")
    return [log, *trainer.candidacy.begin(_report(trainer), now)]


def _take_over(trainer: TrainerState, candidacy: Candidacy, now: float, elected: bool = True) -> list[Action]:
    def raises(reports: Candidacy) -> bool:
        try:
            _lead_on(trainer, reports, now, elected)
        except Exception:  # it is whose that is asked; what it was is told with the first one
            return True
        return False

    try:
        lead, began = _lead_on(trainer, candidacy, now, elected)
    except Exception as error:
        culprit = candidacy.culprit(raises)
        if culprit is None:
            raise
        raise BlamedError(culprit, "ElectionReport") from error
    trainer.candidacy, trainer.lead = None, lead
    trainer.move(TrainerPhase.LEADING)
    trainer.lease.follow(trainer.me.process, candidacy.term, now)
    actions: list[Action] = [TookOver(candidacy.term), Count("successions"), *began]
    waiting, trainer.waiting = trainer.waiting, []
    actions += [action for event in waiting for action in lead.handle(event, now)]
    return actions + (lead.stop() if trainer.draining and not lead.stopping else [])  # it was asked to since it stands


def _lead_on(trainer: TrainerState, candidacy: Candidacy, now: float, elected: bool) -> tuple[Leader, list[Action]]:
    """Make a leader from the reports. Changes nothing of the trainer."""
    version = candidacy.latest().epoch.step
    settings = trainer.settings
    takeover = takeover_of(candidacy, trainer.plan, settings.learning_rate, settings.clip, now)
    disk = trainer.on_disk, trainer.roots
    lead = Leader(trainer.me, trainer.plan, trainer.settings, candidacy.term, version, *disk)
    lead.safe.copies.record(trainer.me, trainer.parts)
    return lead, lead.take_over(takeover, now, elected)


def _report(trainer: TrainerState, known: str = "") -> ElectionReport:
    assert trainer.epoch_view is not None, "who was in no epoch has nothing to report"
    source = trainer.source
    return trainer.epoch_view.report(
        trainer.lease.term,
        trainer.join,
        trainer.me,
        ready=True,
        version=trainer.epoch.step,
        draining=trainer.draining,
        indices=source.indices(trainer.epoch),
        ahead=source.ahead is not None,
        ahead_indices=source.indices(source.ahead),
        reassignment=source.reassignment,
        known=known,
    )


def on_elect(trainer: TrainerState, sender: ProcessId, message: Elect, now: float) -> list[Action]:
    """Follow another trainer that stands for leader, unless the leader has sent a message lately."""
    epoch_view, lease = trainer.epoch_view, trainer.lease
    if epoch_view is None or sender not in epoch_view.trainers() or trainer.lead is not None:
        return [Count("messages_ignored", "Elect")]
    again = sender == trainer.leader and message.term >= lease.term
    if not again and message.term <= lease.term:
        return [Send(sender, Deposed(lease.term))] if message.term < lease.term else []
    if not again and not lease.doubted(now):
        return []
    lease.follow(sender, message.term, now)
    trainer.give_up_candidacy()
    answered: list[Action] = [Connect((message.me,)), Send(sender, _report(trainer, message.roster))]
    return answered if again else [*answered, Log("info", f"trainer {sender} leads from here on")]


def on_deposed(trainer: TrainerState, sender: ProcessId, message: Deposed, now: float) -> list[Action]:
    """Give up leading or standing: members follow another trainer, in a later term."""
    members = [*trainer.epoch_view.opened.roster.members] if trainer.epoch_view is not None else []
    if trainer.lead is not None:
        members += [entry.member for entry in trainer.lead.membership.known.values()]
    if sender not in {member.process for member in members}:
        return [Count("messages_ignored", "Deposed")]
    trainer.claims.add(sender, message.term)
    trainers = {member.process.name for member in members if member.stage < 0}
    term = trainer.claims.believed(trainers, {member.process.name for member in members if member.votes})
    if trainer.lead is not None and term > trainer.lead.term:
        return trainer.leave("another trainer leads by now")
    if trainer.candidacy is not None and term > trainer.candidacy.term:
        trainer.lease.term = term  # the next try is in a term after that one
        trainer.give_up_candidacy()
    return []
