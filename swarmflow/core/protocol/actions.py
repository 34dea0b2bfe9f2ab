"""What a machine asks the runtime to do. The runtime answers with the event named in each docstring."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.messages import Held, Message, StepResult
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import (
    Body,
    Epoch,
    MeasuredLink,
    Member,
    Microbatch,
    ProcessId,
    Ref,
    Roster,
    Snapshot,
)

DEFERRED_MIN = 2  # passes whose parameters' gradients may wait at any time: memory is kept for what they keep


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message; to the own process: hand it back as Received."""

    to: ProcessId
    message: Message
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """These bytes are needed no more."""

    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class RunForward:
    """Forward through the stage -> ForwardComputed.

    targets: travel with the microbatch, and may hold what this stage needs too. keep: the graph, for the backward.
    again: it was done before, and its output is needed once more. deferred_max: passes whose parameters' gradients may
    wait from now on, whatever else is to be computed; None: as many as before.
    """

    microbatch: Microbatch
    input: Ref
    targets: Ref
    keep: bool = True
    again: bool = False
    deferred_max: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RunLoss:
    """Forward, loss and backward of the last stage -> LossComputed, perhaps after InputGradientComputed.

    deferred_max: as in RunForward.
    """

    microbatch: Microbatch
    input: Ref
    targets: Ref
    deferred_max: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RunBackward:
    """Backward through the kept graph, accumulating -> BackwardComputed, perhaps after InputGradientComputed.

    deferred_max: as in RunForward.
    """

    microbatch: Microbatch
    gradient: Ref
    deferred_max: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RunReplay:
    """Forward and backward of a hop again -> Replayed.

    gradient: of the stage's output; None on the last stage, where targets give the loss. weight: 1 where the graph was
    not kept, -1 to take away what the hop once added; 0 accumulates nothing, and is for the gradient of the input alone
    (not on stage 0). deferred_max: as in RunForward.
    """

    microbatch: Microbatch
    input: Ref
    targets: Ref
    gradient: Ref | None
    weight: int
    deferred_max: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Discard:
    """This hop is another's: drop its graph, and what of it is queued."""

    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class Reset:
    """Drop all graphs and queued work, and zero the accumulators.

    exponent: of the step that begins, where gradients add up as integers: one of them counts 2^-exponent. careful:
    check each layer's output and each microbatch's gradients for values that are not finite, to name the layer. kept:
    how many of 256 numbers cross each boundary, where the run's codec is adaptive.
    """

    exponent: int = 36
    careful: bool = False
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SumPiece:
    """Add the parts in rank order (None: the own accumulator), into the reduced buffer -> PieceReduced or PieceFailed.

    apart: it is a piece of another stage, of which there is no buffer here; the event has the sum.
    """

    epoch: Epoch
    ballot: int
    group: str
    piece: int
    start: int
    stop: int
    parts: tuple[Ref | None, ...]
    apart: bool = False


@dataclass(frozen=True, slots=True)
class StorePiece:
    """Copy a received sum into the reduced buffer -> PieceReduced or PieceFailed. The sum is released."""

    epoch: Epoch
    ballot: int
    group: str
    piece: int
    start: int
    stop: int
    sum: Ref


@dataclass(frozen=True, slots=True)
class Seal:
    """Norm and digest of the reduced gradients -> Sealed, or StateDamaged.

    Groups in `alone` have one member: theirs is the accumulator, and their digest one of the norm. pieces: (group,
    digest of each piece as its owner has summed it). A gradient with another piece has no digest.
    """

    epoch: Epoch
    ballot: int
    groups: tuple[str, ...]
    alone: tuple[str, ...]
    pieces: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """The optimizer's update, then zero the accumulators -> Applied, or StateDamaged.

    followed: peers load the stage, and the sums are kept for them. hashed: the state is hashed beside the next step:
    StateHashed follows.
    """

    epoch: Epoch
    scale: float
    learning_rate: float
    followed: bool = False
    hashed: bool = False


@dataclass(frozen=True, slots=True)
class HashState:
    """Hash the state of the own stage, which is at this version -> StateHashed, or StateDamaged."""

    version: int


@dataclass(frozen=True, slots=True)
class LoadState:
    """Build the stage and load it at a version or a later one, or initial weights without donors -> StateLoaded.

    follows: what has been loaded of the stage remains valid, and a load that is under way goes on from these donors.
    """

    stage: int
    version: int
    donors: tuple[Member, ...]
    follows: bool = False


