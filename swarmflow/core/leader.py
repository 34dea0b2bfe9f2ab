"""The leader's machine: admits processes, opens steps, commits them, and decides what happens at a step's edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, get_args

from swarmflow.core.actions import Action, Connect, Count, Exit, Forget, Log, Send, Validate
from swarmflow.core.copies import Copies
from swarmflow.core.endings import given_up, goodbye
from swarmflow.core.events import CheckpointWritten, Event, Lost, Received, Rival, Tick, Validated
from swarmflow.core.membership import Known, Membership
from swarmflow.core.messages import (
    Beat,
    Drain,
    Evicted,
    Gone,
    Granted,
    Heartbeat,
    Join,
    Kept,
    LoadFailed,
    Open,
    Ready,
    Refused,
    Released,
    StepResult,
    Suspect,
    Welcome,
)  # fmt: skip
from swarmflow.core.restoring import Restoring
from swarmflow.core.rules import LeaderSettings, refusal
from swarmflow.core.safekeeping import Safekeeping
from swarmflow.core.step import AboutStep, Step
from swarmflow.core.succession import Estate
from swarmflow.core.types import EXPONENT, Epoch, Member, Plan, ProcessId

EXPONENT_STEP = 16
EXPONENT_MIN = -76  # what does not fit into it is larger than any number in fp32


@dataclass(slots=True)
class Leader:
    """Everything the leading trainer decides.

    me: itself, as a member of the roster. version: the run's. on_disk: the newest version that is complete on disk.
    digests: of its files. known: the newest version that was on disk, here or elsewhere, as far as the own disk tells.
    lineage: who began the history that this leader goes on with; a leader that starts from disk begins one. restoring:
    which version to go on from is not decided yet.
    """

    me: Member
    plan: Plan
    settings: LeaderSettings
    term: int
    version: int
    on_disk: InitVar[int]
    digests: InitVar[tuple[str, ...]] = ()
    known: InitVar[int] = 0
    generation: int = 0
    phase: str = "gathering"  # gathering, running, validating, saving, finished
    step: Step | None = None
    exponent: int = EXPONENT
    lineage: ProcessId = field(init=False)
    membership: Membership = field(init=False)
    safe: Safekeeping = field(init=False)
    restoring: Restoring | None = None
    last: StepResult | None = None
    _complete_s: float | None = None
    _held_until_s: float = 0.0
    _alone_s: float | None = None
    _stopping: bool = False
    _waiting_for: str = ""
    _next_beat_s: float = 0.0
    _awake_s: float | None = None
    _ballot_due_s: float = 0.0
    _ballots: int = 0

    def __post_init__(self, on_disk: int, digests: tuple[str, ...], known: int) -> None:
        self.lineage = self.me.process
        self.membership = Membership(self.plan)
        self.safe = Safekeeping(on_disk, self.settings.silence_s, Copies(self.plan.stages), known, digests)

    # --- doors --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin to lead."""
        self.membership.enter(Join("trainer", self.settings.software, self.settings.run, self.me), -1, now)
        if self.version >= self.settings.steps:
            return self._finish()
        self._seek(now)
        return self._try_open(now)

    def take_over(self, estate: Estate, now: float) -> list[Action]:
        """Go on from what a former leader left; everybody in it follows this one already."""
        step = estate.step
        self.lineage, self.generation, self.exponent = step.said.lineage, step.epoch.generation, step.said.exponent
        actions: list[Action] = [Log("info", f"leading from here on, in term {self.term}: {step.summary()}")]
        actions += [Send(process, Evicted("the former leader took it for dead")) for process in estate.expelled]
        for report in estate.reports.values():
            known = self.membership.enter(report.join, report.member.stage, now)
            known.member, known.version, known.draining = report.member, report.version, report.draining
            known.phase = "ready" if report.ready or known.role == "trainer" else "loading"
            self.safe.copies.says(known.member, report.join.copies)
            if report.opened.epoch < step.epoch and known.process in step.said.roster.processes():
                actions.append(Send(known.process, step.said))
        for known in self.membership.peers():
            if known.phase == "loading":
                actions += self._grant(known, known.member.stage, "it was loading when the former leader was lost")
        self.step, self.phase = step, "running"
        if step.phase == "prepared":
            actions += step.commit(now)
        actions += step.commit_again()
        why = "not heard of after the former leader was lost"
        for process in estate.gone:
            # Forgotten first: it may yet live, and then it has to hear that it is gone.
            actions += [Forget(process), *step.gone(process, why, taken_over=True), *self._tell_loading(process, why)]
        for process in estate.suspects:
            actions += self._gone(process, "lost while nobody led", now)
        return actions + self._due(now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
        if isinstance(event, Received) and isinstance(event.message, Heartbeat) and now < self.next_deadline():
            return self._received(event, now)  # nothing waits for a sign of life, and most messages are that
        actions: list[Action] = []
        match event:
            case Received():
                actions = self._received(event, now)
            case Lost():
                actions = self._gone(event.process, f"its connection broke ({event.reason})", now)
            case CheckpointWritten():
                actions = self._checkpoint_written(event, now)
            case Validated():
                actions = self._validated(event, now)
            case Rival():
                return self._rival(event)
            case Tick():
                pass
            case _:
                raise TypeError(f"a leader has no use for {type(event).__name__}")
        return actions + self._due(now)

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        if self.phase == "running" and self.step is not None:
            if self._complete_s is not None and self.step.phase == "complete":
                return min(self._next_beat_s, self._held_until_s)
            if self.step.phase == "preparing":
                return min(self._next_beat_s, self._ballot_due_s)
        return self._next_beat_s

    def stop(self) -> list[Action]:
        """The person wants this trainer to go: keep the weights as they are now, then exit."""
        self._stopping = True
        if self.phase == "finished":
            return [Log("info", "the output is being written; leaving after that")]
        if self.phase == "validating" or (self.step is not None and self.step.phase == "committing"):
            return [Log("info", "stopping after this step")]  # its update is made: its result must not be lost
        return self._stop_now()

    def _stop_now(self) -> list[Action]:
        if self.safe.durable >= self.version or not any(self.membership.peers()):
            return [Exit(f"stopped at version {self.version}; start it again to go on")]
        self.phase = "saving"
        log = Log("info", f"stopping: writing version {self.version} first")
        return [log] if self.safe.saving == self.version else [log, *self.save()]

    @property
    def waiting_for(self) -> str:
        """What the run waits for, in words a person can act on."""
        if self.phase == "running" and self.step is not None:
            return self.step.waits_for()
        return self._waiting_for or self.phase

    # --- time ---------------------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self._next_beat_s:
            if self._awake_s is not None and now - self._awake_s > self.settings.silence_s / 2:
                self.membership.hear_all(now)  # it was this process that slept: nobody could be heard
            self._next_beat_s, self._awake_s = now + self.settings.heartbeat_s, now
            epoch = self._epoch()
            beat = Beat(self.term, epoch)
            actions += [Send(process, beat) for process in self.membership.known if process != self.me.process]
            for process in self.membership.silent(now, self.settings.silence_s, self.me.process):
                actions += self._gone(process, f"silent for more than {self.settings.silence_s:.0f} s", now)
        return actions + self._advance(now)

    def _advance(self, now: float) -> list[Action]:
        """Move the step on where something other than a message was awaited."""
        step = self.step
        if self.phase == "finished" and self.safe.due_again(now):
            self.phase = "gathering"
            return self._try_open(now)
        if self.phase == "gathering" and self.restoring is not None:
            return self._restore(self.restoring, now)
        if self.phase != "running" or step is None:
            return []
        if step.phase == "failed":
            return self._restart(now)
        if step.phase == "committed":
            return self._edge(step, now)
        if step.phase == "complete":
            if self._complete_s is None:
                self._complete_s = now
            tries = [entry.tries for entry in self.membership.loading(self.version)]
            self._held_until_s = self._complete_s + max(map(self.settings.hold_s, tries), default=0.0)
            if now < self._held_until_s:
                return []
            return self._prepare(step, now)
        if step.phase == "preparing" and now >= self._ballot_due_s:
            self._ballots += 1
            late = f"ballot {step.ballot} of step {self.version} is begun anew: {step.waits_for()} does not end"
            return [Log("warning", late), Count("ballots_again"), *self._prepare(step, now)]
        if step.phase != "prepared" or self.safe.saving == self.version:
            return []
        if not step.has_majority():
            return self._without_majority(now)
        self._complete_s = self._alone_s = None
        return step.commit(now)

    def _prepare(self, step: Step, now: float) -> list[Action]:
        """Begin a ballot, with those who are ready by now. Each that took too long has those after it take longer."""
        self._ballot_due_s = now + self.settings.ballot_s * 2.0**self._ballots
        ready, present = self.membership.roster(self.version).members(), step.roster.everybody
        return step.prepare(tuple(member for member in ready if member.process not in present))

    def _without_majority(self, now: float) -> list[Action]:
        """Most of those whom the Open named are gone, a trainer among them: they may have another leader by now."""
        if self._alone_s is None:
            self._alone_s = now
            return [Log("warning", "most of the swarm is gone; waiting for it before this step is committed")]
        if now - self._alone_s < self.settings.quorum_timeout_s:
            return []
        self._alone_s, self.lineage = None, self.me.process
        return [
            Log("warning", "most of the swarm stayed away: going on without it, as a lineage of its own"),
            Count("lineages"),
            *self._restart(now),
        ]

    # --- a step's edge ------------------------------------------------------------------------------------------------

    def _edge(self, step: Step, now: float) -> list[Action]:
        """A step is committed everywhere: count it, let go who wants to go, and go on."""
        actions: list[Action] = []
        for process in step.strays():
            actions += [Count("resynchronisations"), *self._evict(process, "its parameters differ from its stage's")]
        self.version += 1
        for member in step.roster.members():
            if (known := self.membership.known.get(member.process)) is not None:
                known.version = self.version
        self.last, self.step, self.exponent = step.result, None, EXPONENT
        for entry in self.membership.peers():
            if entry.phase in ("loading", "ready") and entry.version != self.version:
                entry.tries += 1
                actions += self._grant(entry, entry.member.stage, "it came too late for this step")
        every = self.settings.validate_every
        if every and self.version % every == 0:
            return actions + self._measure(now)
        return actions + self._next(now)

    def _measure(self, now: float) -> list[Action]:
        """Have the validation loss measured on those who are there; a version that has lost a stage has none."""
        if not all(self.membership.ready(stage, self.version) for stage in range(self.plan.stages)):
            return self._next(now)
        self.phase = "validating"
        return [Validate(self.version, self.membership.roster(self.version))]

    def _validated(self, event: Validated, now: float) -> list[Action]:
        if self.phase != "validating" or event.version != self.version or self.last is None:
            return []
        self.last = replace(self.last, validation_loss=event.loss)
        return self._next(now)

    def _next(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if self.last is not None:
            trainers = [e.process for e in self.membership.known.values() if e.role == "trainer"]
            actions += [Send(process, self.last) for process in trainers]
        if self._stopping:
            return actions + self._stop_now()
        if self.version >= self.settings.steps:
            return actions + self._try_open(now)
        every = self.settings.checkpoint_every
        if every and self.version % every == 0:
            actions += self.save()
        return actions + self._spread() + self._let_go() + self._rebalance(now) + self._try_open(now)

    def _rebalance(self, now: float) -> list[Action]:
        """Between two steps one peer may move to where it is needed more; it is missed by no step."""
        move = self.membership.better_placed(self.version, now)
        if move is None:
            return []
        entry = self.membership.known[move.process]
        entry.settled_s = self.membership.moved_s = now
        return [Count("rebalances"), *self._grant(entry, move.stage, f"rebalanced, {move.reason}")]

    def _let_go(self) -> list[Action]:
        """Release who is draining, unless its stage would be lost: then its state is brought to safety first."""
        actions: list[Action] = []
        serving = self.step.roster.everybody if self.step is not None else ()
        if self.phase in ("finished", "validating"):
            return []  # told to go as soon as the output is written, or the result is known
        for entry in [e for e in self.membership.known.values() if e.draining and e.process not in serving]:
            alone = entry.role == "peer" and not self.membership.ready(entry.member.stage, self.version)
            if alone and self.step is None and self.safe.durable < self.version:
                actions += self.save()
                self.phase = "saving"
                self._waiting_for = f"a copy of stage {entry.member.stage}, whose last peer wants to leave"
                continue
            self._forget(entry.process)
            actions.append(Send(entry.process, Released()))
        return actions

    def save(self, last: bool = False) -> list[Action]:
        """Bring the present version to disk; the commit of the step at hand waits for it. last: and write the model."""
        return self.safe.write(self.version, self.membership.holders(self.version), last)

    def _spread(self) -> list[Action]:
        return self.safe.spread(self.me, self.membership.keepers(self.version)) if self.phase != "finished" else []

    def _checkpoint_written(self, event: CheckpointWritten, now: float) -> list[Action]:
        actions: list[Action] = [self.safe.written(event)]
        if event.ok:
            actions += self.safe.share(self.me, [entry.member for entry in self.membership.trainers()])
            actions += self._spread()
        if self.restoring is not None and self.phase == "gathering":
            if not event.ok:
                self.restoring.failed(now, self.settings.silence_s)
            return actions + self._try_open(now)
        if self._stopping and self.phase == "saving":
            if event.version < self.version:
                return actions + self.save()
            return [*actions, Exit(f"stopped at version {self.version}; start it again to go on", event.ok)]
        if self.phase == "finished":
            if event.version != self.version:
                return actions + self.save(last=True)
            if event.ok:
                return actions + goodbye(self._others(), self.version)
            if not self.safe.try_last_again(now):
                actions.append(Exit(f"the last version could not be written: {event.reason}", ok=False))
        if self.phase == "saving":
            self.phase = "gathering"
            return actions + (self._let_go() if event.ok else []) + self._try_open(now)
        return actions

    def _finish(self) -> list[Action]:
        self.phase, self._waiting_for = "finished", "the output to be written"
        if self.safe.durable == self.version and not self.membership.peers():
            return goodbye(self._others(), self.version)
        return [Log("info", f"all {self.version} steps are committed; writing the model"), *self.save(last=True)]

    def _others(self) -> list[ProcessId]:
        return [process for process in sorted(self.membership.known) if process != self.me.process]

    def _rival(self, event: Rival) -> list[Action]:
        """Two lineages have met: the one with more steps goes on, of equals the one of the greater name."""
        if (event.version, event.leader) <= (self.version, self.me.process) or self.phase == "finished":
            return []
        return given_up(self._others(), self.version, event)

    # --- opening ------------------------------------------------------------------------------------------------------

    def _epoch(self) -> Epoch:
        return Epoch(self.generation, self.version)

    def _try_open(self, now: float) -> list[Action]:
        if self.phase in ("finished", "saving") or self._stopping:
            return []
        self.phase = "gathering"
        if self.restoring is not None:
            return self._restore(self.restoring, now)
        if self._epoch() == Epoch(0, 0) and self.membership.ready_peers() < self.settings.peers_first:
            self._waiting_for = f"{self.settings.peers_first} peers to be ready"
            return []
        empty = [s for s in range(self.plan.stages) if not self.membership.ready(s, self.version)]
        if empty:
            return self._refill(empty, now)
        if self.version >= self.settings.steps:
            return self._finish()
        self._waiting_for = ""
        self.phase = "running"
        roster = self.membership.roster(self.version)
        rate = self.settings.learning_rate(self.version)
        said = Open(self.term, self._epoch(), roster, self.lineage, exponent=self.exponent)
        self.step = Step(self.plan, self.term, said, rate, self.settings.clip, now)
        members = (*roster.members(), *roster.trainers)
        return [Connect(tuple(m for m in members if m.process != self.me.process)), *self.step.open()]

    def _refill(self, empty: list[int], now: float) -> list[Action]:
        """Stages without a ready peer: wait for those that load; move a spare; go back to a version that is on disk."""
        actions: list[Action] = []
        coming = [s for s in empty if any(e.phase == "loading" and e.hopeful for e in self.membership.peers(s))]
        lost = [s for s in empty if s not in coming]
        if self.version != self.safe.durable and lost:
            return self._roll_back(lost, now)
        for stage in lost:
            spare = self.membership.spare(empty)
            if spare is not None:
                actions += self._grant(spare, stage, "nobody is left there")
        reason = self.membership.lack(empty)
        if reason != self._waiting_for:
            self._waiting_for = reason
            actions.append(Log("info", f"waiting for {reason}"))
        return actions

    def _roll_back(self, lost: list[int], now: float) -> list[Action]:
        """Everybody of a stage is gone, and with them the state: all stages go back to the newest version on a disk."""
        text, before = ", ".join(str(stage) for stage in lost), self.version
        self.version, self.step = self.safe.durable, None
        self.safe.went_back()
        self.generation += 1
        self._seek(now)
        opened = self._try_open(now)
        back = f"back from version {before}" + (f" to {self.version}" if self.restoring is None else "")
        return [Log("warning", f"stage {text} has lost everybody: {back}"), Count("rollbacks"), *opened]

    def _seek(self, now: float) -> None:
        """From which version to go on is to be found out; until then nobody loads anything."""
        self.restoring = Restoring(self.safe.known, now, self.settings.copies_wait_s)
        for entry in self.membership.peers():
            entry.phase, entry.grants = "waiting", entry.grants + 1  # what it answers to an earlier grant is void

    def _restore(self, restoring: Restoring, now: float) -> list[Action]:
        """Go on from the newest version that is whole somewhere, or wait for it and say so."""
        decision = restoring.decide(self.safe.durable, self.safe.copies, now)
        actions: list[Action] = []
        if decision.version is None and decision.reason != self._waiting_for:
            self._waiting_for = decision.reason
            actions.append(Log("warning", f"waiting for {decision.reason}"))
        if decision.fetch is not None:
            return actions + self.safe.fetch(decision.fetch)
        if decision.version is None:
            return actions
        self.restoring, self.version, self.safe.known = None, decision.version, restoring.known
        for entry in self.membership.peers():
            actions += self._grant(entry, entry.member.stage, decision.reason)
        return actions + self._try_open(now)

    def _learnt(self, now: float) -> list[Action]:
        """Somebody came with its copies, which may be of a later version than the one that this leader began with."""
        began_here = self.lineage == self.me.process and self.last is None
        begun = self.phase == "running"
        if self.restoring is None and began_here and (begun or self.phase == "gathering"):
            if not self.safe.later(self.version, begun):
                return []
            self.step, self.phase = None, "gathering"
            self.generation += 1
            self._seek(now)
        return self._try_open(now) if self.restoring is not None else []

    def _restart(self, now: float) -> list[Action]:
        overflow = self.step.overflow if self.step is not None else None
        if overflow is not None and (not overflow.finite or self.exponent <= EXPONENT_MIN):
            self.phase = "finished"
            return [Exit(f"step {self.version}: {self.step.failure}" if self.step else "", ok=False)]
        if overflow is not None:
            self.exponent -= EXPONENT_STEP
        self.generation += 1
        self.step = self._complete_s = None
        return self._try_open(now)

    def _grant(self, entry: Known, stage: int, reason: str) -> list[Action]:
        donors = self.membership.donors(stage, self.version, entry.process)
        entry.hopeful = bool(donors) or self.version == self.safe.durable
        if not donors and not (self.version == 0 and self.settings.from_seed):
            donors = (self.me,)
        entry.member = replace(entry.member, stage=stage)
        entry.phase, entry.version, entry.grants = "loading", self.version, entry.grants + 1
        return [
            Connect((entry.member,)),
            Send(entry.process, Granted(self.term, stage, self.version, donors, entry.grants)),
            Log("info", f"peer {entry.process} loads stage {stage}: {reason}"),
        ]

    # --- who comes and goes -------------------------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Action]:
        message, sender = event.message, event.sender
        if isinstance(message, Join):
            return self._join(sender, message, now)
        known = self.membership.known.get(sender)
        if known is None:
            return [] if isinstance(message, Suspect) else [Send(sender, Evicted("not known to the leader"))]
        known.heard_s = now
        handler = _HANDLERS.get(type(message))
        return handler(self, known, message, now) if handler is not None else []

    def _join(self, sender: ProcessId, join: Join, now: float) -> list[Action]:
        reason = refusal(self.settings, self.plan, sender, join)
        if reason is not None:
            return [Connect((join.member,)), Send(sender, Refused(reason)), Log("info", f"refused {sender}: {reason}")]
        known = self.membership.known.get(sender)
        if known is not None:
            known.heard_s = now
            return []
        actions: list[Action] = []
        former = self.membership.namesake(sender)
        if former is not None:
            actions += self._gone(former, "it has started again", now)
        if join.role == "trainer":
            self.membership.enter(join, -1, now)
            self.safe.copies.says(join.member, join.copies)
            log = Log("info", f"trainer {sender} joined")
            return [*actions, Connect((join.member,)), Send(sender, Welcome(self.term)), log, *self._learnt(now)]
        stage, reason = self.membership.place(join.member.stage)
        entry = self.membership.enter(join, stage, now)
        self.safe.copies.says(entry.member, join.copies)
        actions += self._learnt(now)
        if self.restoring is not None:
            return [*actions, Connect((entry.member,)), Log("info", f"peer {sender} waits to serve stage {stage}")]
        return actions if entry.phase == "loading" else [*actions, *self._grant(entry, stage, reason)]

    def _kept(self, known: Known, message: Kept, now: float) -> list[Action]:
        return [*self.safe.copies.kept(known.member, message), *self._learnt(now)]

    def _ready(self, known: Known, message: Ready, now: float) -> list[Action]:
        if message.grant != known.grants or message.stage != known.member.stage or known.phase != "loading":
            return []
        if message.version != self.version:
            known.tries += 1
            return self._grant(known, known.member.stage, f"version {message.version} is out of date")
        known.phase, known.version, known.tries = "ready", message.version, 0
        known.member = replace(known.member, capacity=max(1, message.capacity))
        return self._try_open(now) if self.phase == "gathering" else []

    def _load_failed(self, known: Known, message: LoadFailed, now: float) -> list[Action]:
        if message.grant != known.grants or message.stage != known.member.stage or known.phase != "loading":
            return []
        known.phase = "failed"
        known.tries += message.version != self.version
        actions = self._try_open(now) if self.phase == "gathering" else []
        if known.phase != "failed":
            return actions  # the run went back, which granted a stage to everybody
        stage, reason = self.membership.place(known.wish)
        return [*actions, *self._grant(known, stage, f"{message.reason}; {reason}")]

    def _drain(self, known: Known, message: Drain, now: float) -> list[Action]:
        known.draining = True
        serving = self.step is not None and known.process in self.step.roster.everybody
        if serving and known.process != self.me.process:
            return [Log("info", f"{known.process} leaves after this step")]
        return self._let_go() + (self._try_open(now) if self.phase == "gathering" else [])

    def _heartbeat(self, known: Known, message: Heartbeat, now: float) -> list[Action]:
        known.load = message
        return []

    def _suspect(self, known: Known, message: Suspect, now: float) -> list[Action]:
        return self._gone(message.process, f"{known.process} lost it ({message.reason})", now)

    def _gone(self, process: ProcessId, reason: str, now: float) -> list[Action]:
        if process == self.me.process or not self._forget(process):
            return []
        self.safe.disturbed()
        actions: list[Action] = [
            Log("warning", f"{process} is gone: {reason}"),
            Send(process, Evicted(reason)),
            Forget(process),
            Count("gone"),
            *self._tell_loading(process, reason),
        ]
        if self.step is not None:
            actions += self.step.gone(process, reason)
        elif self.phase == "gathering":
            actions += self._try_open(now)
        elif self.phase == "validating":
            actions += self._measure(now)
        return actions

    def _tell_loading(self, process: ProcessId, reason: str) -> list[Action]:
        """Who loads is in no epoch yet, but may be waiting for the dead one to give it its state."""
        message = Gone(self.term, self._epoch(), process, reason)
        return [Send(entry.process, message) for entry in self.membership.peers() if entry.phase == "loading"]

    def _forget(self, process: ProcessId) -> bool:
        self.safe.copies.leave(process)
        return self.membership.leave(process) is not None

    def _evict(self, process: ProcessId, reason: str) -> list[Action]:
        self._forget(process)
        return [Send(process, Evicted(reason)), Log("warning", f"{process} has to join again: {reason}")]

    def _step_message(self, known: Known, message: AboutStep, now: float) -> list[Action]:
        return self.step.heard(known.process, message) if self.step is not None else []


_HANDLERS: dict[type, Callable[[Leader, Known, Any, float], list[Action]]] = {
    Ready: Leader._ready,
    Kept: Leader._kept,
    LoadFailed: Leader._load_failed,
    Drain: Leader._drain,
    Heartbeat: Leader._heartbeat,
    Suspect: Leader._suspect,
    **dict.fromkeys(get_args(AboutStep), Leader._step_message),
}
