"""The trainer's machine: feeds its microbatches, and leads the run if it is the leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core.machines.feeding import candidate, disk, epochs, leaving
from swarmflow.core.machines.feeding.trainer_phase import TrainerPhase
from swarmflow.core.machines.feeding.trainer_state import ENDS, TrainerState, until_end
from swarmflow.core.pipeline import lateness
from swarmflow.core.protocol.actions import Action, Count, Forget, Log, Release, Saved, Send
from swarmflow.core.protocol.events import (
    CheckpointWritten,
    DiskChanged,
    DrainAsked,
    Event,
    Lost,
    MicrobatchFormed,
    Mishandled,
    Progressed,
    Received,
    Rival,
    SaveAsked,
    StagesPlanned,
    Tick,
    Validated,
)
from swarmflow.core.protocol.message_counter import MessageCounter
from swarmflow.core.protocol.messages import (
    TO_LEADER,
    Accepted,
    Assign,
    Backward,
    CreditAvailable,
    Denied,
    Deposed,
    Elect,
    ElectionReport,
    Evicted,
    Finished,
    Heartbeat,
    Join,
    KeepCopy,
    LeaderHeartbeat,
    MemberEntered,
    MemberFailed,
    Message,
    Negotiate,
    OpenStep,
    Postponed,
    Prepare,
    Recall,
    Refused,
    Released,
    RosterDelta,
    Routed,
    SlotReserved,
    StepResult,
    Suspect,
    Unrepairable,
    Welcome,
)
from swarmflow.core.protocol.messages.checks import MessageChecks, checks_of
from swarmflow.core.protocol.messages.votes import with_vote
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.negotiation import TRAINER
from swarmflow.core.routing.flow.negotiations import negotiation_of

_ABOUT_HOPS = (Accepted, SlotReserved, Denied, Routed, Backward)


@dataclass(slots=True)
class TrainerMachine(TrainerState):
    """Everything a trainer decides. Drive it with handle(event, now) and call it again at next_deadline()."""

    counter: MessageCounter = field(init=False)
    checks: MessageChecks = field(init=False)
    _next_heartbeat_s: float = field(init=False, default=0.0)
    _next_join_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.counter = MessageCounter(self.me.process)
        plan, router = self.plan, self.source.dispatcher.router
        self.checks = checks_of(plan)
        self.flows = negotiation_of(self.me.process, TRAINER, plan, router, ComputeTimer())
        if self.lead is not None:
            self.move(TrainerPhase.LEADING)

    def start(self, now: float) -> list[Action]:
        """Begin: lead, or ask to be let in."""
        return self.counter.sent(self.lead.start(now) if self.lead is not None else self._due(now))

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        # No message to a trainer has bodies that are of use to it.
        actions: list[Action] = [Release(event.bodies)] if isinstance(event, Received) and event.bodies else []
        if self.phase is TrainerPhase.ENDED:
            return actions
        actions += self._arrived(event, now) if isinstance(event, Received) else self._local(event, now)
        if any(type(action) in ENDS for action in actions):
            self.end()
        return self.counter.sent(until_end(actions + self._due(now)))

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        times = [self._next_heartbeat_s]
        if self.lead is not None:
            times = [self.lead.next_deadline()]
        elif self.phase is TrainerPhase.JOINING:
            times.append(self._next_join_s)
        elif self.candidacy is not None:
            times.append(self.candidacy.next_deadline())
        elif (stand_s := candidate.stand_s(self)) is not None:
            times.append(stand_s)
        if (paused := lateness.next_deadline(self.source.dispatcher)) is not None:
            times.append(paused)
        if self.flows is not None and (flows_s := self.flows.next_deadline()) is not None:
            times.append(flows_s)
        return min(times)

    def _due(self, now: float) -> list[Action]:
        actions = lateness.tick(self.source.dispatcher, now)
        if self.lead is not None:
            self.lead.forming = self.source.forming
        if self.flows is not None and self.phase is not TrainerPhase.ENDED:
            actions += self.flows.tick(now)
        if self.phase in (TrainerPhase.LEADING, TrainerPhase.ENDED):
            return actions
        if self.phase is TrainerPhase.JOINING and now >= self._next_join_s:
            self._next_join_s = now + self.plan.timeouts.rejoin_s
            actions.append(Send(self.leader, self.join))
        if now >= self._next_heartbeat_s:
            self._next_heartbeat_s = now + self.plan.timeouts.heartbeat_s
            self.lease.tick(now)
            if self.phase is not TrainerPhase.JOINING and not self.lease.lost:
                queued, done = self.source.forming, self.source.done
                beat = Heartbeat(queued, version=self.epoch.step, done=done, epoch=self.epoch)
                actions.append(Send(self.leader, beat))
        return actions + candidate.succeed(self, now)

    # --- what others say ----------------------------------------------------------------------------------------------

    def _renew_lease(self, sender: ProcessId, message: Message, now: float) -> list[Action]:
        """Renew the lease on a message of the leader; depose a former one that does not know of its successor."""
        if sender == self.leader and self.candidacy is None:
            self.lease.renew(now)
            return []
        term = getattr(message, "term", None)
        if not isinstance(message, LeaderHeartbeat) or term is None or term >= self.lease.term:
            return []
        if sender == self.leader and self.candidacy is not None and len(self.candidacy.reports) == 1:
            self.give_up_candidacy()  # nobody has promised anything yet, and the leader is back
            self.lease.follow(sender, term, now)
            return []
        return [Send(sender, Deposed(self.lease.term))]

    def _local(self, event: Event, now: float) -> list[Action]:
        match event:
            case MicrobatchFormed():
                return self.source.formed(event, now)
            case DrainAsked():
                return leaving.on_drain_asked(self)
            case Lost():
                return self._lost(event, now)
            case Mishandled():
                return self._mishandled(event, now)
            case CheckpointWritten():
                return disk.on_checkpoint_written(self, event, now)
            case DiskChanged():
                return disk.on_disk_changed(self, event, now)
            case SaveAsked() if self.lead is None:
                return [Saved(event.number, -1, "this trainer does not lead; ask the leader")]
            case SaveAsked() | Tick() | Validated() | StagesPlanned() | Rival() | Progressed():
                return self.lead.handle(event, now) if self.lead is not None else []
        raise TypeError(f"a trainer has no use for {type(event).__name__}")

    def _lost(self, event: Lost, now: float, refused: bool = False) -> list[Action]:
        """Note a broken connection. refused: this trainer has closed it, after a message that cannot be true."""
        if event.process != self.leader or self.phase is TrainerPhase.JOINING:
            self.counter.lost(event.process)  # else a leader that comes back has to notice what it has missed
        if self.lead is not None:
            return self.lead.handle(event, now)
        if self.candidacy is not None:
            self.candidacy.lost(event.process)
        if event.process == self.leader:
            self.lease.lose(now)
            return []
        if self.epoch_view is None or event.process not in self.peers:
            return []
        self.epoch_view.suspects[event.process] = None
        suspect = Send(self.leader, Suspect(event.process, event.reason, refused))
        return [suspect, *lateness.on_connection_lost(self.source.dispatcher, event.process, now)]

    def _arrived(self, event: Received, now: float) -> list[Action]:
        """Check a message, and take it. A link to or from the leader that has lost messages counts as broken."""
        itself, bodies = event.sender == self.me.process, len(event.bodies)
        wrong = None if itself else self.checks.wrong(event.message, bodies, event.role, event.signed)
        if wrong is not None:
            return self._refused(event, wrong, now)
        if isinstance(event.message, Join | ElectionReport):
            event = replace(event, message=with_vote(event.message, event.role))
        if self.counter.received(event) or (self.lead is None and event.sender != self.leader):
            return self._received(event, now)
        if self.lead is None:
            return self.leave(f"the link from the leader {self.leader} loses messages")
        lost = self.lead.handle(Lost(event.sender, "messages of it were lost on the way"), now)
        return lost + self._received(event, now)  # who was forgotten already is told so

    def _refused(self, event: Received, what: str, now: float) -> list[Action]:
        """Refuse a message that cannot be true."""
        if self.lead is not None:
            return self.lead.refused(event.sender, event.message, what, now)
        counted = Count("messages_refused", type(event.message).__name__)
        return [counted, *self._drop_sender(event.sender, f"sent what cannot be: {what}", now)]

    def _mishandled(self, event: Mishandled, now: float) -> list[Action]:
        if self.lead is not None:
            return self.lead.handle(event, now)
        if self.candidacy is not None:
            self.candidacy.refuse(event.process)
        reason = f"{event.process} {event.reason}"
        if self.epoch_view is not None:
            self.epoch_view.void = reason
        return [
            *self._drop_sender(event.process, event.reason, now),
            Send(self.leader, Unrepairable(self.epoch, reason)),
        ]

    def _drop_sender(self, sender: ProcessId, reason: str, now: float) -> list[Action]:
        """Close a sender's connections, and count it as lost; if it is the leader, join again."""
        if sender == self.leader and self.candidacy is None:
            return self.leave(f"the leader {sender} {reason}")
        log = Log("warning", f"{sender} is put out: it {reason}")
        return [log, Forget(sender), *self._lost(Lost(sender, reason), now, refused=True)]

    def _received(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        if self.lead is not None and type(message) in TO_LEADER:
            return self.lead.handle(event, now)
        if self.candidacy is not None and type(message) in TO_LEADER and sender in self.candidacy.reports:
            self.waiting.append(event)
            return []
        if self.epoch_view is not None and self.epoch_view.suspects:
            self.epoch_view.suspects.pop(sender, None)
        return self._renew_lease(sender, message, now) + self._taken(event, now)

    def _taken(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        match message:
            case Elect():
                return candidate.on_elect(self, sender, message, now)
            case ElectionReport() if self.candidacy is not None:
                return self.candidacy.report(sender, message)
            case ElectionReport() if self.lead is not None and message.term == self.lead.term:
                return self.lead.handle(event, now)  # too late: taken for dead, and told so
            case Deposed():
                return candidate.on_deposed(self, sender, message, now)
        if isinstance(message, _ABOUT_HOPS) and sender in self.peers:
            return self.source.message(sender, message, now)
        if isinstance(message, Recall) and sender in self.peers:
            if message.gradient or message.stage >= 0:
                return self._refused(event, "a Recall of what no trainer has", now)
            return self.source.on_recall(sender, message)
        if isinstance(message, CreditAvailable) and sender in self.peers:
            return self.source.dispatcher.credit(sender, now)
        if isinstance(message, Negotiate):
            return self.flows.received(sender, message, now) if self.flows is not None else []
        handler = _FROM_LEADER.get(type(message))
        if isinstance(message, MemberFailed) and self.lease.passed_over(
            self.me.process, sender, message, self.epoch_view
        ):
            return self.leave(f"taken for dead: {message.reason}")
        followed = self.candidacy is not None and len(self.candidacy.reports) > 1
        if handler is None or sender != self.leader or followed:
            return [Count("messages_ignored", type(message).__name__)]
        self.give_up_candidacy()  # nobody else has promised anything yet: it stands anew, from what it knows by now
        return handler(self, message, now)


def _nothing(trainer: TrainerState, message: LeaderHeartbeat, now: float) -> list[Action]:
    return []


_FROM_LEADER: dict[type, Callable[[TrainerState, Any, float], list[Action]]] = {
    OpenStep: epochs.on_open_step,
    RosterDelta: epochs.on_open_step,
    MemberEntered: epochs.on_member_entered,
    MemberFailed: epochs.on_member_failed,
    Assign: epochs.on_assign,
    KeepCopy: disk.on_keep_copy,
    Welcome: leaving.on_welcome,
    StepResult: epochs.on_step_result,
    Postponed: leaving.on_postponed,
    Refused: leaving.on_refused,
    Prepare: epochs.on_prepare,
    Evicted: leaving.on_evicted,
    Released: leaving.on_released,
    Finished: leaving.on_finished,
    LeaderHeartbeat: _nothing,
    Suspect: epochs.on_suspect,
}
