"""Messages by which another trainer becomes the leader."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.messages.hop import Done
from swarmflow.core.messages.membership import Join
from swarmflow.core.messages.step import Commit, OpenStep, RosterDelta, Tally
from swarmflow.core.types import Member, ProcessId


@dataclass(frozen=True, slots=True)
class Elect:
    """From a trainer that has lost the leader: follow me from this term on, and tell me what you hold.

    roster: digest of the one that it knows itself.
    """

    term: int
    me: Member
    roster: str = ""


@dataclass(frozen=True, slots=True)
class ElectionReport:
    """I follow you in this term. What I know and hold of the epoch that was opened last, for you to go on from it.

    join: as it was said to the former leader. member: with the stage served. ready: it is loaded, at `version`.
    opened: the epoch, without its roster where that is the one of the Elect, or follows from it by `change`, the
    RosterDelta that was heard; gone: who died to it, newcomers: who came in for its update, entered: or before it;
    suspects: whom I lost although nobody has declared them dead. done: what is accumulated here; dropped: what was,
    as an orphan. indices, attempt: a trainer's own microbatches, and the highest Assign. ballot, tally: of the last
    Prepare; results: of its Prepared, if it came so far. commit: if it was heard; digest: of the parameters, if it is
    applied.
    """

    term: int
    join: Join
    member: Member
    ready: bool
    version: int
    draining: bool
    opened: OpenStep
    gone: tuple[ProcessId, ...] = ()
    newcomers: tuple[Member, ...] = ()
    entered: tuple[ProcessId, ...] = ()
    suspects: tuple[ProcessId, ...] = ()
    done: tuple[Done, ...] = ()
    dropped: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    attempt: int = 0
    ballot: int = 0
    tally: Tally | None = None
    results: tuple[tuple[str, float, str], ...] = ()
    commit: Commit | None = None
    digest: str = ""
    change: RosterDelta | None = None


@dataclass(frozen=True, slots=True)
class Deposed:
    """To one who leads: I follow another one, in this later term."""

    term: int
