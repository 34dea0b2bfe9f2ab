"""Versions are written to disk, and the run ends: after the last step, on request, or for another lineage."""

from __future__ import annotations

from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.durability.doubts import fallback
from swarmflow.core.durability.versions import SaveRequest
from swarmflow.core.machines.leading import roots
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Count, Exit, Log, Rejoin, Send
from swarmflow.core.protocol.events import Rival, SaveAsked
from swarmflow.core.protocol.messages import Evicted, Finished, SnapshotTaken
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import Snapshot


def keep(leader: LeaderState) -> list[Action]:
    """Bring the present version to disk while the run goes on.

    Its peers write their stages to their own disks, from which this trainer and other peers copy them. Where no peer of
    a stage can, this trainer copies all stages from memory. Where they copy more slowly than versions are due, the next
    one waits.
    """
    crowded = leader.safe.copies.crowded and not leader.safe.asked
    if crowded or leader.safe.snapshots.newest == leader.version:
        return []
    version, membership = leader.version, leader.membership
    begun = leader.safe.snapshots.begin(version, membership.holders(version), membership.keepers(version))
    return [*begun, *roots.ask(leader)] if begun else save(leader)  # nobody is asked twice whose disk has refused


def on_snapshot_taken(leader: LeaderState, known: MemberRecord, message: SnapshotTaken, now: float) -> list[Action]:
    """Record that a peer has written its stage, or could not."""
    leader.safe.snapshots.answered(known.process, message)
    return settle(leader, now) if leader.safe.snapshots.complete else []


def settle(leader: LeaderState, now: float) -> list[Action]:
    """Have a version that its peers have written copied by others; nothing where none is being written.

    Where no peer of a stage could write it, this trainer copies it from memory.
    """
    version = leader.safe.snapshots.version
    if version is None:
        return []
    certified = leader.certified if leader.certified is not None and leader.certified.version == version else None
    if certified is None and version == leader.version:
        return []  # until its stages agree on their roots
    taken = leader.safe.snapshots.end(certified)
    if taken is None and version == leader.version:
        return save(leader)  # it is in memory until the next commit
    if taken is None:
        lack = "no peer has written it to its disk" if certified else "the peers have not agreed on the state"
        text = f"version {version} is not kept: of a stage, {lack}"
        return [Log("warning", text, EventKind.CHECKPOINT)]
    log = Log("info", f"version {version} is on the disks of its peers", EventKind.CHECKPOINT)
    named = leader.safe.copies.take(taken)
    return [log, *named, *spread(leader, now), *catch_up(leader, now)]


def save(leader: LeaderState, last: bool = False) -> list[Action]:
    """Copy the present version from memory; the commit of the current step waits for it. last: and write the model.

    It begins when the stages have agreed on their roots: what peers give is compared with these.
    """
    holders = leader.membership.holders(leader.version)
    certified = leader.certified if leader.certified is not None else Snapshot(-1, ())
    if certified.version != leader.version and all(holders.stages):
        leader.safe.wanted = last or bool(leader.safe.wanted)
        return roots.ask(leader)
    return leader.safe.write(leader.version, holders, last, certified.roots if roots.is_certified(leader) else ())


def go_on(leader: LeaderState, now: float) -> list[Action]:
    """Go on with what has waited for the roots of the present version."""
    settled = settle(leader, now) if leader.safe.snapshots.complete else []
    return [*settled, *(save(leader, leader.safe.wanted) if leader.safe.wanted is not None else [])]


def on_save_asked(leader: LeaderState, event: SaveAsked, now: float) -> list[Action]:
    """Write the present version to disk for a request, which is answered when it is there."""
    leader.safe.asked[event.number] = SaveRequest(leader.version, now)
    return see(leader, now)


def see(leader: LeaderState, now: float) -> list[Action]:
    """Answer requests for a version that is on disk; try again to write one that could not be written."""
    answered = leader.safe.answers(now) + go_on(leader, now)  # who had not answered may be gone
    if overdue := leader.safe.copies.overdue(now):
        answered += [*overdue, *next_copies(leader, now)]
    if not leader.safe.asked or leader.phase is LeaderPhase.FINISHED or leader.recovery.restoring is not None:
        return answered  # the last version is being written with all that belongs to it
    waits = leader.safe.again_s is not None and now < leader.safe.again_s
    return answered if waits else [*answered, *keep(leader)]


def next_copies(leader: LeaderState, now: float) -> list[Action]:
    """Have the next copies begun, once nobody copies any more."""
    if leader.recovery.restoring is not None or leader.safe.copies.spreading >= 0:
        return []
    return [*spread(leader, now), *catch_up(leader, now)]


