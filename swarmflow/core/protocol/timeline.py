"""The kinds of events in the timeline of a run, as its leader records them for those who watch."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What an event of a run is; docs/view.md lists them for users."""

    JOINED = "joined"  # a trainer
    LOADING = "loading"  # a peer is granted a stage
    SERVING = "serving"  # a peer has loaded its stage
    LEAVING = "leaving"  # a process drains
    DIED = "died"  # a process was taken for dead, or put out
    REPAIRED = "repaired"  # others have done again what a dead peer held
    MOVED = "moved"  # a peer is granted another stage
    EXCLUDED = "excluded"  # a process is refused, or put out for what it sent or computed
    RESTARTED = "restarted"  # a step, or its ballot, starts over
    ROLLED_BACK = "rolled_back"  # to an earlier version
    LEADER = "leader"  # another trainer leads, or the leader goes on without most of the swarm
    WAITING = "waiting"  # what the run waits for has changed
    CHECKPOINT = "checkpoint"  # a version is on disk, or could not be written
    VALIDATED = "validated"
    FINISHED = "finished"
    OTHER = "other"
