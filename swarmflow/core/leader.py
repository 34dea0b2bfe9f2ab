"""The leader's machine: admits processes, opens steps, commits them, and decides what happens at a step's edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core.actions import Action, Connect, Count, Exit, Forget, Log, Send, Validate, WriteCheckpoint
from swarmflow.core.events import CheckpointWritten, Event, Lost, Received, Tick, Validated
from swarmflow.core.membership import Known, Membership
from swarmflow.core.messages import (
    Beat,
    Committed,
    Done,
    Drain,
    Evicted,
    Finished,
    Granted,
    Heartbeat,
    Join,
    LoadFailed,
    Prepared,
    Ready,
    Refused,
    Released,
    StepResult,
    Suspect,
    Unprepared,
    Welcome,
)  # fmt: skip
from swarmflow.core.step import Step
from swarmflow.core.types import Epoch, Member, Plan, ProcessId, Roster


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """What the leader knows of the run beyond its plan.

    steps: after which the run is finished. learning_rates: of step t. clip: largest gradient norm (0: off).
    software, run: what a process that joins must match. from_seed: version 0 is made by each peer from the seed,
    else the trainers serve it. Silence longer than silence_s is death. A step whose work is done waits join_hold_s
    for peers that are loading its version, so that they take part in its update instead of loading again.
    """

    steps: int
    learning_rate: Callable[[int], float]
    clip: float
    software: str
    run: str
    from_seed: bool
    checkpoint_every: int = 0
    validate_every: int = 0
    heartbeat_s: float = 1.0
    silence_s: float = 8.0
    join_hold_s: float = 15.0


@dataclass(slots=True)
class Leader:
    """Everything the leading trainer decides. me: itself, as a member of the roster. durable: the newest version whose
    state is complete on disk.
    """

    me: Member
    plan: Plan
    settings: LeaderSettings
    term: int
    version: int
    durable: int
    generation: int = 0
    phase: str = "gathering"  # gathering, running, validating, saving, finished
    step: Step | None = None
    membership: Membership = field(init=False)
    last: StepResult | None = None
    _complete_s: float | None = None
    _saving: int | None = None
    _save_disturbed: bool = False  # a process went while the state was being copied
    _save_again_s: float | None = None  # when to write the last version again, or when that was
    _stopping: bool = False
    _waiting_for: str = ""
    _next_beat_s: float = 0.0

    def __post_init__(self) -> None:
        self.membership = Membership(self.plan)

    # --- doors --------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin to lead."""
        self.membership.enter(Join("trainer", self.settings.software, self.settings.run, self.me), -1, now)
        if self.version >= self.settings.steps:
            return self._finish()
        return self._try_open(now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Decide what follows from an event."""
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
            case Tick():
                pass
            case _:
                raise TypeError(f"a leader has no use for {type(event).__name__}")
        return actions + self._due(now)

    def next_deadline(self) -> float:
        """When handle(Tick(), now) is due at the latest."""
        if self._complete_s is not None and self.step is not None and self.step.phase == "complete":
            return min(self._next_beat_s, self._complete_s + self.settings.join_hold_s)
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
        if self.durable >= self.version or not any(self.membership.peers()):
            return [Exit(f"stopped at version {self.version}; start it again to go on")]
        self.phase = "saving"
        log = Log("info", f"stopping: writing version {self.version} first")
        return [log] if self._saving == self.version else [log, *self.save(last=False)]

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
            self._next_beat_s = now + self.settings.heartbeat_s
            epoch = self._epoch()
            actions += [Send(p, Beat(self.term, epoch)) for p in sorted(self.membership.known) if p != self.me.process]
            for process in self.membership.silent(now, self.settings.silence_s, self.me.process):
                actions += self._gone(process, f"silent for more than {self.settings.silence_s:.0f} s", now)
        return actions + self._advance(now)

    def _advance(self, now: float) -> list[Action]:
        """Move the step on where something other than a message was awaited."""
        step = self.step
        again_s = self._save_again_s
        if self.phase == "finished" and self._saving is None and again_s is not None and now >= again_s:
            self.phase = "gathering"
            return self._try_open(now)
        if self.phase != "running" or step is None:
            return []
        if step.phase == "failed":
            return self._restart(now)
        if step.phase == "committed":
            return self._edge(step, now)
        if step.phase == "complete":
            if self._complete_s is None:
                self._complete_s = now
            if self.membership.loading(self.version) and now < self._complete_s + self.settings.join_hold_s:
                return []
            present = step.roster.processes()
            ready = [e.member for s in range(self.plan.stages) for e in self.membership.ready(s, self.version)]
            return step.prepare(tuple(member for member in ready if member.process not in present))
        if step.phase != "prepared" or self._saving == self.version:
            return []
        self._complete_s = None
        return step.commit(now)

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
        self.last, self.step = step.result, None
        for entry in self.membership.peers():
            if entry.phase == "ready" and entry.version != self.version:
                actions += self._grant(entry, entry.member.stage, "it became ready too late for this step")
        every = self.settings.validate_every
        if every and self.version % every == 0 and self._complete():
            self.phase = "validating"
            return [*actions, Validate(self.version, self.membership.roster(self.version))]
        return actions + self._next(now)

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
            actions += self.save(last=False)
        return actions + self._let_go() + self._try_open(now)

    def _let_go(self) -> list[Action]:
        """Release who is draining, unless its stage would be lost: then its state is brought to safety first."""
        actions: list[Action] = []
        serving = self.step.roster.processes() if self.step is not None else ()
        if self.phase in ("finished", "validating"):
            return []  # told to go as soon as the output is written, or the result is known
        for entry in [e for e in self.membership.known.values() if e.draining and e.process not in serving]:
            alone = entry.role == "peer" and not self.membership.ready(entry.member.stage, self.version)
            if alone and self.step is None and self.durable < self.version:
                actions += self.save(last=False)
                self.phase = "saving"
                self._waiting_for = f"a copy of stage {entry.member.stage}, whose last peer wants to leave"
                continue
            self.membership.leave(entry.process)
            actions.append(Send(entry.process, Released()))
        return actions

    def save(self, last: bool = False) -> list[Action]:
        """Bring the present version to disk; the commit of the step at hand waits for it. last: and write the model."""
        if self._saving is not None:
            return []
        self._saving, self._save_disturbed = self.version, False
        stages = tuple(
            tuple(e.member for e in self.membership.peers(stage) if e.version == self.version and e.phase == "ready")
            for stage in range(self.plan.stages)
        )
        return [WriteCheckpoint(self.version, Roster(stages), last)]

    def _checkpoint_written(self, event: CheckpointWritten, now: float) -> list[Action]:
        self._saving = None
        actions: list[Action] = []
        if event.ok:
            self.durable = max(self.durable, event.version)
            actions.append(Log("info", f"version {event.version} is on disk"))
        else:
            actions.append(Log("warning", f"version {event.version} could not be written: {event.reason}"))
        if self._stopping and self.phase == "saving":
            if event.version < self.version:
                return actions + self.save()
            return [*actions, Exit(f"stopped at version {self.version}; start it again to go on", event.ok)]
        if self.phase == "finished":
            if event.version != self.version:
                return actions + self.save(last=True)
            return actions + (self._goodbye() if event.ok else self._final_write_failed(event.reason, now))
        if self.phase == "saving":
            self.phase = "gathering"
            return actions + (self._let_go() if event.ok else []) + self._try_open(now)
        return actions

    def _final_write_failed(self, reason: str, now: float) -> list[Action]:
        """Was it a peer's death, which may not be known yet, or the disk? Try again if it may have been a death."""
        if self._save_disturbed:
            self._save_again_s = now
        elif self._save_again_s is None:
            self._save_again_s = now + self.settings.silence_s
        else:
            return [Exit(f"the last version could not be written: {reason}", ok=False)]
        return []

    def _finish(self) -> list[Action]:
        self.phase, self._waiting_for = "finished", "the output to be written"
        if self.durable == self.version and not self.membership.peers():
            return self._goodbye()
        return [Log("info", f"all {self.version} steps are committed; writing the model"), *self.save(last=True)]

    def _goodbye(self) -> list[Action]:
        others = [p for p in sorted(self.membership.known) if p != self.me.process]
        return [
            *(Send(process, Finished(self.version)) for process in others),
            Exit(f"the run is finished at version {self.version}"),
        ]

    # --- opening ------------------------------------------------------------------------------------------------------

    def _epoch(self) -> Epoch:
        return Epoch(self.generation, self.version)

    def _complete(self) -> bool:
        return all(self.membership.ready(stage, self.version) for stage in range(self.plan.stages))

    def _try_open(self, now: float) -> list[Action]:
        if self.phase in ("finished", "saving") or self._stopping:
            return []
        self.phase = "gathering"
        empty = [s for s in range(self.plan.stages) if not self.membership.ready(s, self.version)]
        if empty:
            return self._refill(empty, now)
        if self.version >= self.settings.steps:
            return self._finish()
        self._waiting_for = ""
        self.phase = "running"
        roster = self.membership.roster(self.version)
        rate = self.settings.learning_rate(self.version)
        self.step = Step(self.plan, self.term, self._epoch(), roster, rate, self.settings.clip, now)
        members = (*roster.members(), *roster.trainers)
        return [Connect(tuple(m for m in members if m.process != self.me.process)), *self.step.open()]

    def _refill(self, empty: list[int], now: float) -> list[Action]:
        """Stages without a ready peer: wait for those that load; move a spare; go back to a version that is on disk."""
        actions: list[Action] = []
        coming = [s for s in empty if any(e.phase == "loading" and e.hopeful for e in self.membership.peers(s))]
        lost = [s for s in empty if s not in coming]
        if self.version != self.durable and lost:
            return self._roll_back(lost, now)
        for stage in lost:
            spare = self.membership.spare(empty)
            if spare is not None:
                actions += self._grant(spare, stage, "nobody is left there")
        empty_now = [s for s in empty if not self.membership.peers(s)]
        text = ", ".join(str(s) for s in (empty_now or empty))
        reason = f"a peer for stage {text}" if empty_now else f"the peers of stage {text}, which are loading"
        if reason != self._waiting_for:
            self._waiting_for = reason
            actions.append(Log("info", f"waiting for {reason}"))
        return actions

    def _roll_back(self, lost: list[int], now: float) -> list[Action]:
        """Everybody of a stage is gone, and with them the state: all stages go back to the newest version on disk."""
        text = ", ".join(str(stage) for stage in lost)
        log = Log("warning", f"stage {text} has lost everybody: back from version {self.version} to {self.durable}")
        self.version, self.step, self._save_again_s = self.durable, None, None
        self.generation += 1
        actions: list[Action] = [log, Count("rollbacks")]
        for entry in self.membership.peers():
            actions += self._grant(entry, entry.member.stage, "the run goes back")
        return actions + self._try_open(now)

    def _restart(self, now: float) -> list[Action]:
        self.generation += 1
        self.step = self._complete_s = None
        return self._try_open(now)

    def _grant(self, entry: Known, stage: int, reason: str) -> list[Action]:
        donors = tuple(e.member for e in self.membership.peers(stage) if e.process != entry.process
                       and e.phase == "ready" and e.version == self.version)  # fmt: skip
        entry.hopeful = bool(donors) or self.version == self.durable
        if not donors and not (self.version == 0 and self.settings.from_seed):
            donors = (self.me,)
        entry.member = replace(entry.member, stage=stage)
        entry.phase, entry.version = "loading", self.version
        return [
            Connect((entry.member,)),
            Send(entry.process, Granted(self.term, stage, self.version, donors)),
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
        refusal = self._refusal(sender, join)
        if refusal is not None:
            log = Log("info", f"refused {sender}: {refusal}")
            return [Connect((join.member,)), Send(sender, Refused(refusal)), log]
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
            log = Log("info", f"trainer {sender} joined")
            return [*actions, Connect((join.member,)), Send(sender, Welcome(self.term)), log]
        stage, reason = self.membership.place(join.member.stage)
        entry = self.membership.enter(join, stage, now)
        return [*actions, *self._grant(entry, stage, reason)]

    def _refusal(self, sender: ProcessId, join: Join) -> str | None:
        if join.software != self.settings.software:
            return f"this run uses swarmflow {self.settings.software}, not {join.software}: install that version"
        if join.run != self.settings.run:
            return "it belongs to another run, or its RUN.toml or data differ from this run's"
        if join.member.process != sender or join.role not in ("peer", "trainer"):
            return "it does not say who it is"
        if join.role == "peer" and join.member.stage >= self.plan.stages:
            return f"--stage {join.member.stage}: this run has the stages 0 to {self.plan.stages - 1}, or auto"
        return None

    def _ready(self, known: Known, message: Ready, now: float) -> list[Action]:
        if message.stage != known.member.stage or known.phase != "loading":
            return []
        if message.version != self.version:
            return self._grant(known, known.member.stage, f"version {message.version} is out of date")
        known.phase, known.version = "ready", message.version
        known.member = replace(known.member, capacity=max(1, message.capacity))
        return self._try_open(now) if self.phase == "gathering" else []

    def _load_failed(self, known: Known, message: LoadFailed, now: float) -> list[Action]:
        if known.phase != "loading" or message.stage != known.member.stage:
            return []
        known.phase = "failed"
        actions = self._try_open(now) if self.phase == "gathering" else []
        if known.phase != "failed":
            return actions  # the run went back, which granted a stage to everybody
        stage, reason = self.membership.place(known.wish)
        return [*actions, *self._grant(known, stage, f"{message.reason}; {reason}")]

    def _drain(self, known: Known, message: Drain, now: float) -> list[Action]:
        known.draining = True
        serving = self.step is not None and known.process in self.step.roster.processes()
        if serving and known.process != self.me.process:
            return [Log("info", f"{known.process} leaves after this step")]
        return self._let_go() + (self._try_open(now) if self.phase == "gathering" else [])

    def _heartbeat(self, known: Known, message: Heartbeat, now: float) -> list[Action]:
        known.load = message
        return []

    def _suspect(self, known: Known, message: Suspect, now: float) -> list[Action]:
        return self._gone(message.process, f"{known.process} lost it ({message.reason})", now)

    def _gone(self, process: ProcessId, reason: str, now: float) -> list[Action]:
        if process == self.me.process or self.membership.leave(process) is None:
            return []
        self._save_disturbed = True
        actions: list[Action] = [
            Log("warning", f"{process} is gone: {reason}"),
            Send(process, Evicted(reason)),
            Forget(process),
            Count("gone"),
        ]
        if self.step is not None:
            actions += self.step.gone(process, reason)
        elif self.phase == "gathering":
            actions += self._try_open(now)
        return actions

    def _evict(self, process: ProcessId, reason: str) -> list[Action]:
        self.membership.leave(process)
        return [Send(process, Evicted(reason)), Log("warning", f"{process} has to join again: {reason}")]

    def _step_message(
        self, known: Known, message: Done | Prepared | Unprepared | Committed, now: float
    ) -> list[Action]:
        if self.step is None:
            return []
        match message:
            case Done():
                return self.step.done(known.process, message)
            case Prepared():
                return self.step.prepared(known.process, message)
            case Unprepared():
                return self.step.unprepared(known.process, message)
            case Committed():
                return self.step.committed(known.process, message)


_HANDLERS: dict[type, Callable[[Leader, Known, Any, float], list[Action]]] = {
    Ready: Leader._ready,
    LoadFailed: Leader._load_failed,
    Drain: Leader._drain,
    Heartbeat: Leader._heartbeat,
    Suspect: Leader._suspect,
    **dict.fromkeys((Done, Prepared, Unprepared, Committed), Leader._step_message),
}
