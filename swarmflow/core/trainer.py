"""The trainer's machine: feeds its microbatches, and leads the run if it is the leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core import lateness
from swarmflow.core.actions import (
    Action,
    Connect,
    Count,
    Exit,
    Forget,
    Log,
    Record,
    Rejoin,
    Release,
    Saved,
    Send,
    WriteCheckpoint,
)
from swarmflow.core.epoch_view import begun
from swarmflow.core.events import (
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
    Tick,
    Validated,
)
from swarmflow.core.feeding import candidate
from swarmflow.core.feeding.trainer_state import TrainerState, until_end
from swarmflow.core.flow.live import TRAINER, negotiation_of
from swarmflow.core.message_counter import MessageCounter
from swarmflow.core.messages import (
    TO_LEADER,
    Accepted,
    Assign,
    Backward,
    CopiesHeld,
    CreditAvailable,
    Denied,
    Deposed,
    Drain,
    Elect,
    ElectionReport,
    Evicted,
    Finished,
    Heartbeat,
    KeepCopy,
    LeaderHeartbeat,
    MemberEntered,
    MemberFailed,
    Message,
    Negotiate,
    OpenStep,
    Postponed,
    Prepare,
    Prepared,
    Recall,
    Refused,
    Released,
    RosterDelta,
    RosterPart,
    Routed,
    SlotReserved,
    StepResult,
    Suspect,
    Unrepairable,
    Welcome,
)
from swarmflow.core.messages.checks import MessageChecks, checks_of
from swarmflow.core.roster_parts import RosterAssembly
from swarmflow.core.types import Holding, ProcessId, Roster, Snapshot

_ABOUT_HOPS = (Accepted, SlotReserved, Denied, Routed, Backward)


@dataclass(slots=True)
class TrainerMachine(TrainerState):
    """Everything a trainer decides. Drive it with handle(event, now) and call it again at next_deadline()."""

    counter: MessageCounter = field(init=False)
    checks: MessageChecks = field(init=False)
    assembly: RosterAssembly = field(default_factory=RosterAssembly)
    _peers: set[ProcessId] = field(default_factory=set)
    _next_heartbeat_s: float = 0.0
    _next_join_s: float = 0.0

    def __post_init__(self) -> None:
        self.counter = MessageCounter(self.me.process)
        plan, router = self.plan, self.source.dispatcher.router
        self.checks = checks_of(plan)
        self.flows = negotiation_of(self.me.process, TRAINER, plan.stages, plan.microbatches, router)

    def start(self, now: float) -> list[Action]:
        """Begin: lead, or ask to be let in."""
        return self.counter.sent(self.lead.start(now) if self.lead is not None else self._due(now))

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        if self.ended:
            return [Release(event.bodies)] if isinstance(event, Received) and event.bodies else []
        actions = self._local(event, now) if not isinstance(event, Received) else self._arrived(event, now)
        self.ended |= self.lead is not None and self.lead.left
        return self.counter.sent(until_end(actions + self._due(now)))

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        times = [self._next_heartbeat_s]
        if self.lead is not None:
            times = [self.lead.next_deadline()]
        elif not self.joined:
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
        if self.flows is not None and not self.ended:
            actions += self.flows.tick(now)
        if self.lead is not None or self.ended:
            return actions
        if not self.joined and now >= self._next_join_s:
            self._next_join_s = now + self.plan.timeouts.rejoin_s
            actions.append(Send(self.leader, self.join))
        if now >= self._next_heartbeat_s:
            self._next_heartbeat_s = now + self.plan.timeouts.heartbeat_s
            self.lease.tick(now)
            if self.joined and self.lease.lost_s is None:
                actions.append(Send(self.leader, Heartbeat(version=self.epoch.step, done=self.source.done)))
        return actions + candidate.succeed(self, now)

    # --- what others say ----------------------------------------------------------------------------------------------

    def _renew_lease(self, sender: ProcessId, message: Message, now: float) -> list[Action]:
        """The leader spoke; or one that is not followed any more, although it may know nothing of it."""
        if sender == self.leader and self.candidacy is None:
            self.lease.renew(now)
            return []
        term = getattr(message, "term", None)
        if not isinstance(message, LeaderHeartbeat) or term is None or term >= self.lease.term:
            return []
        if sender == self.leader and self.candidacy is not None and len(self.candidacy.reports) == 1:
            self.candidacy = None  # nobody has promised anything yet: the leader is back
            self.lease.follow(sender, term, now)
            return []
        return [Send(sender, Deposed(self.lease.term))]

    def _local(self, event: Event, now: float) -> list[Action]:
        match event:
            case MicrobatchFormed():
                return self.source.formed(event, now)
            case DrainAsked():
                return self._drain()
            case Lost():
                return self._lost(event, now)
            case Mishandled():
                return self._mishandled(event, now)
            case CheckpointWritten():
                return self._written(event, now)
            case DiskChanged():
                return self._disk_changed(event, now)
            case Rival() if self.lead is not None:
                actions = self.lead.handle(event, now)
                self.ended = any(isinstance(action, Rejoin) for action in actions)
                return actions
            case SaveAsked() if self.lead is None:
                return [Saved(event.number, -1, "this trainer does not lead; ask the leader")]
            case SaveAsked() | Tick() | Validated() | Rival() | Progressed():
                return self.lead.handle(event, now) if self.lead is not None else []
        raise TypeError(f"a trainer has no use for {type(event).__name__}")

    def _written(self, event: CheckpointWritten, now: float) -> list[Action]:
        if event.ok and event.version >= self.on_disk:
            self.on_disk, self.digests, self.parts = event.version, event.digests, ()
        if self.lead is not None:
            return self.lead.handle(event, now)
        log = Log("warning", f"version {event.version} could not be copied here: {event.reason}")
        return [*([] if event.ok else [log]), *self._tell_copies("" if event.ok else event.reason)]

    def _disk_changed(self, event: DiskChanged, now: float) -> list[Action]:
        self.on_disk, self.digests, self.parts = event.version, event.digests, event.parts
        if self.lead is not None:
            return self.lead.handle(event, now)
        return [Log("warning", event.reason), *self._tell_copies()]

    def _tell_copies(self, failed: str = "") -> list[Action]:
        self.join = replace(self.join, copies=self._copies())
        return [Send(self.leader, CopiesHeld(self._copies(), failed))]

    def _copies(self) -> tuple[Holding, ...]:
        snapshot = Snapshot(self.on_disk, self.digests)
        return (*((Holding(snapshot, tuple(range(self.plan.stages))),) if self.digests else ()), *self.parts)

    def _lost(self, event: Lost, now: float) -> list[Action]:
        if event.process != self.leader or not self.joined:
            self.counter.lost(event.process)  # else a leader that comes back has to notice what it has missed
        if self.lead is not None:
            return self.lead.handle(event, now)
        if self.candidacy is not None:
            self.candidacy.lost(event.process)
        if event.process == self.leader:
            self.lease.lose(now)
            return []
        if self.epoch_view is None or event.process not in self._peers:
            return []
        self.epoch_view.suspects[event.process] = None
        suspect = Send(self.leader, Suspect(event.process, event.reason))
        return [suspect, *lateness.lost(self.source.dispatcher, event.process, now)]

    def _drain(self) -> list[Action]:
        if self.draining or (self.lead is None and not self.joined):
            return self._exit("left at once")
        self.draining = True
        if self.lead is not None:
            actions = self.lead.stop()
            self.ended = any(isinstance(action, Exit) for action in actions)
            return actions
        return [Send(self.leader, Drain()), Log("info", "leaving after this step")]

    def _arrived(self, event: Received, now: float) -> list[Action]:
        """A link to or from the leader that has lost something is as bad as a broken one."""
        itself, bodies = event.sender == self.me.process, len(event.bodies)
        wrong = None if itself else self.checks.wrong(event.message, bodies)
        if wrong is not None:
            return self._refused(event, wrong, now)
        if self.counter.received(event) or (self.lead is None and event.sender != self.leader):
            return self._received(event, now)
        if self.lead is None:
            return self.leave(f"the link from the leader {self.leader} loses messages")
        lost = self.lead.handle(Lost(event.sender, "messages of it were lost on the way"), now)
        return lost + self._received(event, now)  # who was forgotten already is told so

    def _refused(self, event: Received, what: str, now: float) -> list[Action]:
        """A message that cannot be true is not looked at any further."""
        drop: list[Action] = [Release(event.bodies)] if event.bodies else []
        if self.lead is not None:
            return drop + self.lead.refused(event.sender, event.message, what, now)
        counted = Count("messages_refused", type(event.message).__name__)
        return [*drop, counted, *self._put_out(event.sender, f"sent what cannot be: {what}", now)]

    def _mishandled(self, event: Mishandled, now: float) -> list[Action]:
        if self.lead is not None:
            return self.lead.handle(event, now)
        if self.candidacy is not None:
            self.candidacy.refuse(event.process)
        void = Send(self.leader, Unrepairable(self.epoch, f"{event.process} {event.reason}"))
        return [*self._put_out(event.process, event.reason, now), *([] if self.ended else [void])]

    def _put_out(self, sender: ProcessId, reason: str, now: float) -> list[Action]:
        if sender == self.leader and self.candidacy is None:
            return self.leave(f"the leader {sender} {reason}")
        log = Log("warning", f"{sender} is put out: it {reason}")
        return [log, Forget(sender), *self._lost(Lost(sender, reason), now)]

    def _received(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        if self.lead is not None and type(message) in TO_LEADER:
            return self.lead.handle(event, now)
        if self.candidacy is not None and type(message) in TO_LEADER and sender in self.candidacy.reports:
            self.waiting.append(event)
            return []
        drop: list[Action] = [Release(event.bodies)] if event.bodies else []
        if self.epoch_view is not None and self.epoch_view.suspects:
            self.epoch_view.suspects.pop(sender, None)
        drop += self._renew_lease(sender, message, now)
        match message:
            case Elect():
                return [*drop, *candidate.asked_to_follow(self, sender, message, now)]
            case RosterPart() if self.candidacy is not None and sender != self.leader:
                return [*drop, *self.candidacy.add_part(sender, message)]
            case ElectionReport() if self.candidacy is not None:
                return [*drop, *self.candidacy.report(sender, message)]
            case ElectionReport() if self.lead is not None and message.term == self.lead.term:
                return [*drop, *self.lead.handle(event, now)]  # too late: taken for dead, and told so
            case Deposed():
                return [*drop, *candidate.deposed(self, sender, message, now)]
        if isinstance(message, _ABOUT_HOPS) and sender in self._peers:
            return [*drop, *self.source.message(sender, message, now)]
        if isinstance(message, Recall) and sender in self._peers:
            return [*drop, *self.source.recall(sender, message)]
        if isinstance(message, CreditAvailable) and sender in self._peers:
            return [*drop, *self.source.dispatcher.credit(sender, now)]
        if isinstance(message, Negotiate):
            return [*drop, *(self.flows.received(sender, message, now) if self.flows is not None else [])]
        handler = _FROM_LEADER.get(type(message))
        if isinstance(message, MemberFailed) and self.lease.passed_over(
            self.me.process, sender, message, self.epoch_view
        ):
            return [*drop, *self.leave(f"taken for dead: {message.reason}")]
        followed = self.candidacy is not None and len(self.candidacy.reports) > 1
        if handler is None or sender != self.leader or followed:
            return [*drop, Count("messages_ignored", type(message).__name__)]
        self.candidacy = None  # nobody else has promised anything yet: it stands anew, from what it has heard now
        return [*drop, *handler(self, message, now)]

    def _open(self, message: OpenStep | RosterDelta, now: float) -> list[Action]:
        if message.epoch <= self.epoch:
            return []
        epoch_view = begun(message, self.assembly, self.epoch_view)
        if epoch_view is None:
            return self.leave(f"this process was not told who takes part in step {message.epoch.step}")
        self.epoch, self.joined, self.epoch_view = message.epoch, True, epoch_view
        self.lease.term = max(self.lease.term, message.term)
        roster, me = epoch_view.opened.roster, self.me.process
        self._peers = set(roster.serving)
        others = tuple(member for member in roster.all_members if member.process != me)
        flows = self.flows.open(roster, now) if self.flows is not None else []
        return [Connect(others), *self.source.open(epoch_view.opened), *flows]

    def _roster_part(self, message: RosterPart, now: float) -> list[Action]:
        self.assembly.add(message)
        return []

    def _entered(self, message: MemberEntered, now: float) -> list[Action]:
        member = message.member
        if message.epoch != self.epoch or self.epoch_view is None:
            return []
        self.epoch_view.enter(member)
        self._peers.add(member.process)
        flows = self.flows.open(self.epoch_view.alive(), now) if self.flows is not None else []
        return [Connect((member,)), *self.source.enter(member, now), *flows]

    def _gone(self, message: MemberFailed, now: float) -> list[Action]:
        if message.epoch != self.epoch:
            return []
        if message.process == self.me.process:
            return self.leave(f"taken for dead: {message.reason}")
        if self.epoch_view is not None:
            self.epoch_view.died(message.process)
        actions: list[Action] = [] if self.lead is not None else [Forget(message.process)]
        if self.flows is not None:
            actions += self.flows.gone(message.process, now)
        if message.process not in self._peers:
            actions += self.source.trainer_gone()
        self._peers.discard(message.process)
        first = {index for stage, index in message.lost if stage == 0}
        return actions + self.source.dispatcher.gone(message.process, now, first)

    def _accused(self, message: Suspect, now: float) -> list[Action]:
        return lateness.lost(self.source.dispatcher, message.process, now)

    def _assign(self, message: Assign, now: float) -> list[Action]:
        return self.source.assign(message) if message.epoch == self.epoch else []

    def _prepare(self, message: Prepare, now: float) -> list[Action]:
        if message.epoch != self.epoch or self.epoch_view is None:
            return []
        self.epoch_view.prepare(message)
        return [Send(self.leader, Prepared(message.epoch, message.ballot, ()))]

    def _keep(self, message: KeepCopy, now: float) -> list[Action]:
        here, wanted = Snapshot(self.on_disk, self.digests), message.snapshot
        if self.lead is not None or wanted.version < here.version or wanted == here:
            return []
        holders = ((message.holder,),) * self.plan.stages
        return [Connect((message.holder,)), WriteCheckpoint(wanted.version, Roster(holders), digests=wanted.digests)]

    def _welcome(self, message: Welcome, now: float) -> list[Action]:
        self.joined, self.lease.term = True, message.term
        return [Log("info", f"joined; {self.leader} leads")]

    def _result(self, message: StepResult, now: float) -> list[Action]:
        if message.epoch <= self.recorded:
            return []  # a leader that took over tells again what the former one may have told
        self.recorded = message.epoch
        journal = self.source.dispatcher.clear() if message.epoch >= self.epoch else []
        return [*journal, Record(message)]

    def _postponed(self, message: Postponed, now: float) -> list[Action]:
        if self.joined or message.reason == self.postponed:
            return []
        self.postponed = message.reason
        return [Log("warning", f"not let in for {message.wait_s:.0f} s yet: {message.reason}")]

    def _turned_away(self, message: Refused, now: float) -> list[Action]:
        self.ended = True
        return [Exit(message.reason, ok=False)]

    def _evicted(self, message: Evicted, now: float) -> list[Action]:
        return self.leave(message.reason)

    def _released(self, message: Released, now: float) -> list[Action]:
        return self._exit("left after the step")

    def _finished(self, message: Finished, now: float) -> list[Action]:
        if message.reason:
            self.ended = True
            return [Exit(f"the run stopped at version {message.version}: {message.reason}", ok=False)]
        return self._exit(f"the run is finished at version {message.version}")

    def _beat(self, message: LeaderHeartbeat, now: float) -> list[Action]:
        return []

    def _exit(self, reason: str) -> list[Action]:
        self.ended = True
        return [*self.last_promise(), Exit(reason)]


_FROM_LEADER: dict[type, Callable[[TrainerMachine, Any, float], list[Action]]] = {
    RosterPart: TrainerMachine._roster_part,
    OpenStep: TrainerMachine._open,
    RosterDelta: TrainerMachine._open,
    MemberEntered: TrainerMachine._entered,
    MemberFailed: TrainerMachine._gone,
    Assign: TrainerMachine._assign,
    KeepCopy: TrainerMachine._keep,
    Welcome: TrainerMachine._welcome,
    StepResult: TrainerMachine._result,
    Postponed: TrainerMachine._postponed,
    Refused: TrainerMachine._turned_away,
    Prepare: TrainerMachine._prepare,
    Evicted: TrainerMachine._evicted,
    Released: TrainerMachine._released,
    Finished: TrainerMachine._finished,
    LeaderHeartbeat: TrainerMachine._beat,
    Suspect: TrainerMachine._accused,
}
