"""Bringing versions of the run to disk, and what ends it: the last version, a person's wish, another lineage."""

from __future__ import annotations

from swarmflow.core.actions import Action, Count, Exit, Log, Rejoin, Send
from swarmflow.core.events import Rival, SaveAsked
from swarmflow.core.leading.reign import LeaderState
from swarmflow.core.leading.safekeeping import SaveRequest
from swarmflow.core.messages import Evicted, Finished


def save(reign: LeaderState, last: bool = False) -> list[Action]:
    """Bring the present version to disk; the commit of the step at hand waits for it. last: and write the model."""
    return reign.safe.write(reign.version, reign.membership.holders(reign.version), last)


def asked(reign: LeaderState, event: SaveAsked, now: float) -> list[Action]:
    """Somebody wants the present version on disk; it is answered when it is there."""
    reign.safe.asked[event.number] = SaveRequest(reign.version, now)
    return see(reign, now)


def see(reign: LeaderState, now: float) -> list[Action]:
    """Answer those who asked for a version; where it could not be written, it is tried again."""
    answered = reign.safe.answers(now)
    if not reign.safe.asked or reign.phase == "finished" or reign.restoring is not None:
        return answered  # the last version is being written with all that belongs to it
    waits = reign.safe.again_s is not None and now < reign.safe.again_s
    return answered if waits else [*answered, *save(reign)]


def spread(reign: LeaderState) -> list[Action]:
    """Have peers keep copies of what is on this trainer's disk."""
    if reign.phase == "finished":
        return []
    return reign.safe.spread(reign.me, reign.membership.keepers(reign.version))


def finish(reign: LeaderState) -> list[Action]:
    """All steps are committed: write the model, then say goodbye."""
    reign.phase, reign.waits_for = "finished", "the output to be written"
    return [Log("info", f"all {reign.version} steps are committed; writing the model"), *save(reign, last=True)]


def goodbye(reign: LeaderState) -> list[Action]:
    """The run is finished: everybody is told so."""
    told = [Send(process, Finished(reign.version)) for process in reign.others]
    return [*told, Exit(f"the run is finished at version {reign.version}")]


def stop(reign: LeaderState) -> list[Action]:
    """The person wants this trainer to go: keep the weights as they are now, then exit."""
    reign.stopping = True
    if reign.phase == "finished":
        return [Log("info", "the output is being written; leaving after that")]
    committing = reign.step is not None and reign.step.phase == "committing"
    if committing or reign.phase in ("unmeasured", "validating"):
        return [Log("info", "stopping after this step")]  # its update is made: its result must not be lost
    return stop_now(reign)


def stop_now(reign: LeaderState) -> list[Action]:
    """Exit as soon as the run's version is on disk."""
    if reign.safe.durable >= reign.version or not any(reign.membership.peers()):
        return stopped(reign)
    reign.phase = "saving"
    log = Log("info", f"stopping: writing version {reign.version} first")
    return [log] if reign.safe.saving == reign.version else [log, *save(reign)]


def stopped(reign: LeaderState, ok: bool = True) -> list[Action]:
    """The end of a trainer that was asked to go, or of a run that cannot go on."""
    kept = f"version {reign.safe.durable} is on disk" if reign.safe.durable else "no version is on disk"
    if not reign.fate:
        here = f"stopped at version {reign.version}"
        unwritten = f", which could not be written ({reign.safe.failure}): {kept}"
        return [Exit(f"{here}{'' if ok else unwritten}; start it again to go on", ok)]
    told = [Send(process, Finished(reign.version, reign.fate)) for process in reign.others]
    return [*told, Exit(f"{reign.fate}; {kept}", ok=False)]


def stop_run(reign: LeaderState, reason: str) -> list[Action]:
    """The run cannot go on: keep its last good version, tell everybody why, and exit."""
    reign.stopping, reign.fate, reign.step = True, reason, None
    return [Log("warning", f"the run stops: {reason}"), *stop_now(reign)]


def met(reign: LeaderState, rival: Rival) -> list[Action]:
    """Two lineages have met: the one with more steps goes on, of equals the one of the greater name."""
    later = (reign.version, reign.me.process) < (rival.version, rival.leader)
    if not later or rival.version > reign.settings.steps or reign.phase == "finished":
        return []
    reason = f"{rival.leader} leads this run too, and is at version {rival.version}"
    return [
        Count("lineages_given_up"),
        Log("warning", f"giving up version {reign.version}: {reason}"),
        *(Send(process, Evicted(reason)) for process in reign.others),
        Rejoin(reason),
    ]
