"""The trainer's machine: feeds its microbatches, and leads the run if it is the leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

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
    Send,
    TookOver,
    WriteCheckpoint,
)  # fmt: skip
from swarmflow.core.events import (
    CheckpointWritten,
    DrainAsked,
    Event,
    Lost,
    MicrobatchFormed,
    Received,
    Rival,
    Tick,
    Validated,
)  # fmt: skip
from swarmflow.core.following import Following
from swarmflow.core.leader import Leader
from swarmflow.core.messages import (
    Accepted,
    Assign,
    Backward,
    Beat,
    Committed,
    Denied,
    Deposed,
    Done,
    Drain,
    Evicted,
    Finished,
    Gone,
    Heartbeat,
    Join,
    Keep,
    Kept,
    Lead,
    LoadFailed,
    Message,
    Named,
    Open,
    Overflow,
    Prepared,
    Ready,
    Recall,
    Refused,
    Released,
    Reopen,
    Report,
    Reserved,
    Room,
    Routed,
    StepResult,
    Suspect,
    Unprepared,
    Unrepairable,
    Welcome,
)  # fmt: skip
from swarmflow.core.naming import Naming, answer
from swarmflow.core.rules import LeaderSettings
from swarmflow.core.source import Source
from swarmflow.core.standing import Standing, begun
from swarmflow.core.succession import Candidacy, estate_of
from swarmflow.core.types import BEFORE_ALL, Epoch, Holding, Member, Plan, ProcessId, Roster, Snapshot
from swarmflow.core.words import Words

_TO_LEADER = frozenset((
    Join, Ready, LoadFailed, Drain, Heartbeat, Suspect, Done, Prepared, Unprepared, Unrepairable, Overflow,
    Committed, Kept,
))  # fmt: skip
_ABOUT_HOPS = (Accepted, Reserved, Denied, Routed, Backward)
RANK_DELAY_S = 2.0  # how long each trainer leaves the ones before it to take over
CANDIDACY_S = 8.0  # after which one who was not elected tries again, in a later term


@dataclass(slots=True)
class TrainerMachine:
    """Everything a trainer decides. following: the leading trainer; itself when `lead` is set.

    settings: by which it would lead. on_disk: the newest version that it could go on from; digests: of its files.
    """

    me: Member
    following: Following
    plan: Plan
    settings: LeaderSettings
    source: Source
    join: Join
    on_disk: int = 0
    digests: tuple[str, ...] = ()
    lead: Leader | None = None
    joined: bool = False
    epoch: Epoch = BEFORE_ALL
    heartbeat_s: float = 1.0
    rejoin_s: float = 5.0
    ended: bool = False
    draining: bool = False
    standing: Standing | None = None
    candidacy: Candidacy | None = None
    recorded: Epoch = BEFORE_ALL
    words: Words = field(init=False)
    naming: Naming = field(default_factory=Naming)
    _peers: set[ProcessId] = field(default_factory=set)
    _waiting: list[Received] = field(default_factory=list)
    _next_heartbeat_s: float = 0.0
    _next_join_s: float = 0.0

    def __post_init__(self) -> None:
        self.words = Words(self.me.process)

    @property
    def leader(self) -> ProcessId:
        """Whom this trainer follows."""
        return self.following.leader

    def start(self, now: float) -> list[Action]:
        """Begin: lead, or ask to be let in."""
        return self.words.say(self.lead.start(now) if self.lead is not None else self._due(now))

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        if self.ended:
            return [Release(event.bodies)] if isinstance(event, Received) and event.bodies else []
        actions = self._local(event, now) if not isinstance(event, Received) else self._heard_all(event, now)
        return self.words.say(actions + self._due(now))

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        times = [self._next_heartbeat_s]
        if self.lead is not None:
            times = [self.lead.next_deadline()]
        elif not self.joined:
            times.append(self._next_join_s)
        elif self.candidacy is not None:
            times.append(self.candidacy.next_deadline())
        elif (stand_s := self._stand_s()) is not None:
            times.append(stand_s)
        if (paused := self.source.outbox.next_deadline()) is not None:
            times.append(paused)
        return min(times)

    def _due(self, now: float) -> list[Action]:
        actions = self.source.outbox.tick(now)
        if self.lead is not None or self.ended:
            return actions
        if not self.joined and now >= self._next_join_s:
            self._next_join_s = now + self.rejoin_s
            actions.append(Send(self.leader, self.join))
        if now >= self._next_heartbeat_s:
            self._next_heartbeat_s = now + self.heartbeat_s
            self.following.tick(now)
            if self.joined and self.following.lost_s is None:
                actions.append(Send(self.leader, Heartbeat(version=self.epoch.step)))
        return actions + self._succeed(now)

    # --- another leader -----------------------------------------------------------------------------------------------

    def _stand_s(self) -> float | None:
        """When this trainer tries to lead, should nobody else have done so; None: there is a leader."""
        standing, lost_s = self.standing, self.following.lost_s
        if lost_s is None or standing is None or self.draining:
            return None
        others = [trainer for trainer in standing.trainers() if trainer != self.leader]
        return lost_s + RANK_DELAY_S * others.index(self.me.process) if self.me.process in others else None

    def _succeed(self, now: float) -> list[Action]:
        """What is to be done without a leader: stand, ask again, take over, or give up."""
        candidacy = self.candidacy
        if candidacy is not None:
            if candidacy.elected(now):
                return self._take_over(candidacy, now)
            if self.following.hopeless(now):
                return self._leave("no leader, and most of the swarm is gone")
            if now - candidacy.began_s > CANDIDACY_S:
                return self._stand(now)
            return candidacy.tick(now)
        if self.following.lost_s is None:
            return []
        stand_s = self._stand_s()
        if stand_s is None or self.following.hopeless(now):
            return self._leave(f"the leader {self.leader} was lost, and there is no other one")
        return self._stand(now) if now >= stand_s else []

    def _stand(self, now: float) -> list[Action]:
        assert self.standing is not None, "who was in no epoch cannot lead"
        self.following.term += 1
        self.candidacy = Candidacy(self.me, self.following.term, self.standing, now)
        log = Log("warning", f"the leader {self.leader} is lost: standing for term {self.following.term}")
        return [log, *self.candidacy.begin(self._report(), now)]

    def _take_over(self, candidacy: Candidacy, now: float) -> list[Action]:
        version = candidacy.latest().epoch.step
        rate = self.settings.learning_rate(version)
        estate = estate_of(candidacy, self.plan, rate, self.settings.clip, now)
        self.candidacy = None
        self.following.follow(self.me.process, candidacy.term, now)
        self.lead = Leader(self.me, self.plan, self.settings, candidacy.term, version, self.on_disk, self.digests)
        actions: list[Action] = [TookOver(candidacy.term), Count("successions"), *self.lead.take_over(estate, now)]
        waiting, self._waiting = self._waiting, []
        return actions + [action for event in waiting for action in self.lead.handle(event, now)]

    def _report(self, known: str = "") -> Report:
        assert self.standing is not None, "who was in no epoch has nothing to report"
        return self.standing.report(
            self.following.term, self.join, self.me, ready=True, version=self.epoch.step, draining=self.draining,
            indices=self.source.indices, attempt=self.source.attempt, known=known,
        )  # fmt: skip

    def _asked_to_follow(self, sender: ProcessId, message: Lead, now: float) -> list[Action]:
        """Another trainer wants to lead. It is followed if it may, unless the leader was heard of just now."""
        standing, following = self.standing, self.following
        if standing is None or sender not in standing.trainers() or self.lead is not None:
            return [Count("messages_ignored", "Lead")]
        again = sender == self.leader and message.term >= following.term
        if not again and message.term <= following.term:
            return [Send(sender, Deposed(following.term))] if message.term < following.term else []
        if not again and not following.doubts(now):
            return []
        following.follow(sender, message.term, now)
        self.candidacy = None
        self._waiting.clear()
        answered: list[Action] = [Connect((message.me,)), *answer(sender, self._report(message.roster))]
        return answered if again else [*answered, Log("info", f"trainer {sender} leads from here on")]

    def _deposed(self, message: Deposed, now: float) -> list[Action]:
        """Somebody follows another one, in a later term."""
        if self.lead is not None and message.term > self.lead.term:
            return self._leave("another trainer leads by now")
        if self.candidacy is not None and message.term > self.candidacy.term:
            self.following.term, self.candidacy = message.term, None  # the next try is in a term after that one
        return []

    def _heard(self, sender: ProcessId, message: Message, now: float) -> list[Action]:
        """The leader spoke; or one that is not followed any more, although it may know nothing of it."""
        if sender == self.leader and self.candidacy is None:
            self.following.heard(now)
            return []
        term = getattr(message, "term", None)
        if not isinstance(message, Beat) or term is None or term >= self.following.term:
            return []
        if sender == self.leader and self.candidacy is not None and len(self.candidacy.reports) == 1:
            self.candidacy = None  # nobody has promised anything yet: the leader is back
            self.following.follow(sender, term, now)
            return []
        return [Send(sender, Deposed(self.following.term))]

    def _local(self, event: Event, now: float) -> list[Action]:
        match event:
            case MicrobatchFormed():
                return self.source.formed(event, now)
            case DrainAsked():
                return self._drain()
            case Lost():
                return self._lost(event, now)
            case CheckpointWritten():
                return self._written(event, now)
            case Rival() if self.lead is not None:
                actions = self.lead.handle(event, now)
                self.ended = any(isinstance(action, Rejoin) for action in actions)
                return actions
            case Tick() | Validated() | Rival():
                return self.lead.handle(event, now) if self.lead is not None else []
        raise TypeError(f"a trainer has no use for {type(event).__name__}")

    def _written(self, event: CheckpointWritten, now: float) -> list[Action]:
        if event.ok and event.version >= self.on_disk:
            self.on_disk, self.digests = event.version, event.digests
        if self.lead is not None:
            return self.lead.handle(event, now)
        self.join = replace(self.join, copies=self._copies())
        return [Send(self.leader, Kept(self._copies(), event.reason))]

    def _copies(self) -> tuple[Holding, ...]:
        snapshot = Snapshot(self.on_disk, self.digests)
        return (Holding(snapshot, tuple(range(self.plan.stages))),) if self.digests else ()

    def _lost(self, event: Lost, now: float) -> list[Action]:
        self.words.lost(event.process)
        if self.lead is not None:
            return self.lead.handle(event, now)
        if self.candidacy is not None:
            self.candidacy.lost(event.process)
        if event.process == self.leader:
            self.following.lose(now)
            return []
        if self.standing is None or event.process not in self._peers:
            return []
        self.standing.suspects[event.process] = None
        return [Send(self.leader, Suspect(event.process, event.reason))]

    def _drain(self) -> list[Action]:
        if self.draining or (self.lead is None and not self.joined):
            return self._exit("left at once")
        self.draining = True
        if self.lead is not None:
            actions = self.lead.stop()
            self.ended = any(isinstance(action, Exit) for action in actions)
            return actions
        return [Send(self.leader, Drain()), Log("info", "leaving after this step")]

    def _heard_all(self, event: Received, now: float) -> list[Action]:
        """A link to or from the leader that has lost something is as bad as a broken one."""
        if self.words.heard(event) or (self.lead is None and event.sender != self.leader):
            return self._received(event, now)
        if self.lead is None:
            return self._leave(f"the link from the leader {self.leader} loses messages")
        lost = self.lead.handle(Lost(event.sender, "messages of it were lost on the way"), now)
        return lost + self._received(event, now)  # who was forgotten already is told so

    def _received(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        if self.lead is not None and type(message) in _TO_LEADER:
            return self.lead.handle(event, now)
        if self.candidacy is not None and type(message) in _TO_LEADER and sender in self.candidacy.reports:
            self._waiting.append(event)
            return []
        drop: list[Action] = [Release(event.bodies)] if event.bodies else []
        drop += self._heard(sender, message, now)
        match message:
            case Lead():
                return [*drop, *self._asked_to_follow(sender, message, now)]
            case Named() if self.candidacy is not None and sender != self.leader:
                return [*drop, *self.candidacy.named(sender, message)]
            case Report() if self.candidacy is not None:
                return [*drop, *self.candidacy.report(sender, message)]
            case Deposed():
                return [*drop, *self._deposed(message, now)]
        if isinstance(message, _ABOUT_HOPS) and sender in self._peers:
            return [*drop, *self.source.message(sender, message, now)]
        if isinstance(message, Recall) and sender in self._peers:
            return [*drop, *self.source.recall(sender, message)]
        if isinstance(message, Room) and sender in self._peers:
            return [*drop, *self.source.outbox.room(sender, now)]
        handler = _FROM_LEADER.get(type(message))
        if isinstance(message, Gone) and self.following.passed_over(self.me.process, sender, message, self.standing):
            return [*drop, *self._leave(f"taken for dead: {message.reason}")]
        followed = self.candidacy is not None and len(self.candidacy.reports) > 1
        if handler is None or sender != self.leader or followed:
            return [*drop, Count("messages_ignored", type(message).__name__)]
        self.candidacy = None  # nobody else has promised anything yet: it stands anew, from what it has heard now
        return [*drop, *handler(self, message, now)]

    def _open(self, message: Open | Reopen, now: float) -> list[Action]:
        if message.epoch <= self.epoch:
            return []
        standing = begun(message, self.naming, self.standing)
        if standing is None:
            return self._leave(f"this process was not told who takes part in step {message.epoch.step}")
        self.epoch, self.joined, self.standing = message.epoch, True, standing
        self.following.term = max(self.following.term, message.term)
        roster, me = standing.opened.roster, self.me.process
        self._peers = set(roster.serving)
        others = tuple(m for m in (*roster.members(), *roster.trainers) if m.process != me)
        return [Connect(others), *self.source.open(standing.opened)]

    def _named(self, message: Named, now: float) -> list[Action]:
        self.naming.hear(message)
        return []

    def _gone(self, message: Gone, now: float) -> list[Action]:
        if message.epoch != self.epoch:
            return []
        if message.process == self.me.process:
            return self._leave(f"taken for dead: {message.reason}")
        if self.standing is not None:
            self.standing.died(message.process)
        actions: list[Action] = [] if self.lead is not None else [Forget(message.process)]
        if message.process not in self._peers:
            actions += self.source.trainer_gone()
        self._peers.discard(message.process)
        first = {index for stage, index in message.lost if stage == 0}
        return actions + self.source.outbox.gone(message.process, now, first)

    def _assign(self, message: Assign, now: float) -> list[Action]:
        return self.source.assign(message) if message.epoch == self.epoch else []

    def _keep(self, message: Keep, now: float) -> list[Action]:
        here, wanted = Snapshot(self.on_disk, self.digests), message.snapshot
        if self.lead is not None or wanted.version < here.version or wanted == here:
            return []
        holders = ((message.holder,),) * self.plan.stages
        return [Connect((message.holder,)), WriteCheckpoint(wanted.version, Roster(holders), digests=wanted.digests)]

    def _welcome(self, message: Welcome, now: float) -> list[Action]:
        self.joined, self.following.term = True, message.term
        return [Log("info", f"joined; {self.leader} leads")]

    def _result(self, message: StepResult, now: float) -> list[Action]:
        if message.epoch <= self.recorded:
            return []  # a leader that took over tells again what the former one may have told
        self.recorded = message.epoch
        journal = self.source.outbox.clear() if message.epoch >= self.epoch else []
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
    Named: TrainerMachine._named,
    Open: TrainerMachine._open,
    Reopen: TrainerMachine._open,
    Gone: TrainerMachine._gone,
    Assign: TrainerMachine._assign,
    Keep: TrainerMachine._keep,
    Welcome: TrainerMachine._welcome,
    StepResult: TrainerMachine._result,
    Refused: TrainerMachine._refused,
    Evicted: TrainerMachine._evicted,
    Released: TrainerMachine._released,
    Finished: TrainerMachine._finished,
    Beat: TrainerMachine._beat,
}
