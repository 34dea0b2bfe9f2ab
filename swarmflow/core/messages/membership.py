"""Messages about who is there: joins, grants, signs of life, departures."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.types import Epoch, Member, ProcessId


@dataclass(frozen=True, slots=True)
class Join:
    """To the leader: take me in. stage: the one asked for, or -1 for any; a trainer says role `trainer`.

    run: fingerprint of the run that the sender believes in. speed: relative, for the placement. rebalance_s: how often
    it may be moved to a stage that needs it more; 0: it stays.
    """

    role: str
    software: str
    run: str
    member: Member
    speed: float = 1.0
    rebalance_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """You cannot take part, and why; final."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a trainer that joined: wait for the next Open."""

    term: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Serve this stage: load `version` from one of the donors (none: make the run's initial weights).

    grant: its number, to be told in the answer, which may cross with a later grant.
    """

    term: int
    stage: int
    version: int
    donors: tuple[Member, ...]
    grant: int = 0


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """To the leader: the state could not be loaded from the donors named; grant again."""

    stage: int
    version: int
    reason: str
    grant: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """To the leader: the state is loaded."""

    stage: int
    version: int
    digest: str
    capacity: int
    grant: int = 0


@dataclass(frozen=True, slots=True)
class Keep:
    """To a trainer: this version is on the leader's disk; copy it to yours."""

    version: int
    holder: Member


@dataclass(frozen=True, slots=True)
class Drain:
    """To the leader: let me go at the edge of this step."""


@dataclass(frozen=True, slots=True)
class Released:
    """You may go: nothing depends on you any more."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """To the leader, each second. queued, held: microbatches waiting and held."""

    queued: int = 0
    held: int = 0
    version: int = -1


@dataclass(frozen=True, slots=True)
class Beat:
    """From the leader to everybody, each second."""

    term: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Suspect:
    """To the leader: I cannot reach this process."""

    process: ProcessId
    reason: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """You are not part of this run's roster (any more): join again as a new incarnation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last step is committed and the output is written."""

    version: int
