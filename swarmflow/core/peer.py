"""The peer's machine: joins, serves a stage, takes part in the steps, and leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core.actions import (
    Action,
    Apply,
    Connect,
    Count,
    Exit,
    Forget,
    LoadState,
    Log,
    Rejoin,
    Release,
    Reset,
    Send,
)  # fmt: skip
from swarmflow.core.events import (
    Applied,
    BackwardComputed,
    ComputeFailed,
    CopiesChanged,
    DrainAsked,
    Event,
    ForwardComputed,
    LossComputed,
    Lost,
    Overflowed,
    PieceReduced,
    Received,
    Replayed,
    Sealed,
    StateLoaded,
    StateNotLoaded,
    Tick,
)  # fmt: skip
from swarmflow.core.following import Following
from swarmflow.core.hops import Hops
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.keeping import told_of_copies
from swarmflow.core.messages import (
    Accepted,
    Adopt,
    Backward,
    Beat,
    Commit,
    Committed,
    Denied,
    Deposed,
    Done,
    Drain,
    Evicted,
    Finished,
    Forward,
    Gone,
    Granted,
    Heartbeat,
    Join,
    Keep,
    Kept,
    Lead,
    LoadFailed,
    Message,
    Open,
    Overflow,
    Prepare,
    Prepared,
    Ready,
    Recall,
    Recalled,
    ReducePart,
    ReduceSum,
    Refused,
    Released,
    Relieve,
    Room,
    Routed,
    Surplus,
    Suspect,
    Unprepared,
)  # fmt: skip
from swarmflow.core.outbox import Outbox
from swarmflow.core.peer_settings import PeerSettings
from swarmflow.core.reduce import Ballot, Reduction
from swarmflow.core.standing import Standing
from swarmflow.core.types import BEFORE_ALL, Epoch, Holding, Plan, ProcessId, Ref
from swarmflow.core.words import Words

EARLY_MAX = 256  # messages of one sender about an epoch or ballot not heard of yet; more is not honest traffic


@dataclass(slots=True)
class PeerMachine:
    """Everything a peer decides. Drive it with handle(event, now) and call it again at next_deadline().

    copies: what lies on its disk of other stages, where that has changed since it was started.
    """

    me: ProcessId
    following: Following
    plan: Plan
    settings: PeerSettings
    stage: int = -1
    version: int = -1
    phase: str = "joining"  # joining, loading, ready, member, draining, gone
    epoch: Epoch = BEFORE_ALL
    hops: Hops | None = None
    standing: Standing | None = None
    copies: tuple[Holding, ...] | None = None
    words: Words = field(init=False)
    _ballot: Ballot | None = None
    _unsettled: Prepare | None = None
    _elements: dict[str, int] = field(default_factory=dict)
    _element_bytes: int = 4
    _grant: int = 0
    _early: list[Received] = field(default_factory=list)
    _next_heartbeat_s: float = 0.0
    _next_join_s: float = 0.0
    _drain_until_s: float | None = None

    def __post_init__(self) -> None:
        self.words = Words(self.me)

    @property
    def leader(self) -> ProcessId:
        """Whom this peer follows."""
        return self.following.leader

    @property
    def load(self) -> int:
        """Microbatches that wait for, or are in, computation."""
        return self.hops.queued if self.hops is not None else 0

    # --- the machine's two doors --------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        return self.words.say(self._handle(event, now) + self._due(now))

    def _handle(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, Received):
            if not self.words.heard(event) and event.sender == self.leader and self.phase != "gone":
                return self._leave(f"the link from the leader {self.leader} loses messages")
            return self._received(event, now)
        handler = _LOCAL.get(type(event))
        if handler is None:
            raise TypeError(f"a peer has no use for {type(event).__name__}")
        return handler(self, event, now)

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        times = [self._next_heartbeat_s]
        if self.phase == "joining":
            times.append(self._next_join_s)
        if self._drain_until_s is not None:
            times.append(self._drain_until_s)
        if self.hops is not None and (paused := self.hops.next_deadline()) is not None:
            times.append(paused)
        return min(times)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Action]:
        if self.phase == "gone":
            return []
        actions: list[Action] = []
        if self.phase == "joining" and now >= self._next_join_s:
            self._next_join_s = now + self.settings.rejoin_s
            actions.append(Send(self.leader, self._join()))
        if now >= self._next_heartbeat_s:
            self._next_heartbeat_s = now + self.settings.heartbeat_s
            self.following.tick(now)
            queued, held = (self.hops.queued, self.hops.held) if self.hops is not None else (0, 0)
            # Without a leader this shows which of its heirs are dead too: what is sent to them is lost.
            hearers = [self.leader] if self.following.lost_s is None else self._heirs()
            actions += [Send(hearer, Heartbeat(queued, held, self.version)) for hearer in hearers]
        if self.following.lost_s is not None and (self.following.hopeless(now) or not self._heirs()):
            return [*actions, *self._leave(f"the leader {self.leader} was lost, and there is no other one")]
        if self._drain_until_s is not None and now >= self._drain_until_s:
            self.phase = "gone"
            return [*actions, Exit("left without waiting for the step: the drain time is over")]
        if self.hops is not None:
            actions += self.hops.tick(now)
        return actions

    def _join(self) -> Join:
        join = self.settings.join
        return join if self.copies is None else replace(join, copies=self.copies)

    # --- what the runtime reports -------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: float) -> list[Action]:
        return []

    def _lost(self, event: Lost, now: float) -> list[Action]:
        self.words.lost(event.process)
        if event.process == self.leader:
            known = self.following.lost_s is not None
            self.following.lose(now)
            return [] if known else [Log("warning", f"the leader {self.leader} was lost: {event.reason}")]
        if self.standing is not None and self.standing.takes_part(event.process):
            self.standing.suspects[event.process] = None
            return [Send(self.leader, Suspect(event.process, event.reason))]
        return []

    def _heirs(self) -> list[ProcessId]:
        """Trainers of the epoch at hand, if this peer is in it, that may yet be alive and lead it on."""
        standing = self.standing
        if standing is None or not standing.takes_part(self.me):
            return []
        return [t for t in standing.trainers() if t != self.leader and t not in standing.suspects]

    def _state_loaded(self, event: StateLoaded, now: float) -> list[Action]:
        if self.phase != "loading" or event.stage != self.stage:
            return []
        self.version = event.version
        self._elements, self._element_bytes = dict(event.group_elements), event.element_bytes
        self.phase = "ready"
        member = replace(self.settings.join.member, stage=self.stage, capacity=event.capacity)
        outbox = Outbox(self.stage + 1, Iwrr(), late_min_s=self.settings.late_min_s)
        kept = self.settings.journal_bytes_max
        self.hops = Hops(self.me, self.stage, self.plan.stages, member.capacity, outbox, self.leader, kept)
        return [
            Send(self.leader, Ready(self.stage, self.version, event.digest, event.capacity, self._grant)),
            Log("info", f"stage {self.stage} is loaded at version {self.version}, {event.capacity} microbatches fit"),
        ]

    def _state_not_loaded(self, event: StateNotLoaded, now: float) -> list[Action]:
        if self.phase != "loading" or event.stage != self.stage:
            return []
        self.version = -1
        failed = LoadFailed(event.stage, event.version, event.reason, self._grant)
        return [Send(self.leader, failed), Log("warning", event.reason)]

    def _copies_changed(self, event: CopiesChanged, now: float) -> list[Action]:
        self.copies = event.copies
        return [Send(self.leader, Kept(event.copies, event.failed))]

    def _drain_asked(self, event: DrainAsked, now: float) -> list[Action]:
        if self._drain_until_s is not None or self.phase in ("joining", "loading", "gone"):
            self.phase = "gone"
            return [Exit("left")]
        self._drain_until_s = now + self.settings.drain_s
        if self.hops is not None:
            alone = self.standing is not None and len(self.standing.living().stages[self.stage]) == 1
            alone = alone and self.phase == "member"
            self.hops.draining = not alone
        return [
            Send(self.leader, Drain()),
            Log("info", f"draining: no new work; leaving after this step, in {self.settings.drain_s:.0f} s at most"),
        ]

    def _computed(self, event: ForwardComputed | LossComputed | BackwardComputed, now: float) -> list[Action]:
        """A result of a stage that this process serves no more is dropped."""
        if self.hops is None:
            ref = event.output if isinstance(event, ForwardComputed) else event.gradient
            return _release((ref,) if ref is not None else ())
        match event:
            case ForwardComputed():
                return self.hops.forward_computed(event, now)
            case LossComputed():
                return self.hops.loss_computed(event)
            case BackwardComputed():
                return self.hops.backward_computed(event)

    def _compute_failed(self, event: ComputeFailed, now: float) -> list[Action]:
        if self.hops is None:
            return []
        culprit, actions = self.hops.failed(event.microbatch)
        if culprit is not None:
            actions.append(Send(self.leader, Suspect(culprit, f"sent an unusable tensor: {event.reason}")))
        return [Count("frames_refused", "tensor"), Log("warning", event.reason), *actions]

    def _piece_reduced(self, event: PieceReduced, now: float) -> list[Action]:
        ballot = self._ballot
        if ballot is None or (event.epoch, event.ballot) != (self.epoch, ballot.number):
            return []
        return ballot.reduction.reduced(event.group, event.piece)

    def _sealed(self, event: Sealed, now: float) -> list[Action]:
        ballot = self._ballot
        if ballot is None or (event.epoch, event.ballot) != (self.epoch, ballot.number):
            return []
        ballot.sealed = True
        if self.standing is not None:
            self.standing.results = event.results
        return [Send(self.leader, Prepared(self.epoch, ballot.number, event.results))]

    def _applied(self, event: Applied, now: float) -> list[Action]:
        if event.epoch != self.epoch:
            return []
        self.version = event.epoch.step + 1
        if self.standing is not None:
            self.standing.digest = event.digest
        journal = self.hops.clear() if self.hops is not None else []
        return [*journal, Send(self.leader, Committed(event.epoch, self.version, event.digest))]

    # --- what others say ----------------------------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Action]:
        message = event.message
        if event.sender == self.leader:
            self.following.heard(now)
        handler = _REMOTE.get(type(message))
        if handler is None or self.phase == "gone":
            return [Count("messages_ignored", type(message).__name__), *_release(event.bodies)]
        if isinstance(message, _FROM_LEADER):
            if event.sender != self.leader:
                return self._from_another_leader(event.sender, message)
        elif self._is_early(message):
            if sum(early.sender == event.sender for early in self._early) >= EARLY_MAX:
                return [Count("messages_ignored", "early"), *_release(event.bodies)]
            self._early.append(event)
            return []
        elif not isinstance(message, Lead) and self._is_void(event):
            return _release(event.bodies)
        return handler(self, event, now)

    def _is_early(self, message: Message) -> bool:
        """Peers hear the leader over other connections: their first messages may come before its Open or Prepare."""
        if isinstance(message, ReducePart | ReduceSum):
            ballot = self.standing.ballot if self.standing is not None else -1
            ballot -= self._unsettled is not None  # parts of the ballot that waits for orphans to be taken away
            return (message.epoch, message.ballot) > (self.epoch, ballot)
        return message.microbatch.epoch > self.epoch if hasattr(message, "microbatch") else False

    def _is_void(self, event: Received) -> bool:
        message: Any = event.message
        epoch = message.microbatch.epoch if hasattr(message, "microbatch") else getattr(message, "epoch", self.epoch)
        if epoch != self.epoch or self.hops is None:
            return True
        if isinstance(message, ReducePart | ReduceSum):
            return False  # the ballot's groups tell who may send them: newcomers are not in the roster yet
        return self.standing is None or not self.standing.takes_part(event.sender)

    def _replay_early(self, now: float) -> list[Action]:
        early, self._early = self._early, []
        return [action for event in early for action in self._received(event, now)]

    def _open(self, event: Received, now: float) -> list[Action]:
        message = event.message
        assert isinstance(message, Open)
        if message.term < self.following.term or message.epoch <= self.epoch:
            return []
        self.following.term, self.epoch = message.term, message.epoch
        self.standing = Standing(message)
        actions: list[Action] = self._revoke()
        stages, trainers = message.roster.stages, message.roster.trainers
        mine = self.stage >= 0 and self.me in [m.process for m in stages[self.stage]]
        if not mine or self.hops is None:
            early, self._early = self._early, []
            return actions + [action for event in early for action in _release(event.bodies)]
        if self.version != self.epoch.step:
            return [*actions, *self._leave(f"at version {self.version}, but the swarm opened {self.epoch.step}")]
        if self.phase == "ready":
            actions.append(Log("info", f"serving stage {self.stage} from step {self.epoch.step} on"))
        self.phase = "member"
        following = stages[self.stage + 1] if not self.hops.last else ()
        before = stages[self.stage - 1] if self.stage > 0 else trainers
        members = message.roster.around(self.stage, self.plan.tied)
        actions += [Connect(tuple(m for m in members if m.process != self.me)), Reset(message.exponent)]
        processes = (tuple(member.process for member in members) for members in (following, before))
        actions += self.hops.open(self.epoch, *processes)
        return actions + self._replay_early(now)

    def _gone(self, event: Received, now: float) -> list[Action]:
        message = event.message
        assert isinstance(message, Gone)
        if message.epoch != self.epoch or self.hops is None or self.standing is None:
            return [Forget(message.process)] if self.phase == "loading" else []  # it may be what it loads from
        if message.process == self.me:
            return self._leave(f"taken for dead: {message.reason}")
        self.standing.died(message.process)
        actions = [*self._revoke(), *self.hops.gone(message.process, now, message.lost), *self.hops.reopen()]
        return [*actions, Forget(message.process)]

    def _prepare(self, event: Received, now: float) -> list[Action]:
        message = event.message
        assert isinstance(message, Prepare)
        if message.epoch != self.epoch or self.hops is None or self.standing is None:
            return []
        self.standing.prepare(message)
        taken, missing = self.hops.reconcile(message.entries)
        actions = [*self._revoke(), *taken]
        if missing:
            return [*actions, Send(self.leader, Unprepared(self.epoch, message.ballot, missing))]
        if self.hops.settling:
            self._unsettled = message
            return actions
        return [*actions, *self._reduce(message, now)]

    def _replayed(self, event: Replayed, now: float) -> list[Action]:
        if self.hops is None:
            return _release((event.gradient,) if event.gradient is not None else ())
        return [*self.hops.replayed(event), *self._settled(now)]

    def _settled(self, now: float) -> list[Action]:
        """The ballot that waited for orphans to be taken away goes on when the last one is."""
        message = self._unsettled
        if message is None or self.hops is None or self.hops.settling:
            return []
        self._unsettled = None
        return self._reduce(message, now)

    def _reduce(self, message: Prepare, now: float) -> list[Action]:
        mine = tuple(group for group in message.groups if group.name in self._elements and self.me in group.members)
        reduction = Reduction(self.me, self.epoch, message.ballot, mine, self._elements, self._element_bytes)
        self._ballot = Ballot(message.ballot, reduction)
        newcomers = tuple(member for member in message.newcomers if member.process != self.me)
        return [Connect(newcomers), *reduction.start(), *self._replay_early(now)]

    def _commit(self, event: Received, now: float) -> list[Action]:
        message = event.message
        assert isinstance(message, Commit)
        ballot, standing = self._ballot, self.standing
        if message.epoch != self.epoch or standing is None or standing.commit is not None:
            return []
        if ballot is None or ballot.number != message.ballot or not ballot.sealed:
            return self._leave(f"ballot {message.ballot} of step {self.epoch.step} was committed without this process")
        self._ballot, standing.commit = None, message
        return [Apply(self.epoch, message.scale, message.learning_rate)]

    def _revoke(self) -> list[Action]:
        self._unsettled = None
        ballot, self._ballot = self._ballot, None
        return ballot.reduction.abandon() if ballot is not None else []

    def _reduce_part(self, event: Received, now: float) -> list[Action]:
        message = event.message
        assert isinstance(message, ReducePart | ReduceSum)
        if self._ballot is None or message.ballot != self._ballot.number or len(event.bodies) != 1:
            return _release(event.bodies)
        reduction = self._ballot.reduction
        if not reduction.fits(message, event.bodies[0]):
            suspect = Suspect(event.sender, f"sent an unusable piece of {message.group[:20]}")
            return [*_release(event.bodies), Count("frames_refused", "piece"), Send(self.leader, suspect)]
        if isinstance(message, ReducePart):
            return reduction.part(event.sender, message, event.bodies[0])
        return reduction.summed(event.sender, message, event.bodies[0])

    def _granted(self, event: Received, now: float) -> list[Action]:
        message = event.message
        assert isinstance(message, Granted)
        if message.term < self.following.term or not 0 <= message.stage < self.plan.stages:
            return []
        moved: list[Action] = [Count("moves")] if self.stage not in (-1, message.stage) else []
        self.following.term = message.term
        self.stage, self.version, self.phase, self._grant = message.stage, -1, "loading", message.grant
        journal = self.hops.clear() if self.hops is not None else []
        self.hops = None
        whence = ", ".join(str(donor.process) for donor in message.donors) or "the seed"
        return [
            *moved,
            *self._revoke(),
            *journal,
            Connect(tuple(message.donors)),
            LoadState(message.stage, message.version, message.donors),
            Log("info", f"granted stage {message.stage}; loading version {message.version} from {whence}"),
        ]

    def _refused(self, event: Received, now: float) -> list[Action]:
        assert isinstance(event.message, Refused)
        self.phase = "gone"
        return [Exit(event.message.reason, ok=False)]

    def _evicted(self, event: Received, now: float) -> list[Action]:
        assert isinstance(event.message, Evicted)
        return self._leave(event.message.reason)

    def _released(self, event: Received, now: float) -> list[Action]:
        self.phase = "gone"
        return [Exit("drained: nothing depends on this process any more")]

    def _finished(self, event: Received, now: float) -> list[Action]:
        assert isinstance(event.message, Finished)
        if self.settings.stay:
            return [Log("info", f"the run is finished at version {event.message.version}; staying")]
        self.phase = "gone"
        return [Exit(f"the run is finished at version {event.message.version}")]

    def _beat(self, event: Received, now: float) -> list[Action]:
        return []

    def _lead(self, event: Received, now: float) -> list[Action]:
        """A trainer wants to lead. It is followed if it may, unless the leader was heard of just now."""
        sender, message = event.sender, event.message
        assert isinstance(message, Lead)
        standing, following = self.standing, self.following
        if standing is None or sender not in standing.trainers():
            return [Count("messages_ignored", "Lead")]
        again = sender == self.leader and message.term >= following.term
        if not again and message.term <= following.term:
            return [Send(sender, Deposed(following.term))]
        if not again and not following.doubts(now):
            return []
        following.follow(sender, message.term, now)
        self._grant = -1  # it counts its grants anew: what comes of a former leader's must not look like one of them
        done: tuple[Done, ...] = ()
        dropped: tuple[int, ...] = ()
        if self.hops is not None:
            self.hops.leader, done, dropped = sender, self.hops.done(), tuple(self.hops.dropped)
        capacity = self.hops.capacity if self.hops is not None else self.settings.join.member.capacity
        member = replace(self.settings.join.member, stage=self.stage, capacity=capacity)
        report = standing.report(
            message.term, self._join(), member, ready=self.hops is not None, version=self.version,
            draining=self._drain_until_s is not None, done=done, dropped=dropped,
        )  # fmt: skip
        answer: list[Action] = [Connect((message.me,)), Send(sender, report)]
        return answer if again else [*answer, Log("info", f"trainer {sender} leads from here on")]

    def _from_another_leader(self, sender: ProcessId, message: Message) -> list[Action]:
        """A former leader has to know that it is one; a later one may have given this peer up."""
        ignored: list[Action] = [Count("messages_ignored", type(message).__name__)]
        term = getattr(message, "term", self.following.term)
        if term < self.following.term:
            return [*ignored, Send(sender, Deposed(self.following.term))]
        if isinstance(message, Gone) and self.following.passed_over(self.me, sender, message, self.standing):
            return self._leave(f"taken for dead: {message.reason}")
        return ignored

    def _keep(self, event: Received, now: float) -> list[Action]:
        assert isinstance(event.message, Keep | Surplus)
        return told_of_copies(event.message, self.plan.stages) if self.settings.join.keeps else []

    def _overflowed(self, event: Overflowed, now: float) -> list[Action]:
        if event.microbatch.epoch != self.epoch:
            return []
        return [Send(self.leader, Overflow(event.microbatch, event.finite))]

    def _leave(self, reason: str) -> list[Action]:
        self.phase = "gone"
        return [Log("warning", reason), Rejoin(reason)]

    def _hop_message(self, event: Received, now: float) -> list[Action]:
        """Messages about one hop go to Hops; that they belong to this epoch and its roster was checked before."""
        assert self.hops is not None, "checked by _is_void"
        return self.hops.message(event.sender, event.message, event.bodies, now)


def _release(bodies: tuple[Ref, ...]) -> list[Action]:
    return [Release(bodies)] if bodies else []


_FROM_LEADER = (Open, Gone, Prepare, Commit, Granted, Refused, Evicted, Released, Finished, Beat, Keep, Surplus)

_Remote = Callable[[PeerMachine, Received, float], list[Action]]
_REMOTE: dict[type, _Remote] = {
    **dict.fromkeys(
        (Forward, Adopt, Backward, Accepted, Denied, Relieve, Routed, Room, Recall, Recalled), PeerMachine._hop_message
    ),
    Open: PeerMachine._open,
    Gone: PeerMachine._gone,
    Prepare: PeerMachine._prepare,
    Commit: PeerMachine._commit,
    ReducePart: PeerMachine._reduce_part,
    ReduceSum: PeerMachine._reduce_part,
    Granted: PeerMachine._granted,
    Refused: PeerMachine._refused,
    Evicted: PeerMachine._evicted,
    Released: PeerMachine._released,
    Finished: PeerMachine._finished,
    Beat: PeerMachine._beat,
    Keep: PeerMachine._keep,
    Surplus: PeerMachine._keep,
    Lead: PeerMachine._lead,
}
_LOCAL: dict[type, Callable[[PeerMachine, Any, float], list[Action]]] = {
    Tick: PeerMachine._tick,
    Lost: PeerMachine._lost,
    StateLoaded: PeerMachine._state_loaded,
    StateNotLoaded: PeerMachine._state_not_loaded,
    DrainAsked: PeerMachine._drain_asked,
    CopiesChanged: PeerMachine._copies_changed,
    ForwardComputed: PeerMachine._computed,
    LossComputed: PeerMachine._computed,
    BackwardComputed: PeerMachine._computed,
    ComputeFailed: PeerMachine._compute_failed,
    Overflowed: PeerMachine._overflowed,
    Replayed: PeerMachine._replayed,
    PieceReduced: PeerMachine._piece_reduced,
    Sealed: PeerMachine._sealed,
    Applied: PeerMachine._applied,
}
