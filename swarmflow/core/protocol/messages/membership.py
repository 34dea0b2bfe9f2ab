"""Messages about membership: joins, grants, heartbeats, copies of states, departures."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from swarmflow.core.protocol.messages.step import Commit
from swarmflow.core.protocol.types import Epoch, Holding, Member, ProcessId, Snapshot

SURVEYED_MAX = 128  # peers to which a process measures its links at a time


def state_name(lineage: str, epoch: Epoch, ballot: int) -> str:
    """Return the name of the states that the commit of a ballot makes: two histories never share one."""
    return blake2b(repr((lineage, epoch, ballot)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Held:
    """A stage's state that outlives one life of its peer.

    In memory, where every leader that the peer knew is gone; or in its folder, where it left at once and no other peer
    had the stage.
    """

    stage: int
    version: int
    name: str  # state_name: the history that it belongs to; empty: loaded from a disk
    root: str = ""  # of the state; empty: not known
    commit: Commit | None = None  # the commit that made it, where this peer has received it
    upcoming: str = ""  # name of the next version's state, where its gradient is reduced and only the commit is missing
    certified: Snapshot | None = None  # the version, where this peer has its certificate


@dataclass(frozen=True, slots=True)
class Join:
    """Ask the leader to join the run."""

    role: str  # `peer` or `trainer`
    software: str  # version
    run: str  # fingerprint of the manifest that the sender has
    member: Member  # stage: the one asked for; -1: any
    speed: float = 1.0  # of its computing, for the placement: so many units of `Plan.costs` a second
    rebalance_s: float = 0.0  # how often it may be moved to another stage; 0: never
    keeps: bool = False  # its disk has room for copies of stages
    copies: tuple[Holding, ...] = ()  # on its disk, of this run
    held: Held | None = None  # the state of the stage that it served before
    upload_rate: float = 0.0  # bytes/s that its user lets it send, 0: not stated
    unfit: tuple[int, ...] = ()  # stages for which its memory has no room


@dataclass(frozen=True, slots=True)
class Refused:
    """The receiver cannot take part; final."""

    reason: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """A trainer has joined and takes part from the next OpenStep on."""

    term: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Serve this stage: load `version` from the donors, or without donors make the run's initial weights.

    Donors that serve the stage may be at a later version by now: the load ends with theirs.
    """

    term: int
    stage: int
    version: int
    donors: tuple[Member, ...]
    grant: int = 0  # its number, repeated in the answer, which may cross with a later grant
    name: str = ""  # of the version's state: a peer that holds it in memory loads nothing
    commit: Commit | None = None  # the one that made this version, or makes it of what the peer holds
    follows: bool = False  # the run has not gone back since the last grant: what was loaded of the stage remains valid
    certified: Snapshot | None = None  # the version, where its stages have agreed on their roots


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Report to the leader that no donor of the grant could provide the state."""

    stage: int
    version: int
    reason: str
    grant: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """Report to the leader that the granted state is loaded. root: of what is loaded."""

    stage: int
    version: int
    root: str
    capacity: int
    grant: int = 0


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Write the stage that the receiver serves at this version to its disk, from which others copy it later.

    It applies the next update only after that.
    """

    version: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Report to the leader that the own stage is on the sender's disk. root: of its state. failed: why it is not."""

    stage: int
    version: int
    root: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ReportRoot:
    """Hash the own stage's state, if it is at this version, and report its root -> StateRoot."""

    version: int


@dataclass(frozen=True, slots=True)
class StateRoot:
    """Report to the leader the root of the own stage's state (compute/state_root.py)."""

    stage: int
    version: int
    root: str


