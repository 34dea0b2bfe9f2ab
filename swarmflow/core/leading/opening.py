"""Opening a step: when it may be, from which version, and what is done about a stage that nobody serves."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.actions import Action, Connect, Count, Log, Send
from swarmflow.core.leading.absent import Absent
from swarmflow.core.leading.failures import Failure
from swarmflow.core.leading.findings import Finding
from swarmflow.core.leading.grants import grant
from swarmflow.core.leading.membership import MemberRecord
from swarmflow.core.leading.memories import NOTHING, Former, Remembered, holds
from swarmflow.core.leading.reign import LeaderState
from swarmflow.core.leading.restoring import Restoring
from swarmflow.core.leading.safekeeping import NO_DISK
from swarmflow.core.leading.saving import finish, stop_now, stop_run
from swarmflow.core.messages import OpenStep
from swarmflow.core.quorum import change_since, electorate
from swarmflow.core.step import Step
from swarmflow.core.types import Epoch, ProcessId


def try_open(reign: LeaderState, now: float) -> list[Action]:
    """Open the next step if every stage is served, or do something about it."""
    if reign.phase in ("finished", "saving") or reign.stopping:
        return []
    reign.phase = "gathering"
    if reign.restoring is not None:
        return restore(reign, reign.restoring, now)
    membership, settings = reign.membership, reign.settings
    if reign.version == reign.generation == 0 and membership.ready_peers() < settings.peers_first:
        reign.waits_for = f"{settings.peers_first} peers to be ready"
        return []
    empty = [stage for stage in range(reign.plan.stages) if not membership.served(stage, reign.version)]
    if empty:
        return _refill(reign, empty, now)
    if reign.version >= settings.steps:
        return finish(reign)
    if not has_majority(reign):
        reign.waits_for = "most of those who took part in the last step: they may have another leader"
        return []
    if lack := reign.safe.holds_up(reign.version):
        return _pause(reign, lack)
    reign.waits_for, reign.phase = "", "running"
    roster = membership.roster(reign.version)
    change = change_since(reign.electors, roster)
    careful = bool(reign.findings.of(reign.version))
    said = OpenStep(
        reign.term, reign.epoch, roster, reign.lineage, exponent=reign.exponent, careful=careful, change=change
    )
    reign.electors = reign.electors or electorate(said)
    reign.step = Step(reign.plan, reign.term, said, settings.learning_rate(reign.version), settings.clip, now)
    begun = reign.step.open(reign.opened, reign.told)
    reign.opened, reign.told = said, {member.process: member.stage for member in roster.everyone}
    return [Connect(tuple(m for m in roster.everyone if m.process != reign.me.process)), *begun]


def _pause(reign: LeaderState, lack: str) -> list[Action]:
    """More steps than checkpoint_every are on no disk: they would all be lost at a restart. The disk is asked again."""
    begins = not reign.waits_for.startswith(NO_DISK)
    reign.waits_for = lack
    return [Log("warning", f"the run pauses and waits for {lack}"), Count("pauses")] if begins else []


def _refill(reign: LeaderState, empty: list[int], now: float) -> list[Action]:
    """Stages without a ready peer: wait for those that load; move a spare; go back to a version that is on disk."""
    actions: list[Action] = []
    membership = reign.membership
    lost = membership.lost(reign.version)
    if reign.version != reign.safe.durable and lost:
        if reign.safe.durable < reign.safe.landing <= reign.version:
            reign.waits_for = f"version {reign.safe.landing} to be on disk, to go back to that one"
            return []
        away = reign.absent.awaited(lost, reign.version, reign.name, now)
        return _await(reign, away) if away else _roll_back(reign, lost, now)
    for stage in lost:
        outside = (entry for entry in membership.barred() if entry.movable or entry.wish == stage)
        spare = next(outside, None) or membership.spare(empty)
        if spare is not None:
            actions += grant(reign, spare, stage, "nobody is left there")
            spare.stands_in = 0 <= spare.wish != stage
    reason = membership.lack(empty)
    if reason != reign.waits_for:
        reign.waits_for = reason
        actions.append(Log("info", f"waiting for {reason}"))
    return actions


def _await(reign: LeaderState, away: list[Absent]) -> list[Action]:
    """Who left has what is lost here in a folder: to wait for it costs no more than to do the steps again."""
    names = ", ".join(f"{one.name} with stage {one.held.stage}" for one in away)
    reason = f"{names}, left in its state folder; without it the run goes back to version {reign.safe.durable}"
    begins, reign.waits_for = reason != reign.waits_for, reason
    return [Log("warning", f"waiting for {reason}")] if begins else []


def _roll_back(reign: LeaderState, lost: list[int], now: float) -> list[Action]:
    """Everybody of a stage is gone, and with them the state: all stages go back to the newest version on a disk."""
    text, before = ", ".join(str(stage) for stage in lost), reign.version
    reign.version, reign.step = reign.safe.durable, None
    reign.lineage = reign.settings.new_lineage()  # in each, a version is committed once
    abandoned = reign.safe.went_back()
    reign.generation += 1
    seek(reign, now)
    opened = try_open(reign, now)
    back = f"back from version {before}" + (f" to {reign.version}" if reign.restoring is None else "")
    return [Log("warning", f"stage {text} has lost everybody: {back}"), Count("rollbacks"), *abandoned, *opened]


def seek(reign: LeaderState, now: float, former: Former = NOTHING) -> None:
    """From which version to go on is to be found out; until then nobody loads anything."""
    settings = reign.settings
    reign.restoring = Restoring(reign.safe.known, now, settings.copies_wait_s, former, settings.memory_wait_s)
    for entry in reign.membership.peers():
        if entry.phase != "barred":
            reign.membership.mark(entry, "waiting")
        entry.grants += 1  # what it answers to an earlier grant is void


def restore(reign: LeaderState, restoring: Restoring, now: float) -> list[Action]:
    """Go on from the newest version that is whole somewhere, or wait for it and say so."""
    there = {process.name for process in reign.membership.known}
    decision = restoring.decide(reign.safe.durable, reign.safe.copies, now, reign.memories, there)
    actions: list[Action] = []
    if decision.version is None and decision.reason != reign.waits_for:
        reign.waits_for = decision.reason
        actions.append(Log("warning", f"waiting for {decision.reason}"))
    if decision.fetch is not None:
        return actions + reign.safe.fetch(decision.fetch)
    if decision.version is None:
        return actions
    reign.restoring, reign.version, reign.safe.known = None, decision.version, restoring.known
    reign.restored = True
    reign.commit, reign.name = None, ""
    if decision.memory is not None:
        reign.commit, reign.name = decision.memory.commit, decision.memory.name
        actions += [Log("info", f"going on from {decision.reason}"), *_tell_again(reign, decision.memory)]
    for entry in reign.membership.peers():
        if entry.phase != "barred" or reign.membership.only_barred(entry.member.stage):
            actions += grant(reign, entry, entry.member.stage, decision.reason)
        else:
            _keep_out(reign, entry)
    return actions + try_open(reign, now)


def _keep_out(reign: LeaderState, entry: MemberRecord) -> None:
    """Grant nothing to a peer that was put out a while ago; others may load what it holds, if it is this version."""
    held = reign.memories.of(entry.process)
    if held is not None and not holds(held, reign.version, reign.name):
        reign.memories.leave(entry.process)


def _tell_again(reign: LeaderState, found: Remembered) -> list[Action]:
    """The result of the step that made a version: those who were to record it may have died before."""
    if found.commit is None or (reign.last is not None and reign.last.step >= found.version - 1):
        return []
    epoch = Epoch(reign.generation, found.version - 1)
    result = replace(found.commit.result, term=reign.term, epoch=epoch)
    return [Send(entry.process, result) for entry in reign.membership.trainers()]


def learnt(reign: LeaderState, now: float) -> list[Action]:
    """Somebody came with its copies, which may be of a later version than the one that this leader began with.

    Or with a stage in memory: that also counts where this leader has gone back, as long as it has committed no step
    since. Those whom it took for dead may have lost it alone.
    """
    began_here = reign.founded and reign.last is None
    begun = reign.phase == "running"
    decided = reign.step is not None and reign.step.decision is not None
    if reign.restoring is None and reign.restored and not decided and (begun or reign.phase == "gathering"):
        on_disks = began_here and reign.safe.later(reign.version, begun)
        if not (on_disks or reign.memories.later(reign.version)):
            return []
        reign.step, reign.phase = None, "gathering"
        reign.generation += 1
        seek(reign, now)
    return try_open(reign, now) if reign.restoring is not None else []


def has_majority(reign: LeaderState) -> bool:
    """Return whether enough of those who took part in the last step are here for the next one to be opened."""
    return reign.electors is None or reign.electors.commits(reign.membership.known.keys() | reign.bound)


def fork(reign: LeaderState, now: float) -> list[Action]:
    """Go on without most of the electorate, under a name of its own: the others may go on with the old one."""
    reign.lineage, reign.electors = reign.settings.new_lineage(), None
    log = Log("warning", f"most of the swarm stayed away: going on without it, as lineage {reign.lineage}")
    return [log, Count("lineages"), *restart(reign, now)]


def restart(reign: LeaderState, now: float) -> list[Action]:
    """The step starts over: with coarser fixed-point numbers where a gradient did not fit into them.

    Where a value was not finite it does so without the peer that computed it, or the run stops; so with whoever makes
    it fail again and again.
    """
    step = reign.step
    if step is not None:
        reason = suspend(reign, step.finding) if step.finding is not None else leave_out(reign, step)
        if reason:
            return stop_run(reign, reason)
    if step is not None and step.inherited:  # it may be committed elsewhere, with those who cannot be reached
        reign.lineage = reign.settings.new_lineage()
    reign.generation += 1
    reign.step = reign.complete_s = None
    return stop_now(reign) if reign.stopping else try_open(reign, now)


def suspend(reign: LeaderState, finding: Finding) -> str:
    """Leave out the peer whose value was not finite while others can compute it. Returns why the run has to stop."""
    membership, holder = reign.membership, finding.holder
    before = {first.holder for first in reign.findings.of(finding.version)} | {holder}
    ready = membership.ready(finding.stage, reign.version) if finding.stage >= 0 else []
    others = any(entry.process not in before for entry in ready)
    reason = reign.findings.add(finding, others)
    if holder is not None and holder in membership.known:
        membership.suspended[holder] = None
    return reason


def leave_out(reign: LeaderState, step: Step) -> str:
    """Leave out who makes the step fail again, while others can stand in for it. Returns why the run has to stop."""
    membership, failures = reign.membership, reign.failures
    culprits = [process for process in step.culprits if process in membership.known]
    if not culprits:
        return ""
    before = failures.left_out
    otherwise = membership.suspended.keys() - set(before)

    def mates(process: ProcessId) -> list[ProcessId]:
        return [mate for mate in membership.mates(process, reign.version) if mate not in otherwise]

    culprits.sort(key=lambda process: (reign.findings.outside_s(process.name), process))
    exponent = step.said.exponent if step.overflow is not None else None
    reason = failures.add(Failure(reign.version, tuple(culprits), step.failure, exponent), mates)
    for process in before:
        membership.suspended.pop(process, None)
    membership.suspended |= {process: None for process in failures.left_out if process in membership.known}
    if exponent is not None:
        reign.exponent = failures.exponent
    return reason
