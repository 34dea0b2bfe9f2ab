"""The peer's machine: what happens to it, and what follows as time passes. The decisions are in serving/."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core.durability.memory import Memory
from swarmflow.core.machines.serving import ballots, leaders, leaving, microbatches, refusing, stages, surveys
from swarmflow.core.machines.serving.early_messages import EarlyMessages
from swarmflow.core.machines.serving.inbound import INBOUND, Inbound, Scope, misplaced
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState, release
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.events import (
    Applied,
    BackwardComputed,
    BlamedError,
    ComputedNotFinite,
    ComputeFailed,
    CopiesChanged,
    DrainAsked,
    Event,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Lost,
    Mishandled,
    Overflowed,
    PieceFailed,
    PieceReduced,
    Progressed,
    Received,
    Replayed,
    Sealed,
    StageWritten,
    StateDamaged,
    StateHashed,
    StateLoaded,
    StateNotLoaded,
    StateStored,
    Summarized,
    Tick,
)
from swarmflow.core.protocol.message_counter import MessageCounter
from swarmflow.core.protocol.messages import (
    Evicted,
    Finished,
    Heartbeat,
    LeaderHeartbeat,
    Message,
    OpenStep,
    Probe,
    Probed,
    Refused,
    RelayedTensor,
    Released,
    RosterDelta,
)
from swarmflow.core.protocol.messages.checks import MessageChecks, checks_of
from swarmflow.core.protocol.types import NO_EPOCH, Epoch, ProcessId
from swarmflow.core.routing.relays import Relays

PARTING = Evicted | Finished | Released | Refused  # orders that end its part: they wait for no update


@dataclass(slots=True)
class PeerMachine(PeerState):
    """Everything a peer decides. Drive it with handle(event, now) and call it again at next_deadline()."""

    counter: MessageCounter = field(init=False)
    checks: MessageChecks = field(init=False)
    _early: EarlyMessages = field(init=False)
    _orders: list[Received] = field(init=False, default_factory=list)  # that follow a commit whose update is not made
    _next_heartbeat_s: float = field(init=False, default=0.0)
    _next_join_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        idle_links = self.settings.relays and not self.plan.delay  # with a delay no link is idle for long
        relayed_bytes = self.plan.boundary_bytes if idle_links else 0
        self.counter, self.relays = MessageCounter(self.me), Relays(self.me, relayed_bytes)
        self.checks = checks_of(self.plan)
        self.memory = Memory(self.settings.join.held)
        self._early = EarlyMessages(self.plan.boundary_bytes)

    # --- the machine's two doors --------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        actions = self._decide(event, now)
        if self.hops is not None:
            self.hops.workload.watch(actions, now)
        return actions

    def _decide(self, event: Event, now: float) -> list[Action]:
        if type(event) is Tick:
            return self._due(now)
        if type(event) is Received and type(event.message) is LeaderHeartbeat and self._from_leader(event):
            return self._beat(event, now)
        before = self._known if self._early else None
        actions = self._handle(event, now)
        if self._orders and not self._updates:
            actions += self._obey(now)
        if before is not None and self._known != before:
            actions += self._replay_early(now)
        if self.hops is not None:
            self.hops.timer.watch(event, actions, now)
        return self._say(actions, now) + self._due(now)

    def _from_leader(self, event: Received) -> bool:
        return event.sender == self.lease.leader and event.role == "trainer" and not event.bodies

    def _beat(self, event: Received, now: float) -> list[Action]:
        """As many events are this one as all others. Nothing waits for it, and what time brings comes with a Tick."""
        self.lease.renew(now)
        if self.counter.received(event) or self.phase is PeerPhase.GONE:
            return []
        return self.leave(f"the link from the leader {self.leader} loses messages")

    def _handle(self, event: Event, now: float) -> list[Action]:
        if type(event) is Received:
            if not self.counter.received(event) and event.sender == self.leader and self.phase is not PeerPhase.GONE:
                return self.leave(f"the link from the leader {self.leader} loses messages")
            wrong = self.checks.wrong(event.message, len(event.bodies), event.role, event.signed)
            return self._received(event, now) if wrong is None else refusing.refuse(self, event, wrong, now)
        if isinstance(event, Lost) and (event.process != self.leader or self.phase is PeerPhase.JOINING):
            self.counter.lost(event.process)  # a leader that comes back has to notice what it has missed
        if self.phase is PeerPhase.GONE and type(event) is not StateStored:
            return []  # it has made its last promise, and waits for its disk alone
        self.done += type(event) in _WORK
        handler = _LOCAL.get(type(event))
        if handler is None:
            raise TypeError(f"a peer has no use for {type(event).__name__}")
        return handler(self, event, now)

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        if self.phase is PeerPhase.GONE:
            return math.inf
        due_s = self._next_heartbeat_s
        if self.phase is PeerPhase.JOINING:
            due_s = min(due_s, self._next_join_s)
        if self.drain_until_s is not None:
            due_s = min(due_s, self.drain_until_s)
        if self.survey is not None:
            due_s = min(due_s, self.survey.next_deadline())
        if self.flows is not None and (flows_s := self.flows.next_deadline()) is not None:
            due_s = min(due_s, flows_s)
        if self.hops is None or self.hops.due_s >= due_s:
            return due_s
        hops_s = self.hops.next_deadline()
        return due_s if hops_s is None else min(due_s, hops_s)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Action]:
        """What time brings, counted where it is said."""
        if self.phase is PeerPhase.GONE:
            return []
        actions: list[Action] = []
        if self.phase is PeerPhase.JOINING and now >= self._next_join_s:
            self._next_join_s = now + self.plan.timeouts.rejoin_s
            actions += self.counter.sent([Send(self.leader, self.join())])
        if now >= self._next_heartbeat_s:
            self._next_heartbeat_s = now + self.plan.timeouts.heartbeat_s
            actions += self._show_life(now)
        leaderless = self.lease.lost
        if leaderless and (self.lease.expired(now) or not leaders.possible_leaders(self)):
            reason = f"the leader {self.leader} was lost, and there is no other one"
            return [*actions, *self.leave(reason, leaderless=True)]
        if self.drain_until_s is not None and now >= self.drain_until_s:
            why = "left without waiting for the step: the drain time is over"
            return [*actions, *leaving.leave_now(self, why)]
        if self.hops is not None and self.hops.due_s <= now:
            actions += self._say(self.hops.tick(now), now)
        if self.flows is not None:
            actions += self.counter.sent(self.flows.tick(now))
        if self.survey is not None:
            actions += self.counter.sent(surveys.tick(self, now))
        return actions

    def _say(self, actions: list[Action], now: float) -> list[Action]:
        return self.counter.sent(self.relays.around(actions, now)) if actions else actions

    def _show_life(self, now: float) -> list[Action]:
        self.lease.tick(now)
        # While orphans are subtracted, the parts of a ballot that come meanwhile are not sent again.
        actions = self._early.give_up(now) if self.unsettled is None else []
        queued, held = (self.hops.queued, self.hops.admission.unfinished) if self.hops is not None else (0, 0)
        beat = Heartbeat(queued, held, self.version, done=self.done, awaits=ballots.awaited(self), epoch=self.epoch)
        # Without a leader it shows which candidates are dead too: what is sent to them is lost.
        recipients = leaders.possible_leaders(self) if self.lease.lost else [self.leader]
        actions += self.counter.sent([Send(process, beat) for process in recipients])
        hops = self.hops if self.settings.relays else None
        if hops is not None and (rates := hops.dispatcher.link_rates.report(self.elements)) is not None:
            actions += self.counter.sent([Send(process, rates) for process in (self.leader, *self.relays.near)])
        return actions

    # --- what others say ----------------------------------------------------------------------------------------------

    def _received(self, event: Received, now: float, by: ProcessId | None = None) -> list[Action]:
        """Handle a message that passed the checks. by: the peer that relayed it for its sender."""
        message, leader = event.message, self.lease.leader
        if event.sender == leader:
            self.lease.renew(now)
        if self.epoch_view is not None and self.epoch_view.suspects:
            self.epoch_view.suspects.pop(event.sender, None)
        if isinstance(message, RelayedTensor) and message.origin != self.leader and self.phase is not PeerPhase.GONE:
            return self._relayed(event, message, now)
        if isinstance(message, Probe | Probed) and message.epoch == NO_EPOCH and self.phase is not PeerPhase.GONE:
            return surveys.on_probe(self, event, now)
        inbound = INBOUND.get(type(message))
        if inbound is None or self.phase is PeerPhase.GONE:
            return [Count("messages_ignored", type(message).__name__), *release(event.bodies)]
        if inbound.scope is Scope.LEADER:
            if event.sender != leader:
                return leaders.on_order_of_another(self, event.sender, message)
            begun = self._begin_update(event, now)
            if self._updates and self._follows(message):
                self._orders.append(event)
                return begun
            if begun:  # to join again: it cannot make that update
                return begun
        elif self._is_early(inbound, message, event.sender):
            return self._early.keep(event, now)
        elif self._is_void(inbound, event):
            return release(event.bodies)
        elif (wrong := misplaced(self, event.sender, message, inbound.places)) is not None:
            return refusing.refuse(self, replace(event, sender=by or event.sender), wrong, now)
        return inbound.handle(self, event, now)

    def _begin_update(self, event: Received, now: float) -> list[Action]:
        """Make the update of the commit that an OpenStep brings, unless it is made already."""
        opened, view = event.message, self.epoch_view
        commit = opened.commit if isinstance(opened, OpenStep | RosterDelta) else None
        if commit is None or view is None or view.commit is not None or commit.epoch != self.epoch or view.abandoned:
            return []
        return ballots.on_commit(self, replace(event, message=commit), now)

    @property
    def _updates(self) -> bool:
        """Whether the update of a commit is being made."""
        view = self.epoch_view
        return self.hops is not None and view is not None and view.commit is not None and not view.applied

    def _follows(self, message: Message) -> bool:
        """Whether an order is to be done after the update at hand: a step that is opened, and what comes after it."""
        return isinstance(message, OpenStep | RosterDelta) or (bool(self._orders) and not isinstance(message, PARTING))

    def _obey(self, now: float) -> list[Action]:
        """Do what the leader has ordered meanwhile; another one, elected since, tells what it has to tell itself."""
        orders, self._orders = self._orders, []
        actions: list[Action] = []
        for event in orders:
            if event.sender != self.leader or self.phase is PeerPhase.GONE:
                continue
            actions += self._blaming(event, lambda event: INBOUND[type(event.message)].handle(self, event, now))
        return actions

    def _blaming(self, event: Received, handle: Callable[[Received], list[Action]]) -> list[Action]:
        """Handle what was kept until now. What that raises its sender has caused, not that of the event at hand."""
        try:
            return handle(event)
        except Exception as error:
            raise BlamedError(event.sender, type(event.message).__name__) from error

    def _relayed(self, event: Received, message: RelayedTensor, now: float) -> list[Action]:
        """Take a tensor that another peer has relayed, as from its origin."""
        inner = message.forward or message.backward
        stranger = not self._named(event.sender)
        early = inner is not None and self._is_early(INBOUND[type(inner)], inner, message.origin)
        if inner is None or (stranger and not early):
            return release(event.bodies)
        if early:  # whole, since the peer that relayed it answers for it then too
            return self._early.keep(event, now)
        return self._received(replace(event, sender=message.origin, message=inner), now, by=event.sender)

    def _is_early(self, inbound: Inbound, message: Message, sender: ProcessId) -> bool:
        """Peers' first messages may arrive before the leader's OpenStep or Prepare, which use another connection.

        So may those of a peer that comes in amid the step, before MemberEntered.
        """
        about: Any = message
        match inbound.scope:
            case Scope.HOP:
                epoch = about.microbatch.epoch
                return self._may_enter(sender) if self.takes(epoch) else bool(epoch > self.epoch)
            case Scope.BALLOT:
                return bool((about.epoch, about.ballot) > (self.epoch, self.begun))
            case Scope.LINK:
                return self._may_enter(sender) if about.epoch == self.epoch else bool(about.epoch > self.epoch)
        return False

    def _may_enter(self, sender: ProcessId) -> bool:
        """Return whether a process takes no part in the current epoch, and may yet: it has not died in it."""
        view = self.epoch_view
        return view is not None and not view.takes_part(sender) and sender not in view.gone

    def _is_void(self, inbound: Inbound, event: Received) -> bool:
        """Return whether a message belongs to another epoch, or its sender or this peer does not take part."""
        message: Any = event.message
        match inbound.scope:
            case Scope.RUN:
                return False
            case Scope.HOP:
                epoch = message.microbatch.epoch
            case Scope.EPOCH:
                epoch = self.epoch
            case _:
                epoch = message.epoch
        current = epoch == self.epoch or (inbound.scope is Scope.HOP and self.takes(epoch))
        if not current or self.hops is None:
            return True
        if inbound.scope is Scope.BALLOT:
            return False  # the ballot's groups say which members may send: newcomers are not in the roster yet
        return not (self._named(event.sender) and self._named(self.me))

    def _named(self, process: ProcessId) -> bool:
        """Return whether a process takes part in the current epoch."""
        return self.epoch_view is not None and self.epoch_view.takes_part(process)

    @property
    def _known(self) -> tuple[Epoch, int, bool, int]:
        """The epoch and ballot at hand, whether the next epoch has begun, and how many came in: the rest is early."""
        ahead = self.hops is not None and self.hops.ahead is not None
        return self.epoch, self.begun, ahead, len(self.epoch_view.entered) if self.epoch_view is not None else 0

    def _replay_early(self, now: float) -> list[Action]:
        """Handle what is not too early any more."""

        def is_early(event: Received) -> bool:
            inbound = INBOUND.get(type(event.message))
            return inbound is not None and self._is_early(inbound, event.message, event.sender)

        actions: list[Action] = []
        for event in self._early.due(is_early):
            actions += self._blaming(event, lambda event: self._received(event, now))
        return actions

    @property
    def early(self) -> list[Received]:
        """What has come of an epoch or a ballot that was not heard of yet."""
        return self._early.events


def _nothing(peer: PeerState, event: Progressed, now: float) -> list[Action]:
    return []


def _on_summarized(peer: PeerState, event: Summarized, now: float) -> list[Action]:
    return [] if peer.lease.lost else [Send(peer.leader, event.summary)]


_LOCAL: dict[type, Callable[[PeerState, Any, float], list[Action]]] = {
    Lost: leaders.on_lost,
    Mishandled: refusing.on_mishandled,
    DrainAsked: leaving.on_drain_asked,
    StateLoaded: stages.on_state_loaded,
    StateNotLoaded: stages.on_state_not_loaded,
    StateStored: leaving.on_state_stored,
    StageWritten: stages.on_stage_written,
    CopiesChanged: stages.on_copies_changed,
    ForwardComputed: microbatches.on_computed,
    LossComputed: microbatches.on_computed,
    BackwardComputed: microbatches.on_computed,
    InputGradientComputed: microbatches.on_computed,
    ComputeFailed: microbatches.on_compute_failed,
    Overflowed: microbatches.on_overflowed,
    ComputedNotFinite: microbatches.on_not_finite,
    Replayed: ballots.on_replayed,
    PieceReduced: ballots.on_piece_reduced,
    PieceFailed: ballots.on_piece_failed,
    Sealed: ballots.on_sealed,
    Applied: ballots.on_applied,
    StateHashed: ballots.on_state_hashed,
    StateDamaged: ballots.on_state_damaged,
    Progressed: _nothing,
    Summarized: _on_summarized,
}
_WORK = frozenset(
    (
        ForwardComputed,
        InputGradientComputed,
        LossComputed,
        BackwardComputed,
        Replayed,
        PieceReduced,
        Sealed,
        Applied,
        StateLoaded,
        Progressed,
    )
)