@dataclass(frozen=True, slots=True)
class VersionCertified:
    """The peers of each stage have agreed on their state at a version: whatever differs from it is wrong."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class KeepCopy:
    """Copy these stages of a snapshot from the disks of their holders to the receiver's.

    holders: of each stage, in the order in which to ask them. What the receiver has written itself (TakeSnapshot) is
    part of the snapshot from now on. whole: as in Holding.
    """

    snapshot: Snapshot
    stages: tuple[int, ...]
    holders: tuple[tuple[Member, ...], ...]
    whole: bool = True


@dataclass(frozen=True, slots=True)
class CopiesHeld:
    """Report to the leader the verified copies on the sender's disk. failed: why not all that was asked for."""

    copies: tuple[Holding, ...]
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Surplus:
    """Copies of versions outside of [oldest, newest] may be deleted.

    Newer copies belong to a lineage that the run has left. whole: the version of which every stage is verified on
    another disk than the leader's, and another peer's than those of the stage; 0: of none.
    """

    oldest: int
    newest: int
    whole: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the leader to leave between two steps."""


@dataclass(frozen=True, slots=True)
class Left:
    """The last message of a life, to the leader of this term: the sender follows no other leader after it.

    held: a state that only this peer had. It writes it into its folder and may come back with it; if the disk refuses,
    it sends Left again without it.
    """

    term: int
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The receiver may leave: nothing depends on it any more."""


@dataclass(frozen=True, slots=True)
class Needed:
    """A draining peer, the only one of its stage, has to stay until its state is safe."""

    version: int  # of the run now
    durable: int  # to which the run would go back if the peer left now
    saving: bool  # a copy of its state is being written; else that begins after the current step
    wait_s: float  # how long the run would wait for a peer that leaves now with its state in its folder


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent to the leader each second."""

    queued: int = 0  # microbatches waiting for, or in, computation; of a trainer: that it has to form yet
    held: int = 0  # microbatches with a graph
    version: int = -1
    sent: int = 0  # messages without bodies to this leader so far (core/protocol/message_counter.py)
    done: int = 0  # units of work in this life: a process that owes work and does not raise it stands still
    awaits: tuple[ProcessId, ...] = ()  # members without whose parts or sums its all-reduce cannot go on
    epoch: Epoch | None = None  # of the last OpenStep that has reached it


@dataclass(frozen=True, slots=True)
class PeerSummary:
    """Sent by a peer to the leader every few seconds, for those who watch the run: no decision depends on it.

    All counts are those of the process since it started.
    """

    hops: int = 0  # computed
    tokens: int = 0  # target tokens of these
    compute_s: float = 0.0
    used_s: float = 0.0  # computed, and in a committed step
    wasted_s: float = 0.0  # computed, and in no step ever
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_bytes: int = 0  # resident, of the process
    loading_bytes: int = 0  # received of the stage that it loads now
    loading_total_bytes: int = 0  # of that stage; 0: it loads none
    metrics_port: int = 0  # at which others can read its metrics; 0: they cannot
    reach: str = "unknown"  # how others connect to it: public, punched, relay, local or unknown


@dataclass(frozen=True, slots=True)
class LinkRateReport:
    """Measured link rates from the sender, reported to the leader and to the peers around it."""

    elements: tuple[tuple[str, int], ...]  # of its flat gradients, by reduction group
    rates: tuple[tuple[ProcessId, float], ...]  # bytes/s to each of these


@dataclass(frozen=True, slots=True)
class MeasureLinks:
    """Measure the links to these peers, and report what each stage would gain by having the receiver -> LinkGains.

    Without `links` between these, the measured links themselves are reported.
    """

    survey: int  # its number, repeated in the answer
    members: tuple[Member, ...]  # some peers of each stage; the capacity of each stands for those that are left out too
    links: tuple[tuple[int, int, float], ...]  # (sender, receiver): places in `members`; seconds of a boundary tensor


@dataclass(frozen=True, slots=True)
class LinkGains:
    """Report to the leader what the sender's links would gain at each stage, in seconds a step; or the links alone."""

    survey: int
    rate: float  # of its fastest link, in bytes/s; 0: it has measured none
    gains: tuple[float, ...]  # one for each stage; none: too little was measured, or known of the others' links
    links: tuple[tuple[ProcessId, float, float], ...] = ()  # to each: latency in seconds, rate in bytes/s


@dataclass(frozen=True, slots=True)
class LeaderHeartbeat:
    """Sent by the leader to every member each second. sent: messages without bodies to the receiver so far."""

    term: int
    epoch: Epoch
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """Report to the leader that the sender cannot reach this process.

    refused: it can, and has refused a message of it that cannot be true.
    """

    process: ProcessId
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Evicted:
    """The receiver is not a member of this run (any more): it has to join again as a new incarnation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """A process that was put out asks to join too early. wait_s: when it may."""

    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over: all steps are committed and the output is written, or it stops at this version for a reason."""

    version: int
    reason: str = ""