def spread(leader: LeaderState, now: float) -> list[Action]:
    """Have peers keep copies of what is on this trainer's disk."""
    if leader.phase is LeaderPhase.FINISHED:
        return []
    return leader.safe.spread(leader.me, leader.membership.keepers(leader.version), now)


def catch_up(leader: LeaderState, now: float) -> list[Action]:
    """Copy to this trainer's disk what the peers have written to theirs, when its turn has come."""
    return leader.safe.catch_up(leader.version, len(leader.membership.keepers(leader.version)), now)


def finish(leader: LeaderState) -> list[Action]:
    """Write the model, since all steps are committed."""
    leader.move(LeaderPhase.FINISHED)
    leader.waits_for = "the output to be written"
    log = Log("info", f"all {leader.version} steps are committed; writing the model", EventKind.FINISHED)
    return [*([] if leader.safe.failure else [log]), *save(leader, last=True)]  # once, however often it is tried


def part(leader: LeaderState, now: float) -> list[Action]:
    """Tell all members that the run is finished, and exit.

    Who started with nothing left to do first waits a while for the peers of before: they look for it, to be told. Who
    was told may not have heard it, and comes again.
    """
    fresh = [process for process in leader.others if process not in leader.notified]
    if fresh:
        leader.notified, leader.notified_s = leader.notified.union(fresh), now
    messages: list[Action] = [Send(process, Finished(leader.version)) for process in fresh]
    former = leader.recovery.former.peers
    complete = former <= {process.name for process in leader.notified}
    until_s = min(leader.parts_s, leader.notified_s + 2 * leader.timeouts.rejoin_s) if complete else leader.parts_s
    leader.parting = bool(former) and now < until_s
    if leader.parting:
        leader.waits_for = "the peers that took part, to tell them that the run is finished"
        return messages
    return [*messages, Exit(f"the run is finished at version {leader.version}")]


def stop(leader: LeaderState) -> list[Action]:
    """Keep the weights as they are now, then exit: a person wants this trainer to go."""
    leader.stopping = True
    if leader.phase is LeaderPhase.FINISHED:
        leader.parts_s = 0.0
        return [] if leader.parting else [Log("info", "the output is being written; leaving after that")]
    committing = leader.step is not None and leader.step.phase is StepPhase.COMMITTING
    if committing or leader.phase in (LeaderPhase.UNMEASURED, LeaderPhase.VALIDATING):
        return [Log("info", "stopping after this step")]  # its update is made: its result must not be lost
    return stop_now(leader)


def stop_now(leader: LeaderState) -> list[Action]:
    """Exit as soon as the run's version is on disk."""
    if leader.safe.durable >= leader.version or not any(leader.membership.peers()):
        return stopped(leader)
    leader.move(LeaderPhase.SAVING)
    log = Log("info", f"stopping: writing version {leader.version} first")
    return [log] if leader.safe.saving == leader.version else [log, *save(leader)]


def stopped(leader: LeaderState, ok: bool = True) -> list[Action]:
    """Exit: this trainer was asked to go, or the run cannot go on."""
    on_disk = fallback(leader.safe)
    kept = f"version {on_disk} is on disk" if on_disk else "no version is on disk"
    if not leader.fate:
        here = f"stopped at version {leader.version}"
        unwritten = f", which could not be written ({leader.safe.failure}): {kept}"
        return [Exit(f"{here}{'' if ok else unwritten}; start it again to go on", ok)]
    messages = [Send(process, Finished(leader.version, leader.fate)) for process in leader.others]
    return [*messages, Exit(f"{leader.fate}; {kept}", ok=False)]


def stop_run(leader: LeaderState, reason: str) -> list[Action]:
    """Stop a run that cannot go on: keep its last good version, tell all members why, and exit."""
    leader.stopping, leader.fate = True, reason
    leader.step = leader.ahead = None
    return [Log("warning", f"the run stops: {reason}", EventKind.FINISHED), *stop_now(leader)]


def on_rival(leader: LeaderState, rival: Rival) -> list[Action]:
    """Give up if another leader's lineage has more steps, or as many and a greater name."""
    later = (leader.version, leader.me.process) < (rival.version, rival.leader)
    if not later or rival.version > leader.settings.steps or leader.phase is LeaderPhase.FINISHED:
        return []
    reason = f"{rival.leader} leads this run too, and is at version {rival.version}"
    return [
        Count("lineages_given_up"),
        Log("warning", f"giving up version {leader.version}: {reason}", EventKind.ROLLED_BACK),
        *(Send(process, Evicted(reason)) for process in leader.others),
        Rejoin(reason),
    ]