@dataclass(frozen=True, slots=True)
class ExpectRoot:
    """The state of the stage that is being loaded has this root at this version, as its members have agreed."""

    stage: int
    version: int
    root: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Serve the stage that this process still holds in memory from an earlier life -> StateLoaded.

    update: to be applied first, with the gradient that was reduced in that life.
    """

    stage: int
    version: int
    update: Apply | None = None


@dataclass(frozen=True, slots=True)
class FormMicrobatch:
    """Read a microbatch by the data rule -> MicrobatchFormed."""

    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Copy every stage's state at `version` from its donors to disk -> CheckpointWritten. Last: write `final` too.

    roots: of the stages' states; empty: a stage has lost its peers, and the write will fail. spare: a version on disk
    that others copy from here. number: the answer has it too; 0: it is a copy of what another leader has written.
    """

    version: int
    roster: Roster
    last: bool = False
    roots: tuple[str, ...] = ()
    spare: int = -1
    number: int = 0


@dataclass(frozen=True, slots=True)
class WriteStage:
    """Write the served stage at `version` to the own disk, before the next update -> StageWritten."""

    stage: int
    version: int


@dataclass(frozen=True, slots=True)
class KeepCopies:
    """Copy these stages of a snapshot to the own disk, beside everything else -> CopiesChanged.

    holders: of each stage, in the order in which to ask them. A stage that the own disk has is not copied again. whole:
    as in Holding.
    """

    snapshot: Snapshot
    stages: tuple[int, ...]
    holders: tuple[tuple[Member, ...], ...]
    whole: bool = True


@dataclass(frozen=True, slots=True)
class DropCopies:
    """Delete the copies of versions outside of [oldest, newest] -> CopiesChanged. whole: a version that is, or was."""

    oldest: int
    newest: int
    whole: int


@dataclass(frozen=True, slots=True)
class Validate:
    """Measure the validation loss of `version` on these peers -> Validated. Given again: on these, and no others.

    Progressed tells of each batch.
    """

    version: int
    roster: Roster


@dataclass(frozen=True, slots=True)
class PlanStages:
    """Work out which peer should serve which stage by the links between them -> StagesPlanned.

    links: at least one. serves: the stage of each peer, -1: none yet. fixed: whether it has to stay there.
    microbatches, boundary_bytes: of a step, and of a tensor between stages; gradient_bytes: of the gradients of each
    stage.
    """

    number: int
    links: list[MeasuredLink]
    serves: tuple[int, ...]
    fixed: tuple[bool, ...]
    microbatches: int
    boundary_bytes: int
    gradient_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody waits any more for what was begun, a `save` or a `validation`: end it, and answer nothing."""

    what: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The answer to a SaveAsked: this version is on disk, or (failed: why) none that is new enough."""

    number: int
    version: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Write one line of the run's log."""

    result: StepResult


@dataclass(frozen=True, slots=True)
class TookOver:
    """This trainer leads from here on: people and processes that look for the run should find it."""

    term: int


@dataclass(frozen=True, slots=True)
class Connect:
    """These processes will be sent to: this is where they can be dialled."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """A process is gone: close what is open to it, and drop what is queued for it."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Log:
    """Tell the person who runs this process. level: `info`, `warning` or `debug`.

    kind: what it is in the timeline of the run, for those who watch it; None: it is no event of the run.
    """

    level: str
    text: str
    kind: EventKind | None = None
    process: ProcessId | None = None  # that it is about
    stage: int = -1  # that it is about; -1: none


@dataclass(frozen=True, slots=True)
class Count:
    """Raise a counter of the metrics, or record a duration in a histogram (`reduce_seconds`)."""

    name: str
    label: str = ""
    amount: float = 1.0


@dataclass(frozen=True, slots=True)
class Rejoin:
    """This life of the process is over for the swarm: start another incarnation, which still has `held` in memory."""

    reason: str
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class StoreState:
    """Write what this process holds into its folder, for a later life of it. Done with StateStored."""

    held: Held


@dataclass(frozen=True, slots=True)
class Exit:
    """The process has nothing more to do."""

    reason: str
    ok: bool = True


Action = (
    Send
    | Release
    | RunForward
    | RunLoss
    | RunBackward
    | RunReplay
    | Discard
    | Reset
    | SumPiece
    | StorePiece
    | Seal
    | Apply
    | LoadState
    | ExpectRoot
    | HashState
    | Resume
    | StoreState
    | FormMicrobatch
    | WriteCheckpoint
    | WriteStage
    | KeepCopies
    | DropCopies
    | Validate
    | PlanStages
    | Abandon
    | Saved
    | Record
    | TookOver
    | Connect
    | Forget
    | Log
    | Count
    | Rejoin
    | Exit
)
