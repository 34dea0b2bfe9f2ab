"""Members that drain: each is released once nothing would be lost with it."""

from __future__ import annotations

from swarmflow.core.durability.doubts import fallback
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.machines.leading.saving import save
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.membership.placement import lacking
from swarmflow.core.protocol.actions import Action, Log, Send
from swarmflow.core.protocol.messages import Needed, Released
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId


def let_go(leader: LeaderState) -> list[Action]:
    """Release the draining members; one with whom a stage would be lost, or a copy of one, only after others have it.

    It goes by itself when its time is over.
    """
    actions: list[Action] = []
    if leader.phase in (LeaderPhase.FINISHED, LeaderPhase.UNMEASURED, LeaderPhase.VALIDATING):
        return []  # told to go as soon as the output is written, or the result is known
    serving = leader.serving
    for entry in [e for e in leader.membership.known.values() if e.draining and e.process not in serving]:
        if is_alone(leader, entry) and leader.step is None and leader.safe.durable < leader.version:
            if leader.safe.again_s is not None:
                continue  # the last write has failed, and has its time to be tried again
            actions += [*save(leader), *tell_needed(leader, entry, saving=True)]
            leader.move(LeaderPhase.SAVING)
            leader.waits_for = lacking(leader.membership, [entry.member.stage], leader.version)
            continue
        if stages := _kept_alone(leader, entry):
            actions += _wait_for_copies(leader, entry, stages)
            continue
        forget(leader, entry.process)
        actions.append(Send(entry.process, Released()))
    return actions


def is_alone(leader: LeaderState, entry: MemberRecord) -> bool:
    """Return whether no other peer holds this one's stage and means to stay."""
    return entry.role == "peer" and not leader.membership.served(entry.member.stage, leader.version)


def _kept_alone(leader: LeaderState, entry: MemberRecord) -> list[int]:
    """Return the stages that nobody who stays has on disk, of the version that the run would go back to."""
    copies, whole = leader.safe.copies, leader.safe.copies.newest_whole()
    if whole is None or whole.version <= leader.safe.durable:
        return []
    staying = {other.process for other in leader.membership.known.values() if not other.draining}
    return copies.kept_alone(whole, entry.process, staying)


def _wait_for_copies(leader: LeaderState, entry: MemberRecord, stages: list[int]) -> list[Action]:
    """Say, once, what a draining process waits for."""
    if entry.only_copies == stages:
        return []
    entry.only_copies = stages
    text = f"{entry.process} leaves when others have its copy of stage {', '.join(map(str, stages))}"
    return [Log("info", text, EventKind.LEAVING, entry.process, entry.member.stage)]


def tell_needed(leader: LeaderState, entry: MemberRecord, saving: bool = False) -> list[Action]:
    """Tell a draining peer, once for each reason, what it waits for and what would be lost."""
    before, entry.needed = entry.needed, (leader.version, saving)
    if before == entry.needed or entry.phase is not MemberPhase.READY:
        return []
    wait_s = absence_s(leader)
    return [Send(entry.process, Needed(leader.version, min(fallback(leader.safe), leader.version), saving, wait_s))]


def absence_s(leader: LeaderState) -> float:
    """Return how long to wait for a peer with the only state of a stage: as long as its steps take again.

    Who waits as long as the other choice would take is never more than twice as late as with the better one. No less
    than a person needs to start it again.
    """
    steps = max(0, leader.version - fallback(leader.safe))
    return max(leader.timeouts.memory_s, steps * leader.last.seconds if leader.last is not None else 0.0)


def forget(leader: LeaderState, process: ProcessId) -> None:
    """Remove a process, and all that it holds."""
    leader.safe.copies.leave(process)
    leader.safe.snapshots.leave(process)
    leader.recovery.memories.leave(process)
    leader.recipients.pop(process, None)
    leader.faults.suspicions.forget(process)
    leader.membership.leave(process)
