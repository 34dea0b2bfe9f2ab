"""The leader's machine: its events and its deadlines. The decisions are in leading/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from swarmflow.core.commit import ahead
from swarmflow.core.commit.announcing import announce
from swarmflow.core.commit.step import AboutStep, Step, received
from swarmflow.core.commit.step_phase import BEFORE_BALLOT, OVER, StepPhase
from swarmflow.core.commit.step_summary import summary, waits_for
from swarmflow.core.durability.doubts import doubt
from swarmflow.core.election.candidacy import Takeover, makes
from swarmflow.core.machines.leading import (
    ballots,
    between_steps,
    certifying,
    custody,
    departures,
    going_ahead,
    joining,
    judging,
    leaving,
    opening,
    planning,
    plausibility,
    progress,
    roots,
    saving,
    surveys,
)
from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord, are_uneven
from swarmflow.core.protocol.actions import Action, Forget, Log, Send
from swarmflow.core.protocol.events import (
    CheckpointWritten,
    DiskChanged,
    Event,
    Lost,
    Mishandled,
    Progressed,
    Received,
    Rival,
    SaveAsked,
    StagesPlanned,
    Tick,
    Validated,
)
from swarmflow.core.protocol.messages import (
    CopiesHeld,
    Done,
    Drain,
    ElectionReport,
    Evicted,
    Heartbeat,
    Join,
    LeaderHeartbeat,
    Left,
    LinkGains,
    LinkRateReport,
    LoadFailed,
    Message,
    NotFinite,
    PeerSummary,
    Ready,
    SnapshotTaken,
    StateRoot,
    Suspect,
)
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId, Roster
from swarmflow.core.routing.link_rates import REPORTED_MAX, plausible_rates


@dataclass(slots=True)
class Leader(LeaderState):
    """Everything the leading trainer decides. Drive it with handle(event, now), and again at next_deadline()."""

    _alone_s: float | None = field(init=False, default=None)
    _watched: Roster | None = field(init=False, default=None)
    _next_beat_s: float = field(init=False, default=0.0)
    _awake_s: float | None = field(init=False, default=None)

    # --- doors --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin to lead."""
        self.membership.enter(Join("trainer", self.settings.software, self.settings.run, self.me), -1, now)
        if self.version >= self.settings.steps:
            self.parts_s = now + self.timeouts.copies_s
            return saving.finish(self)
        opening.seek(self, now, self.recovery.former)
        return opening.try_open(self, now)

    def take_over(self, takeover: Takeover, now: float, elected: bool = True) -> list[Action]:
        """Go on from what a former leader left; the processes in it follow this one already.

        elected: by a majority. Else others may have elected somebody too, and this leader begins a lineage.
        """
        step = takeover.step
        self.lineage.take_over(step.open_step)
        self.generation, self.exponent = step.epoch.generation, step.open_step.exponent
        self.certified = None  # what is on the own disk may be of another history
        doubt(self.safe, self.version)
        if takeover.doubtful:
            self.lineage.rename(self.settings.new_lineage())
        text = f"leading from here on, in term {self.term}: {summary(step)}"
        actions: list[Action] = [Log("info", text, EventKind.LEADER, self.me.process)]
        actions += [Send(process, Evicted("it takes no part in the step any more")) for process in takeover.expelled]
        for report in takeover.reports.values():
            actions += self._take_in(report, step, now)
        for known in self.membership.loading():
            reason = "it was loading when the former leader was lost"
            actions += grant(self, known, known.member.stage, reason, follows=elected)
        self.step, self.ahead, self.unconfirmed = step, takeover.ahead, step.open_step.commit
        self.move(LeaderPhase.RUNNING)
        actions += [*step.entered(), *step.commit_again()]
        if self.unconfirmed is not None:
            result = replace(self.unconfirmed.result, term=self.term)
            actions += [Send(entry.process, result) for entry in self.membership.trainers()]
        if step.phase is StepPhase.PREPARED:
            actions += step.ask_trainers(self.lineage.committed_followers)
            self.ballots.due_s = now + self.timeouts.ballot_s
        why = "not heard of after the former leader was lost"
        for process in takeover.gone:
            # Forgotten first: it may yet live, and then it has to hear that it is gone.
            actions += [Forget(process), *going_ahead.lose_member(self, process, why, taken_over=True)]
            actions += departures.tell_loading(self, process, why)
        for process, what in takeover.convicted.items():
            if process in self.membership.known:
                actions += custody.convict(self, process, what, now)
        for unshared in (step, self.ahead):
            if unshared is not None and unshared.phase in BEFORE_BALLOT:
                actions += ahead.reassigned(unshared)
        for accuser, accused in takeover.suspects:
            if accused in self.membership.known:
                self.faults.suspicions.accuse(accuser, accused, "lost while nobody led", now)
        if not elected and step.phase in (StepPhase.COMMITTING, StepPhase.COMMITTED):
            self.lineage.fork(self.settings.new_lineage())  # from the next step on
        elif not elected:
            actions += opening.fork(self, now)
        return actions + certifying.see(self, now) + self._due(now)

    def _take_in(self, report: ElectionReport, step: Step, now: float) -> list[Action]:
        """Record a process that follows this leader from now on."""
        known = self.membership.enter(report.join, report.member.stage, now)
        known.member, known.version = report.member, report.version
        if report.draining and known.process == self.me.process:  # asked to go before it led: as a leader stops
            self.stopping = True
        elif report.draining:
            known.draining = True
            self.membership.changed(known)
        if report.root:
            certifying.record(self, known, report.version, report.root)
        if known.role == "peer":
            self.membership.mark(known, MemberPhase.READY if report.ready else MemberPhase.LOADING)
        self.safe.copies.record(known.member, report.join.copies)
        if report.opened.epoch >= step.epoch:
            return []
        commit, named = step.open_step.commit, known.process in step.open_step.roster.id_set
        if commit is None or not makes(report, commit):
            return announce(step.open_step, (known.member,), self.plan.shared) if named else []
        known.version = step.epoch.step  # as soon as it hears of the commit
        return announce(step.open_step, (known.member,), self.plan.shared) if named else [Send(known.process, commit)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        if isinstance(event, Received) and isinstance(event.message, Heartbeat) and now < self.next_deadline():
            return self._received(event, now)  # nothing waits for a sign of life, and most messages are that
        actions: list[Action] = []
        match event:
            case Received():
                actions = self._received(event, now)
            case Lost():
                actions = departures.gone(self, event.process, f"its connection broke ({event.reason})", now)
            case Mishandled():
                reason = f"a message of {event.process} {event.reason}"
                actions = self.step.void(reason) if self.step is not None else []
                actions += plausibility.evict(self, event.process, None, event.reason, now)
            case CheckpointWritten():
                actions = between_steps.on_checkpoint_written(self, event, now)
            case DiskChanged():
                actions = between_steps.on_disk_changed(self, event, now)
            case Validated():
                actions = between_steps.on_validated(self, event, now)
            case StagesPlanned():
                actions = planning.on_planned(self, event, now)
            case SaveAsked():
                return saving.on_save_asked(self, event, now)
            case Progressed():
                return progress.on_progressed(self, event, now)
            case Rival():
                return saving.on_rival(self, event)
            case Tick():
                pass
            case _:
                raise TypeError(f"a leader has no use for {type(event).__name__}")
        return actions + self._due(now)

    def refused(self, sender: ProcessId, message: Message, what: str, now: float) -> list[Action]:
        """Refuse a message that cannot be true, and put its sender out; from the second time on it is kept out."""
        return [*plausibility.refuse(self, sender, message, what, now), *self._due(now)]

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        weighed_s = self.faults.suspicions.next_deadline()
        due_s = self._step_due_s()
        return due_s if weighed_s is None else min(due_s, weighed_s)

    def _step_due_s(self) -> float:
        if self.phase is LeaderPhase.RUNNING and self.step is not None:
            if self.ballots.complete_s is not None and self.step.phase is StepPhase.COMPLETE:
                return min(self._next_beat_s, self.ballots.held_until_s)
            waits = self.step.phase is StepPhase.PREPARED and not self.safe.holds_commit(self.version)
            if self.step.phase is StepPhase.PREPARING or waits:
                return min(self._next_beat_s, self.ballots.due_s)
        return self._next_beat_s

    def stop(self) -> list[Action]:
        """Keep the weights as they are now, then exit: a person wants this trainer to go."""
        return saving.stop(self)

    @property
    def waiting_for(self) -> str:
        """What the run waits for, as a person can act on it."""
        doing = self.waits_for or str(self.phase)
        if self.phase is LeaderPhase.RUNNING and self.step is not None:
            doing = waits_for(self.step)
        still = progress.standing_still(self)
        return f"{doing}; {still}" if still else doing

    # --- time ---------------------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        roster = self.step.roster if self.step is not None else None
        watch = roster is not self._watched
        if now >= self._next_beat_s:
            watch = True
            if self._awake_s is not None and now - self._awake_s > self.timeouts.silence_s / 2:
                self._slept(now - self._awake_s, now)
            self._next_beat_s, self._awake_s = now + self.timeouts.heartbeat_s, now
            beat = LeaderHeartbeat(self.term, self.epoch)
            actions += [Send(process, beat) for process in self.membership.known if process != self.me.process]
            actions += progress.see(self, now) + certifying.see(self, now) + saving.see(self, now)
            actions += planning.see(self, now)
            for process in self.membership.silent(now, self.timeouts.silence_s, self.me.process):
                actions += departures.gone(self, process, f"silent for more than {self.timeouts.silence_s:.0f} s", now)
            actions += joining.readmit(self, now)
            searches = self.recovery.restoring is not None
            awaits = searches or self._alone_s is not None or self.recovery.absent or self.safe.landing >= 0
            actions += opening.try_open(self, now) if self.phase is LeaderPhase.GATHERING and awaits else []
        if watch:
            self._watched = roster
            actions += self._watch_majority(now)
        return actions + ballots.weigh(self, now) + self._advance(now)

    def _slept(self, seconds: float, now: float) -> None:
        """Do not count the time in which this process slept against the members: it received nothing."""
        for known in self.membership.known.values():
            self.hear(known, now)
        progress.slept(self, seconds)
        if self._alone_s is not None:
            self._alone_s += seconds

    def _advance(self, now: float) -> list[Action]:
        """Go on where something other than a message was awaited."""
        if self.parting:
            return saving.part(self, now)
        if self.phase is LeaderPhase.FINISHED and self.safe.due_again(now):
            self.move(LeaderPhase.GATHERING)
            return opening.try_open(self, now)
        if self.phase is LeaderPhase.GATHERING and self.recovery.restoring is not None:
            return []  # each second, and when a process comes, goes or reports other copies: it looks through all
        if self.phase is LeaderPhase.GATHERING and self.safe.trouble:
            return saving.save(self) if self.safe.due_again(now) else opening.try_open(self, now)
        if self.phase is LeaderPhase.UNMEASURED:
            return between_steps.measure(self, now)
        return self._advance_step(self.step, now) if self.phase is LeaderPhase.RUNNING and self.step is not None else []

    def _advance_step(self, step: Step, now: float) -> list[Action]:
        if step.phase is StepPhase.FAILED:
            out = departures.bar_differing(self, step, now)
            out += judging.judge(self, step, now)
            if self.fate:
                return out
            return [*out, *opening.restart(self, now), *leaving.let_go(self)]  # without who wants to leave
        if step.phase is StepPhase.COMMITTED:
            closed = between_steps.close(self, step, now)
            begun = self.step is not None and self.step.phase is StepPhase.COMPLETE  # ahead, and done by now
            return closed + self._advance(now) if begun else closed
        if step.phase is StepPhase.WORKING:
            self.ballots.complete_s = None  # a death may have taken away what was done
        if step.phase is StepPhase.COMPLETE:
            return ballots.prepare(self, step, now) if ballots.held_long_enough(self, step, now) else []
        if step.phase is StepPhase.PREPARING and now >= self.ballots.due_s:
            return ballots.late(self, step, now)
        if step.phase is not StepPhase.PREPARED or self.safe.holds_commit(self.version):
            return []
        if not step.ballot.may_commit(step.members.quorum, self.lineage.committed_followers):
            # What was to promise may be lost. Where too few are left for it, the fork comes first.
            return ballots.ask_again(self, step, now) if now >= self.ballots.due_s else []
        self.ballots.complete_s = None
        self.ballots.in_vain = 0
        awaited = not going_ahead.follows_at_once(self, step, now)
        orders = step.commit(now, roots.loaded_stages(self), roots.begin(self, self.version + 1), awaited)
        if awaited:
            return [*orders]
        closed = between_steps.close(self, step, now)
        opened = self.step.roster.id_set if self.step is not None else frozenset()
        return [*(send for send in orders if send.to not in opened), *closed]  # the OpenStep tells the others of it

    def _watch_majority(self, now: float) -> list[Action]:
        """Go on without a majority after a while: the others may have another leader by then."""
        step = self.step
        alone = self.phase is LeaderPhase.GATHERING and not self.lineage.has_majority(self.membership.known.keys())
        if self.phase is LeaderPhase.RUNNING and step is not None and step.phase not in OVER:
            alone = not step.members.has_majority(self.lineage.committed_followers)
        if not alone:
            self._alone_s = None
            return []
        if self._alone_s is None:
            self._alone_s = now
            wait = f"{self.timeouts.majority_s:.0f} s"
            text = f"most of the swarm is gone: nothing is committed; going on without it in {wait}"
            return [Log("warning", text, EventKind.WAITING)]
        if now - self._alone_s < self.timeouts.majority_s:
            return []
        self._alone_s = None
        return opening.fork(self, now)

    # --- what others say ----------------------------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        if isinstance(message, Join):
            return joining.on_join(self, sender, message, now)
        if isinstance(message, Left):
            return departures.on_left(self, sender, message, now)
        known = self.membership.known.get(sender)
        if known is None:
            waits = isinstance(message, Heartbeat) and self.faults.pauses.left(sender.name, now)[0] > 0
            return [] if waits or isinstance(message, Suspect) else [Send(sender, Evicted("not known to the leader"))]
        if (wrong := plausibility.implausible(self, known, message)) is not None:
            return self.refused(sender, message, wrong, now)
        if (blamed := custody.wrongly_handed(self, sender, message)) is not None:
            return custody.refuse(self, sender, message, blamed, now)
        self.hear(known, now)
        handler = _HANDLERS.get(type(message))
        return handler(self, known, message, now) if handler is not None else []


def _on_heartbeat(leader: LeaderState, known: MemberRecord, message: Heartbeat, now: float) -> list[Action]:
    known.load = message
    return []


def _on_summary(leader: LeaderState, known: MemberRecord, message: PeerSummary, now: float) -> list[Action]:
    known.summary = message
    return []


def _on_link_rates(leader: LeaderState, known: MemberRecord, message: LinkRateReport, now: float) -> list[Action]:
    known.rates = LinkRateReport(message.elements[:REPORTED_MAX], message.rates[:REPORTED_MAX])
    rates = tuple(plausible_rates(message).values())
    known.measured_rate = max((known.measured_rate, *rates))
    known.uneven = are_uneven(rates, known.stated_rate)
    leader.membership.changed(known)
    return []


def _on_about_step(leader: LeaderState, known: MemberRecord, message: AboutStep, now: float) -> list[Action]:
    if leader.ahead is not None and isinstance(message, Done) and message.microbatch.epoch == leader.ahead.epoch:
        return leader.ahead.done(known.process, message)
    return received(leader.step, known.process, message) if leader.step is not None else []


_HANDLERS: dict[type, Callable[[LeaderState, MemberRecord, Any, float], list[Action]]] = {
    Ready: certifying.on_ready,
    SnapshotTaken: saving.on_snapshot_taken,
    CopiesHeld: joining.on_copies_held,
    StateRoot: certifying.on_state_root,
    LoadFailed: joining.on_load_failed,
    Drain: departures.on_drain,
    Suspect: departures.on_suspect,
    Heartbeat: _on_heartbeat,
    PeerSummary: _on_summary,
    LinkRateReport: _on_link_rates,
    LinkGains: surveys.on_link_gains,
    **dict.fromkeys(get_args(AboutStep), _on_about_step),
    NotFinite: judging.on_not_finite,
}
