"""Versions are written to disk, and the run ends: after the last step, on request, or for another lineage."""

from __future__ import annotations

from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.durability.versions import SaveRequest
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.protocol.actions import Action, Count, Exit, Log, Rejoin, Send
from swarmflow.core.protocol.events import Rival, SaveAsked
from swarmflow.core.protocol.messages import Evicted, Finished
from swarmflow.core.protocol.timeline import EventKind


def save(leader: LeaderState, last: bool = False) -> list[Action]:
    """Write the present version to disk; the commit of the current step waits for it. last: and write the model."""
    return leader.safe.write(leader.version, leader.membership.holders(leader.version), last)


def on_save_asked(leader: LeaderState, event: SaveAsked, now: float) -> list[Action]:
    """Write the present version to disk for a request, which is answered when it is there."""
    leader.safe.asked[event.number] = SaveRequest(leader.version, now)
    return see(leader, now)


def see(leader: LeaderState, now: float) -> list[Action]:
    """Answer requests for a version that is on disk; try again to write one that could not be written."""
    answered = leader.safe.answers(now)
    if not leader.safe.asked or leader.phase is LeaderPhase.FINISHED or leader.recovery.restoring is not None:
        return answered  # the last version is being written with all that belongs to it
    waits = leader.safe.again_s is not None and now < leader.safe.again_s
    return answered if waits else [*answered, *save(leader)]


def spread(leader: LeaderState) -> list[Action]:
    """Have peers keep copies of what is on this trainer's disk."""
    if leader.phase is LeaderPhase.FINISHED:
        return []
    return leader.safe.spread(leader.me, leader.membership.keepers(leader.version))


def finish(leader: LeaderState) -> list[Action]:
    """Write the model, since all steps are committed."""
    leader.move(LeaderPhase.FINISHED)
    leader.waits_for = "the output to be written"
    log = Log("info", f"all {leader.version} steps are committed; writing the model", EventKind.FINISHED)
    return [log, *save(leader, last=True)]


def goodbye(leader: LeaderState) -> list[Action]:
    """Tell all members that the run is finished, and exit."""
    messages = [Send(process, Finished(leader.version)) for process in leader.others]
    return [*messages, Exit(f"the run is finished at version {leader.version}")]


def stop(leader: LeaderState) -> list[Action]:
    """Keep the weights as they are now, then exit: a person wants this trainer to go."""
    leader.stopping = True
    if leader.phase is LeaderPhase.FINISHED:
        return [Log("info", "the output is being written; leaving after that")]
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
    kept = f"version {leader.safe.durable} is on disk" if leader.safe.durable else "no version is on disk"
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
