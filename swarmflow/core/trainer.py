"""The trainer's machine: feeds its microbatches, and leads the run if it is the leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarmflow.core.actions import Action, Connect, Count, Exit, Forget, Log, Record, Rejoin, Release, Send
from swarmflow.core.events import (
    CheckpointWritten,
    DrainAsked,
    Event,
    Lost,
    MicrobatchFormed,
    Received,
    Tick,
    Validated,
)
from swarmflow.core.leader import Leader
from swarmflow.core.messages import (
    Accepted,
    Backward,
    Beat,
    Committed,
    Denied,
    Done,
    Drain,
    Evicted,
    Finished,
    Gone,
    Heartbeat,
    Join,
    LoadFailed,
    Open,
    Prepared,
    Ready,
    Refused,
    Released,
    Room,
    Routed,
    StepResult,
    Suspect,
    Unprepared,
    Welcome,
)  # fmt: skip
from swarmflow.core.source import Source
from swarmflow.core.types import BEFORE_ALL, Epoch, Member, ProcessId

_TO_LEADER = (Join, Ready, LoadFailed, Drain, Heartbeat, Suspect, Done, Prepared, Unprepared, Committed)
_ABOUT_HOPS = (Accepted, Denied, Routed, Backward)


@dataclass(slots=True)
class TrainerMachine:
    """Everything a trainer decides. leader: the leading trainer's id; the own one when `lead` is set."""

    me: Member
    leader: ProcessId
    source: Source
    join: Join
    lead: Leader | None = None
    joined: bool = False
    term: int = 0
    epoch: Epoch = BEFORE_ALL
    heartbeat_s: float = 1.0
    rejoin_s: float = 5.0
    leader_silence_s: float = 20.0
    ended: bool = False
    draining: bool = False
    _peers: set[ProcessId] = field(default_factory=set)
    _next_heartbeat_s: float = 0.0
    _next_join_s: float = 0.0
    _leader_heard_s: float | None = None

    def start(self, now: float) -> list[Action]:
        """Begin: lead, or ask to be let in."""
        self._leader_heard_s = now
        return self.lead.start(now) if self.lead is not None else self._due(now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        if self.ended:
            return [Release(event.bodies)] if isinstance(event, Received) and event.bodies else []
        actions = self._local(event, now) if not isinstance(event, Received) else self._received(event, now)
        return actions + self._due(now)

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        times = [self._next_heartbeat_s]
        if self.lead is not None:
            times = [self.lead.next_deadline()]
        elif not self.joined:
            times.append(self._next_join_s)
        if (paused := self.source.outbox.next_deadline()) is not None:
            times.append(paused)
        return min(times)

    def _due(self, now: float) -> list[Action]:
        actions = self.source.outbox.tick(now)
        if self.lead is not None:
            return actions
        if not self.joined and now >= self._next_join_s:
            self._next_join_s = now + self.rejoin_s
            actions.append(Send(self.leader, self.join))
        if now >= self._next_heartbeat_s:
            self._next_heartbeat_s = now + self.heartbeat_s
            if self.joined:
                actions.append(Send(self.leader, Heartbeat(version=self.epoch.step)))
        heard_s = self._leader_heard_s
        if heard_s is not None and now - heard_s > self.leader_silence_s:
            return [*actions, *self._leave(f"the leader {self.leader} has been silent for too long")]
        return actions

    def _local(self, event: Event, now: float) -> list[Action]:
        match event:
            case MicrobatchFormed():
                return self.source.formed(event, now)
            case DrainAsked():
                return self._drain()
            case Lost():
                return self._lost(event, now)
            case Tick() | CheckpointWritten() | Validated():
                return self.lead.handle(event, now) if self.lead is not None else []
        raise TypeError(f"a trainer has no use for {type(event).__name__}")

    def _lost(self, event: Lost, now: float) -> list[Action]:
        if self.lead is not None:
            return self.lead.handle(event, now)
        if event.process == self.leader:
            return self._leave(f"the leader {self.leader} was lost: {event.reason}")
        return [Send(self.leader, Suspect(event.process, event.reason))] if event.process in self._peers else []

    def _drain(self) -> list[Action]:
        if self.draining or (self.lead is None and not self.joined):
            return self._exit("left at once")
        self.draining = True
        if self.lead is not None:
            actions = self.lead.stop()
            self.ended = any(isinstance(action, Exit) for action in actions)
            return actions
        return [Send(self.leader, Drain()), Log("info", "leaving after this step")]

    def _received(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        if sender == self.leader:
            self._leader_heard_s = now
        if self.lead is not None and isinstance(message, _TO_LEADER):
            return self.lead.handle(event, now)
        drop: list[Action] = [Release(event.bodies)] if event.bodies else []
        if isinstance(message, _ABOUT_HOPS) and sender in self._peers:
            return [*drop, *self.source.message(sender, message, now)]
        if isinstance(message, Room) and sender in self._peers:
            return [*drop, *self.source.outbox.room(sender, now)]
        handler = _FROM_LEADER.get(type(message))
        if handler is None or sender != self.leader:
            return [*drop, Count("messages_ignored", type(message).__name__)]
        return [*drop, *handler(self, message, now)]

    def _open(self, message: Open, now: float) -> list[Action]:
        if message.epoch <= self.epoch:
            return []
        self.epoch, self.joined = message.epoch, True
        self._peers = {member.process for member in message.roster.members()}
        others = (*message.roster.members(), *message.roster.trainers)
        return [Connect(tuple(m for m in others if m.process != self.me.process)), *self.source.open(message)]

    def _gone(self, message: Gone, now: float) -> list[Action]:
        if message.epoch != self.epoch:
            return []
        if message.process == self.me.process:
            return self._leave(f"taken for dead: {message.reason}")
        self._peers.discard(message.process)
        forget: list[Action] = [] if self.lead is not None else [Forget(message.process)]
        return self.source.outbox.gone(message.process, now) + forget

    def _welcome(self, message: Welcome, now: float) -> list[Action]:
        self.joined, self.term = True, message.term
        return [Log("info", f"joined; {self.leader} leads")]

    def _result(self, message: StepResult, now: float) -> list[Action]:
        journal = self.source.outbox.clear() if message.step == self.epoch.step else []
        return [*journal, Record(message)]

    def _refused(self, message: Refused, now: float) -> list[Action]:
        self.ended = True
        return [Exit(message.reason, ok=False)]

    def _evicted(self, message: Evicted, now: float) -> list[Action]:
        return self._leave(message.reason)

    def _released(self, message: Released, now: float) -> list[Action]:
        return self._exit("left after the step")

    def _finished(self, message: Finished, now: float) -> list[Action]:
        return self._exit(f"the run is finished at version {message.version}")

    def _beat(self, message: Beat, now: float) -> list[Action]:
        return []

    def _leave(self, reason: str) -> list[Action]:
        self.ended = True
        return [Log("warning", reason), Rejoin(reason)]

    def _exit(self, reason: str) -> list[Action]:
        self.ended = True
        return [Exit(reason)]


_FROM_LEADER: dict[type, Callable[[TrainerMachine, Any, float], list[Action]]] = {
    Open: TrainerMachine._open,
    Gone: TrainerMachine._gone,
    Welcome: TrainerMachine._welcome,
    StepResult: TrainerMachine._result,
    Refused: TrainerMachine._refused,
    Evicted: TrainerMachine._evicted,
    Released: TrainerMachine._released,
    Finished: TrainerMachine._finished,
    Beat: TrainerMachine._beat,
}
