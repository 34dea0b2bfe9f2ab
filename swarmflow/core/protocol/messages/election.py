"""Messages of an election: another trainer becomes the leader."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.protocol.messages.hop import Done
from swarmflow.core.protocol.messages.membership import Join
from swarmflow.core.protocol.messages.step import Commit, OpenStep, RosterDelta, Tally
from swarmflow.core.protocol.types import Member, ProcessId


@dataclass(frozen=True, slots=True)
class Elect:
    """A candidate asks to be followed from this term on, and for a report of what the receiver holds.

    roster: digest of the candidate's own roster.
    """

    term: int
    me: Member
    roster: str = ""


@dataclass(frozen=True, slots=True)
class ElectionReport:
    """Answer an Elect: the sender follows in this term, and reports its view of the last epoch that was opened."""

    term: int
    join: Join  # as sent to the former leader
    member: Member  # with the stage served
    ready: bool  # the stage is loaded, at `version`
    version: int
    draining: bool
    opened: OpenStep  # without its roster where that is the Elect's, or follows from it by `change`
    gone: tuple[ProcessId, ...] = ()  # members that failed in the epoch
    newcomers: tuple[Member, ...] = ()  # members that came in for the update, from Prepare
    entered: tuple[ProcessId, ...] = ()  # members that came in before the update
    suspects: tuple[ProcessId, ...] = ()  # lost by the sender although no leader has declared them failed
    done: tuple[Done, ...] = ()  # accumulated here, also of a step that was begun ahead
    dropped: tuple[int, ...] = ()  # orphans that were taken away
    indices: tuple[int, ...] = ()  # a trainer's own microbatches
    reassignment: int = 0  # of the highest Assign
    ballot: int = 0  # of the last Prepare
    tally: Tally | None = None  # of the last Prepare
    results: tuple[tuple[str, float, str], ...] = ()  # of the last Prepared, unless a bit of its sums has flipped
    commit: Commit | None = None
    applied: bool = False  # the commit is
    change: RosterDelta | None = None  # as received instead of an OpenStep
    abandoned: bool = False  # the sender has dropped its part in the epoch: it was granted another state since
    ahead: bool = False  # the next step was begun ahead
    ahead_indices: tuple[int, ...] = ()  # a trainer's own microbatches of that one
    void: str = ""  # why the sender has found that the step must start over; its report to the leader may be lost
    root: str = ""  # of the state at `version`; empty: it is not hashed yet


@dataclass(frozen=True, slots=True)
class Deposed:
    """Tell a former leader that the sender follows another one, in this later term."""

    term: int
