"""Opening a step: when, from which version, and what is done about a stage that no peer serves."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.commit import ahead
from swarmflow.core.commit.adaptive_compression import boundary_rates, kept_numbers
from swarmflow.core.commit.quorum import change_since, electorate_of
from swarmflow.core.commit.step import Step
from swarmflow.core.durability.doubts import fallback, go_back
from swarmflow.core.durability.memories import NOTHING, Former, Remembered, holds
from swarmflow.core.durability.recovery import Absent, RecoveryState
from swarmflow.core.durability.restoring import Restoring
from swarmflow.core.durability.versions import NO_DISK, durable_snapshot
from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import ROOTS_EVERY, LeaderState
from swarmflow.core.machines.leading.leaving import let_go
from swarmflow.core.machines.leading.saving import finish, stop_now
from swarmflow.core.membership import placement
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.membership.rebalance import Move
from swarmflow.core.protocol.actions import Action, Connect, Count, Log, Send
from swarmflow.core.protocol.messages import OpenStep
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import Epoch, Roster


def try_open(leader: LeaderState, now: float) -> list[Action]:
    """Open the next step if every stage is served, or do something about it."""
    if leader.phase in (LeaderPhase.FINISHED, LeaderPhase.SAVING) or leader.stopping:
        return []
    leader.gather()
    if leader.recovery.restoring is not None:
        return restore(leader, leader.recovery.restoring, now)
    membership, settings = leader.membership, leader.settings
    begins = leader.lineage.begun_from_disk and leader.opened is None
    if begins and leader.version == 0 and membership.ready_peers() < settings.peers_first:
        leader.waits_for = f"{settings.peers_first} peers to be ready"
        return []
    empty = [stage for stage in range(leader.plan.stages) if not membership.served(stage, leader.version)]
    if empty:
        return _refill(leader, empty, now)
    if leader.version >= settings.steps:
        return finish(leader)
    if not leader.lineage.has_majority(membership.known.keys()):
        leader.waits_for = "most of those who took part in the last step: they may have another leader"
        return []
    if lack := leader.safe.holds_up(leader.version):
        return _pause(leader, lack)
    leader.waits_for = ""
    roster = _roster(leader)
    change = change_since(leader.lineage.electorate, roster)
    careful = bool(leader.faults.findings.of(leader.version))
    open_step = OpenStep(
        leader.term,
        leader.epoch,
        roster,
        leader.lineage.name,
        exponent=leader.exponent,
        careful=careful,
        change=change,
        ahead=leader.ahead is not None,
        kept=_kept(leader, roster),
        commit=leader.unconfirmed,
    )
    leader.lineage.electorate = leader.lineage.electorate or electorate_of(open_step)
    assigned: list[Action] = []
    if leader.ahead is None:
        rate = settings.learning_rate(leader.version)
        leader.step = Step(leader.plan, leader.term, open_step, rate, settings.clip, now)
    else:
        assigned = ahead.opened(leader.ahead, open_step, now)
        leader.step, leader.ahead = leader.ahead, None
    leader.move(LeaderPhase.RUNNING)
    begun = leader.step.members.open(leader.opened, leader.recipients)
    leader.opened, leader.recipients = open_step, {member.process: member.stage for member in roster.members}
    return [Connect(tuple(m for m in roster.members if m.process != leader.me.process)), *begun, *assigned]


def _roster(leader: LeaderState) -> Roster:
    """Return the members of the next step. Who wants to leave and has begun it stays for it."""
    roster = leader.membership.roster(leader.version)
    if leader.ahead is None:
        return roster
    known = leader.membership.known
    begun = [known[process] for process in leader.ahead.roster.ids if process in known and known[process].draining]
    stay = [entry.member for entry in begun if entry.role == "trainer" or entry.holds(leader.version)]
    return roster.changed((), tuple(stay)) if stay else roster


def _kept(leader: LeaderState, roster: Roster) -> tuple[int, ...]:
    """Return how many of 256 numbers cross each boundary in the next step, by the links measured so far."""
    ratio = leader.plan.compression_ratio
    return kept_numbers(boundary_rates(roster, leader.links()), ratio) if ratio else ()


def _pause(leader: LeaderState, lack: str) -> list[Action]:
    """Pause: more steps than checkpoint_every are on no disk, and all would be lost at a restart."""
    begins = not leader.waits_for.startswith(NO_DISK)
    leader.waits_for = lack
    log = Log("warning", f"the run pauses and waits for {lack}", EventKind.WAITING)
    return [log, Count("pauses")] if begins else []


def _refill(leader: LeaderState, empty: list[int], now: float) -> list[Action]:
    """Get each stage a ready peer that stays: wait for those that load, move a spare, or go back to what is on disk.

    The state of a stage whose peers all want to leave is saved first.
    """
    actions, membership = let_go(leader), leader.membership
    if leader.phase is LeaderPhase.SAVING:
        return actions
    lost = membership.lost(leader.version)
    if leader.version != leader.safe.durable and lost:
        if leader.safe.durable < leader.safe.landing <= leader.version:
            leader.waits_for = f"version {leader.safe.landing} to be on disk, to go back to that one"
            return actions
        away = leader.recovery.absent.awaited(lost, leader.version, leader.name, now)
        # While it waits, who joins would load the stage from this trainer's disk, which may be of another history.
        waits = bool(away) and leader.safe.doubtful is None
        return actions + (_await(leader, away) if waits else _roll_back(leader, lost, now))
    for stage in lost:
        idle = sorted(membership.idle(), key=lambda entry: entry.phase is MemberPhase.BARRED)  # those put out come last
        outside = (Move(entry.process, stage, placement.DESERTED) for entry in idle if entry.may_serve(stage))
        move = next(outside, None) or placement.spare(membership, empty, stage)
        if move is not None:
            entry = membership.known[move.process]
            actions += grant(leader, entry, move.stage, move.reason)
            entry.stands_in = 0 <= entry.wish != move.stage
    reason = placement.lacking(membership, empty, leader.version)
    if out := leader.faults.unbelieved.present(now):
        reason += "".join(f"; {name} is kept out: it {why}" for name, why in out)
    return actions + _wait(leader, reason, "info")


def _wait(leader: LeaderState, reason: str, level: str = "warning") -> list[Action]:
    """Wait for something, and say so once."""
    begins, leader.waits_for = reason != leader.waits_for, reason
    return [Log(level, f"waiting for {reason}")] if begins else []


def _await(leader: LeaderState, away: list[Absent]) -> list[Action]:
    """Wait for peers that left with the lost state in a folder: it costs no more than to do the steps again."""
    names = ", ".join(f"{one.name} with stage {one.held.stage}" for one in away)
    reason = f"{names}, left in its state folder; without it the run goes back to version {fallback(leader.safe)}"
    return _wait(leader, reason)


def _roll_back(leader: LeaderState, lost: list[int], now: float) -> list[Action]:
    """Go back to the newest version on a disk: a stage has lost all peers, and with them its state."""
    text, before = ", ".join(str(stage) for stage in lost), leader.version
    leader.version = go_back(leader.safe)
    leader.lineage.rename(leader.settings.new_lineage())  # in each, a version is committed once
    abandoned = leader.safe.went_back()
    leader.start_over()
    seek(leader, now)
    opened = try_open(leader, now)
    back = f"back from version {before}" + (f" to {leader.version}" if leader.recovery.restoring is None else "")
    return [
        Log("warning", f"stage {text} has lost everybody: {back}", EventKind.ROLLED_BACK),
        Count("rollbacks"),
        *abandoned,
        *opened,
    ]


def seek(leader: LeaderState, now: float, former: Former = NOTHING) -> None:
    """Begin to look for the version to go on from; until it is found no peer loads anything."""
    timeouts = leader.timeouts
    leader.unconfirmed = None
    leader.votes.clear()
    leader.rooted = -ROOTS_EVERY
    leader.recovery.open(Restoring(leader.safe.known, now, timeouts.copies_s, former, timeouts.memory_s))
    for entry in leader.membership.peers():
        if entry.phase is not MemberPhase.BARRED:
            leader.membership.mark(entry, MemberPhase.WAITING)
        entry.grants += 1  # what it answers to an earlier grant is void
        entry.roots, entry.claim = {}, None


def restore(leader: LeaderState, restoring: Restoring, now: float) -> list[Action]:
    """Go on from the newest version that is whole somewhere, or wait for it and say so."""
    there = {process.name for process in leader.membership.known}
    decision = restoring.decide(leader.safe.durable, leader.safe.copies, now, leader.recovery.memories, there)
    if decision.version is None:
        fetched = leader.safe.fetch(decision.fetch) if decision.fetch is not None else []
        sought = leader.safe.copies.seek(entry.member for entry in leader.membership.peers())
        return [*_wait(leader, decision.reason), *fetched, *sought]
    actions: list[Action] = []
    leader.recovery.decide()
    leader.version, leader.safe.known = decision.version, restoring.known
    leader.exponent = leader.faults.failures.exponent(leader.version)  # what another version needed does not count
    leader.commit, leader.name = None, ""
    leader.certified = durable_snapshot(leader.safe) if decision.memory is None else decision.memory.certified
    if decision.memory is not None:
        leader.commit, leader.name = decision.memory.commit, decision.memory.name
        actions += [
            Log("info", f"going on from {decision.reason}", EventKind.ROLLED_BACK),
            *_tell_again(leader, decision.memory),
        ]
    for entry in leader.membership.peers():
        mates = leader.membership.peers(entry.member.stage)
        if entry.phase is not MemberPhase.BARRED or all(mate.phase is MemberPhase.BARRED for mate in mates):
            actions += grant(leader, entry, entry.member.stage, decision.reason)
        else:
            _keep_out(leader, entry)
    return actions + try_open(leader, now)


def _keep_out(leader: LeaderState, entry: MemberRecord) -> None:
    """Grant nothing to a peer that was put out a while ago; others may load what it holds, if it is this version."""
    held = leader.recovery.memories.of(entry.process)
    if held is not None and not holds(held, leader.version, leader.name):
        leader.recovery.memories.leave(entry.process)


def _tell_again(leader: LeaderState, found: Remembered) -> list[Action]:
    """Send the result of the step that made a version again: its trainers may have died before they recorded it."""
    if found.commit is None or (leader.last is not None and leader.last.step >= found.version - 1):
        return []
    epoch = Epoch(leader.generation, found.version - 1)
    result = replace(found.commit.result, term=leader.term, epoch=epoch)
    return [Send(entry.process, result) for entry in leader.membership.trainers()]


def reconsider_version(leader: LeaderState, now: float) -> list[Action]:
    """Go on from a later version if a process came with copies of one.

    Or with a stage in memory: that also counts where this leader has gone back, as long as it has committed no step
    since. Those whom it took for dead may have lost it alone.
    """
    began_here = leader.lineage.begun_from_disk and leader.last is None
    begun = leader.phase is LeaderPhase.RUNNING
    decided = leader.step is not None and leader.step.decision is not None
    may_go_back = begun or leader.phase is LeaderPhase.GATHERING
    if leader.recovery.state is RecoveryState.DECIDED and not decided and may_go_back:
        on_disks = began_here and leader.safe.later(leader.version, begun)
        if not (on_disks or leader.recovery.memories.later(leader.version)):
            return []
        leader.start_over()
        leader.gather()
        seek(leader, now)
    return try_open(leader, now) if leader.recovery.restoring is not None else []


def fork(leader: LeaderState, now: float) -> list[Action]:
    """Go on without most of the electorate, under a name of its own: the others may go on with the old one."""
    leader.lineage.fork(leader.settings.new_lineage())
    text = f"most of the swarm stayed away: going on without it, as lineage {leader.lineage.name}"
    log = Log("warning", text, EventKind.LEADER)
    return [log, Count("lineages"), *restart(leader, now)]


def restart(leader: LeaderState, now: float) -> list[Action]:
    """Start the step over."""
    step = leader.step
    if step is not None and step.ballot.inherited:  # it may be committed elsewhere, with those who cannot be reached
        leader.lineage.rename(leader.settings.new_lineage())
    leader.start_over()
    leader.rooted = -ROOTS_EVERY  # its peers may have failed since their states differ
    return stop_now(leader) if leader.stopping else try_open(leader, now)
