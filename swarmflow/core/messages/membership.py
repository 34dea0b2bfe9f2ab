"""Messages about who is there: joins, grants, signs of life, departures."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from swarmflow.core.messages.step import Commit
from swarmflow.core.types import Epoch, Holding, Member, ProcessId, Snapshot


def state_name(lineage: str, epoch: Epoch, ballot: int) -> str:
    """Return the name of the states that the commit of a ballot makes: two histories never share one."""
    return blake2b(repr((lineage, epoch, ballot)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Held:
    """A stage's state that a peer holds beyond one life: in memory, where every leader that it knew is gone; or in its
    folder, where it left at once and nobody else had it.

    name: of the state (state_name), which says which history it is of; empty: it was loaded from a disk. digest: of its
    parameters, as in Committed; empty: not known. commit: the one that made it, where this peer has heard it. upcoming:
    the name of the next version's state, where this peer has reduced the gradient of that ballot and lacks the commit
    alone.
    """

    stage: int
    version: int
    name: str
    digest: str = ""
    commit: Commit | None = None
    upcoming: str = ""


@dataclass(frozen=True, slots=True)
class Join:
    """To the leader: take me in. stage: the one asked for, or -1 for any; a trainer says role `trainer`.

    run: fingerprint of the run that the sender believes in. speed: relative, for the placement. rebalance_s: how often
    it may be moved to a stage that needs it more; 0: it stays. keeps: there is room on its disk for copies of stages.
    copies: what lies there of this run. held: what the peer has served before and still holds in memory.
    """

    role: str
    software: str
    run: str
    member: Member
    speed: float = 1.0
    rebalance_s: float = 0.0
    keeps: bool = False
    copies: tuple[Holding, ...] = ()
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """You cannot take part, and why; final."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """To a trainer that joined: wait for the next OpenStep."""

    term: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Serve this stage: load `version` from one of the donors (none: make the run's initial weights).

    grant: its number, to be told in the answer, which may cross with a later grant. name: of the version's state; who
    holds that one in memory loads nothing. commit: it makes the version of what the peer holds.
    """

    term: int
    stage: int
    version: int
    donors: tuple[Member, ...]
    grant: int = 0
    name: str = ""
    commit: Commit | None = None


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
class KeepCopy:
    """This snapshot is on the holder's disk; copy these stages of it to yours."""

    holder: Member
    snapshot: Snapshot
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopiesHeld:
    """To the leader: this is what lies on my disk now, verified. failed: not all that was asked for, and why."""

    copies: tuple[Holding, ...]
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Surplus:
    """To who keeps copies: those of versions outside of [oldest, newest] are needed no more.

    Every stage of `newest` is verified on somebody's disk beside the leader's. What is newer was left behind by a
    history that the run has given up.
    """

    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class Drain:
    """To the leader: let me go at the edge of this step."""


@dataclass(frozen=True, slots=True)
class Left:
    """To the leader of this term, the last message of a life: it follows nobody else any more.

    held: it alone had this, writes it into its folder, and may come back with it; should the disk refuse, it says Left
    once more, without.
    """

    term: int
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """You may go: nothing depends on you any more."""


@dataclass(frozen=True, slots=True)
class Needed:
    """To who drains and alone holds its stage: not yet; the run, at `version`, would go back to the durable one.

    saving: a copy of its state is being written; else that is done after the step at hand. wait_s: for how long the
    run would wait for who leaves at once, and has its state in a folder of its own.
    """

    version: int
    durable: int
    saving: bool
    wait_s: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """To the leader, each second. queued, held: microbatches waiting and held. sent: messages without bodies so far.

    done: how much this life has done so far: computations, pieces reduced, parts of a state loaded, microbatches
    formed. Whoever owes the run something and does not raise it stands still. awaits: without whose parts or sums its
    all-reduce cannot go on; none while something of its own is left to do.
    """

    queued: int = 0
    held: int = 0
    version: int = -1
    sent: int = 0
    done: int = 0
    awaits: tuple[ProcessId, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkRateReport:
    """How many bytes a second go from me to these: to the leader, and to those around me.

    elements: of my gradients, by reduction group.
    """

    elements: tuple[tuple[str, int], ...]
    rates: tuple[tuple[ProcessId, float], ...]


@dataclass(frozen=True, slots=True)
class LeaderHeartbeat:
    """From the leader to everybody, each second. sent: messages without bodies to this process so far."""

    term: int
    epoch: Epoch
    sent: int = 0


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
class Postponed:
    """To who wants to join: not yet. It was put out, for this reason; it may come in so many seconds."""

    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The last step is committed and the output is written; or the run has to stop at this version, for a reason."""

    version: int
    reason: str = ""
