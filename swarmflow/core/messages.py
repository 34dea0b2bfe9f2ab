"""Every message between processes, as data. Bodies (tensors) travel beside a message, never in it."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.types import EXPONENT, Epoch, Group, Member, Microbatch, ProcessId, Roster

# --- the way of a microbatch -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forward:
    """Do this hop. Bodies: the input (token ids for stage 0, else the activation) and the targets, in wire form.

    attempt: counted by the sender; a newer attempt replaces an older one. repair: a peer that had this hop died, so
    that the hop after it may be held by somebody already (held_by, where known): the receiver asks before it sends.
    insist: nobody else can take it, so that a draining peer has to.
    """

    microbatch: Microbatch
    stage: int
    attempt: int
    repair: bool = False
    held_by: ProcessId | None = None
    insist: bool = False


@dataclass(frozen=True, slots=True)
class Adopt:
    """If you hold this hop, I am its predecessor from now on, and its gradient goes to me; lower attempts are void."""

    microbatch: Microbatch
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The hop is mine."""

    microbatch: Microbatch
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Denied:
    """The hop is not mine; reason is one of `full`, `draining`, `unknown`, `stale`, `stage`, `invalid`."""

    microbatch: Microbatch
    stage: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Room:
    """I denied you because I was full; now there is room."""

    stage: int


@dataclass(frozen=True, slots=True)
class Relieve:
    """You are late: the hop is another's now. What you have accumulated of it, the step's manifest decides about."""

    microbatch: Microbatch
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Routed:
    """To the predecessor: the hop after mine went to `successor`. attempt: the one that the predecessor gave me."""

    microbatch: Microbatch
    stage: int
    attempt: int
    successor: ProcessId


@dataclass(frozen=True, slots=True)
class Backward:
    """To the predecessor: the gradient of what it sent (body). To a trainer (no body): the microbatch is complete."""

    microbatch: Microbatch
    stage: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Done:
    """To the leader: the gradient of this hop is accumulated. loss_sum, tokens: from the last stage only."""

    microbatch: Microbatch
    stage: int
    attempt: int
    loss_sum: float = 0.0
    tokens: int = 0


# --- a step ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """A step begins, or begins anew: everybody in the roster takes part; what belongs to another epoch is void.

    Weights are at version `epoch.step`. Microbatch i is formed by trainer i mod (number of trainers). lineage: who
    began the history that the epoch belongs to. newcomers: of the roster, those that come in as the step ends, for its
    update alone. exponent: where gradients add up as integers, one of them counts 2^-exponent.
    """

    term: int
    epoch: Epoch
    roster: Roster
    lineage: ProcessId
    newcomers: tuple[ProcessId, ...] = ()
    exponent: int = EXPONENT


@dataclass(frozen=True, slots=True)
class Gone:
    """A process of the roster is dead to this epoch. A ballot under way is revoked.

    lost: hops (stage, index) that were accumulated and have no holder any more: whoever believes that one of them is
    done sends it again.
    """

    term: int
    epoch: Epoch
    process: ProcessId
    reason: str
    lost: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Assign:
    """To a trainer: these microbatches of a dead one are yours now.

    attempt: higher than all that the dead one gave them. Who holds them already is asked before they are sent again.
    """

    term: int
    epoch: Epoch
    indices: tuple[int, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Overflow:
    """To the leader: a gradient of this hop is too large for the step's exponent, or no number (finite: False)."""

    microbatch: Microbatch
    finite: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """What a step's manifest amounts to: mean loss, target tokens, hops that were done again after a death."""

    loss: float
    tokens: int
    retries: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Accumulate nothing more; check that you hold exactly `entries` ((index, attempt)), and reduce over `groups`.

    newcomers: peers that loaded this version during the step. They have accumulated nothing, but take part in the
    all-reduce and the update, so that they are at the next version like everybody without loading it again. tally: of
    the whole manifest, so that another leader can finish the ballot.
    """

    term: int
    epoch: Epoch
    ballot: int
    entries: tuple[tuple[int, int], ...]
    groups: tuple[Group, ...]
    tally: Tally
    newcomers: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """My groups are reduced: (group, squared norm of the summed gradient, digest of its bits)."""

    epoch: Epoch
    ballot: int
    results: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True)
class Unprepared:
    """I do not hold what the manifest lists for me."""

    epoch: Epoch
    ballot: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """To the trainers: a step is committed, with everything that the log of the run tells of it."""

    term: int
    epoch: Epoch
    loss: float
    tokens: int
    seconds: float
    grad_norm: float
    learning_rate: float
    microbatches: int
    peers: tuple[int, ...]
    retries: int
    validation_loss: float | None = None

    @property
    def step(self) -> int:
        """Its number, from 0."""
        return self.epoch.step


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """To the leader: what a repair needs was evicted from my journal; the step has to start over."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply: gradient = scale * summed gradient, at this learning rate. scale = clip factor / target tokens.

    result: of the step, so that another leader can tell it.
    """

    term: int
    epoch: Epoch
    ballot: int
    scale: float
    learning_rate: float
    result: StepResult


@dataclass(frozen=True, slots=True)
class Committed:
    """My parameters are at `version`, with this digest."""

    epoch: Epoch
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class ReducePart:
    """Body: my addend of a piece of a group's gradient, fp32, to the owner of the piece."""

    epoch: Epoch
    ballot: int
    group: str
    piece: int


@dataclass(frozen=True, slots=True)
class ReduceSum:
    """Body: the sum of a piece, fp32, from its owner to all members."""

    epoch: Epoch
    ballot: int
    group: str
    piece: int


# --- coming and going ------------------------------------------------------------------------------------------------


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


# --- another leader --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lead:
    """From a trainer that has lost the leader: follow me from this term on, and tell me what you hold."""

    term: int
    me: Member


@dataclass(frozen=True, slots=True)
class Report:
    """I follow you in this term. What I know and hold of the epoch that was opened last, for you to go on from it.

    join: as it was said to the former leader. member: with the stage served. ready: it is loaded, at `version`. opened:
    the epoch; gone: who died to it, newcomers: who came in for its update; suspects: whom I lost although nobody has
    declared them dead. done: what is accumulated here; dropped: what was, as an orphan. indices, attempt: a trainer's
    own microbatches, and the highest Assign. ballot, tally: of the last Prepare; results: of its Prepared, if
    it came so far. commit: if it was heard; digest: of the parameters, if it is applied.
    """

    term: int
    join: Join
    member: Member
    ready: bool
    version: int
    draining: bool
    opened: Open
    gone: tuple[ProcessId, ...] = ()
    newcomers: tuple[Member, ...] = ()
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


@dataclass(frozen=True, slots=True)
class Deposed:
    """To one who leads: I follow another one, in this later term."""

    term: int


Message = (
    Forward | Adopt | Accepted | Denied | Room | Relieve | Routed | Backward | Done
    | Open | Gone | Assign | Overflow | Prepare | Prepared | Unprepared | Unrepairable | Commit | Committed
    | StepResult | ReducePart | ReduceSum
    | Join | Refused | Welcome | Granted | LoadFailed | Ready | Keep | Drain | Released | Heartbeat | Beat | Suspect
    | Evicted | Finished | Lead | Report | Deposed
)  # fmt: skip
