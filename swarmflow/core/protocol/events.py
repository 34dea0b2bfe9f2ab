"""What happens to a machine: messages, losses, and the results of what it asked the runtime to do."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.protocol.messages import Message, PeerSummary
from swarmflow.core.protocol.piece_format import FP32, PieceFormat
from swarmflow.core.protocol.types import Epoch, Holding, Microbatch, ProcessId, Ref, Role


@dataclass(frozen=True, slots=True)
class Received:
    """A message whose sender the connection has proven.

    role: by the sender's certificate; None: it has none. signed: it has all signatures that belong to it, and they are
    right (core/protocol/handovers.py).
    """

    sender: ProcessId
    message: Message
    bodies: tuple[Ref, ...] = ()
    role: Role | None = "trainer"
    signed: bool = True


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection to a process broke, or it could not be reached."""

    process: ProcessId
    reason: str


@dataclass(frozen=True, slots=True)
class Mishandled:
    """An exception was raised while a message of this process was handled: what it has changed may be half done."""

    process: ProcessId
    reason: str


class BlamedError(Exception):
    """What a process has said before makes the machine raise now (the cause): as if that message was at hand."""

    def __init__(self, process: ProcessId, message: str) -> None:
        super().__init__(f"a {message} of {process}")
        self.process = process
        self.message = message


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline that the machine named has come."""


@dataclass(frozen=True, slots=True)
class ForwardComputed:
    """output: the activation in wire form."""

    microbatch: Microbatch
    output: Ref


@dataclass(frozen=True, slots=True)
class InputGradientComputed:
    """The gradient of a hop's input, in wire form, before those of its parameters: they follow, with another event."""

    microbatch: Microbatch
    gradient: Ref


@dataclass(frozen=True, slots=True)
class LossComputed:
    """The last stage is done with a microbatch.

    gradient: of its input, in wire form; None on a run of one stage, and after InputGradientComputed.
    """

    microbatch: Microbatch
    loss_sum: float
    tokens: int
    gradient: Ref | None


@dataclass(frozen=True, slots=True)
class BackwardComputed:
    """gradient: of the stage's input, in wire form; None on stage 0, and after InputGradientComputed."""

    microbatch: Microbatch
    gradient: Ref | None


@dataclass(frozen=True, slots=True)
class ComputeFailed:
    """A tensor from the network did not decode or did not fit; `reason` says what was wrong."""

    microbatch: Microbatch
    reason: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The hop is done once more, with the weight that RunReplay said. gradient: of its input, where that is 0."""

    microbatch: Microbatch
    weight: int
    gradient: Ref | None = None


@dataclass(frozen=True, slots=True)
class Overflowed:
    """A gradient of this hop is too large for the step's exponent. Nothing of it was accumulated."""

    microbatch: Microbatch


@dataclass(frozen=True, slots=True)
class ComputedNotFinite:
    """A value that was computed here is not finite, although all that it was computed from is. It was not passed on.

    index: of the microbatch, -1: a sum over several. value, layer: as in the message NotFinite. group, piece: which
    part of a reduced gradient it is, where it is one.
    """

    epoch: Epoch
    index: int
    value: str
    layer: str = ""
    group: str = ""
    piece: int = -1


@dataclass(frozen=True, slots=True)
class MicrobatchFormed:
    """tokens, targets: in wire form."""

    microbatch: Microbatch
    tokens: Ref
    targets: Ref


@dataclass(frozen=True, slots=True)
class PieceReduced:
    """A piece of a group's gradient stands in the reduced buffer (summed here, or received and stored).

    ballot: in which the group's reduction began. digest: of a piece that was summed here. sum: of another stage's,
    which has no buffer here.
    """

    epoch: Epoch
    ballot: int
    group: str
    piece: int
    digest: str = ""
    sum: Ref | None = None


@dataclass(frozen=True, slots=True)
class PieceFailed:
    """Bytes of a piece did not decode, and nothing was added up or stored.

    parts: those of a piece that this process sums; none: it is the sum from the piece's owner.
    """

    epoch: Epoch
    ballot: int
    group: str
    piece: int
    parts: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Sealed:
    """All groups are reduced: (group, squared norm, digest; empty: a piece is not what its owner has summed)."""

    epoch: Epoch
    ballot: int
    results: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The update is made."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class StateHashed:
    """The state has this root at this version."""

    version: int
    root: str


@dataclass(frozen=True, slots=True)
class StateDamaged:
    """The state in memory is not what it was when it was made or loaded: found before anything of it is given away.

    epoch: of the step that was to be reported or applied; None: it was to be hashed, or loaded by another peer.
    """

    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """A stage's weights and optimizer state are in place.

    root: of the state. group_elements: length of each flat gradient by group. piece: how many bytes a piece of one may
    have.
    """

    stage: int
    version: int
    root: str
    capacity: int
    group_elements: tuple[tuple[str, int], ...]
    piece: PieceFormat = FP32


@dataclass(frozen=True, slots=True)
class StateNotLoaded:
    """No donor could give the state."""

    stage: int
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateStored:
    """The state is in the process's folder. failed: why it is not, empty: it is."""

    failed: str = ""


@dataclass(frozen=True, slots=True)
class StageWritten:
    """The own stage at a version is on this process' disk. root: of its state. failed: why it is not there."""

    stage: int
    version: int
    root: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """What a disk lacked. path: the folder to be written to."""

    path: str
    needed_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The state of all stages at `version` is on disk (ok), or could not be written (reason).

    roots: of the stages. exported: what WriteCheckpoint asks for beside the state is written too, else reason
    says why not. space: where it was room that lacked. number: of the WriteCheckpoint.
    """

    version: int
    ok: bool
    reason: str = ""
    roots: tuple[str, ...] = ()
    exported: bool = True
    space: DiskSpace | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class DiskChanged:
    """What lay on the own disk is not there any more, or not as it was (reason).

    version: the newest that is still whole there, 0: none. roots: of its stages. parts: what is left of later ones.
    """

    version: int
    reason: str
    roots: tuple[str, ...] = ()
    parts: tuple[Holding, ...] = ()


@dataclass(frozen=True, slots=True)
class CopiesChanged:
    """What lies on this peer's disk of the run. failed: why what was asked for does not, or not all of it."""

    copies: tuple[Holding, ...]
    failed: str = ""


@dataclass(frozen=True, slots=True)
class SaveAsked:
    """Somebody wants the version that the run is at on a disk -> Saved."""

    number: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """A part of something long is done. of: `load`, `save` or `validation`.

    through: the peers that a validation batch has gone through. version: of a save, that every state of this one is
    here, so that what is left is for the own disk.
    """

    of: str
    through: tuple[ProcessId, ...] = ()
    version: int = -1


@dataclass(frozen=True, slots=True)
class Validated:
    """The validation loss of a version."""

    version: int
    loss: float


@dataclass(frozen=True, slots=True)
class StagesPlanned:
    """The answer to PlanStages: the stage of each peer by the plan, and if nobody moves. None: it has failed."""

    number: int
    stages: tuple[int, ...] = ()
    staying: tuple[int, ...] = ()
    planned_s: float = 0.0  # what exchanges take in a step
    staying_s: float = 0.0  # the same if nobody moves; infinite: a stage has no peer


@dataclass(frozen=True, slots=True)
class Rival:
    """Another trainer says that it leads this run, at this version: a split network has become one again."""

    leader: ProcessId
    version: int


@dataclass(frozen=True, slots=True)
class Summarized:
    """What this peer has done and uses by now, for those who watch the run."""

    summary: PeerSummary


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The person or the system that runs this process wants it to go."""


Event = (
    Received
    | Lost
    | Mishandled
    | Tick
    | ForwardComputed
    | InputGradientComputed
    | LossComputed
    | BackwardComputed
    | Replayed
    | Overflowed
    | ComputeFailed
    | ComputedNotFinite
    | MicrobatchFormed
    | PieceReduced
    | PieceFailed
    | Sealed
    | Applied
    | StateHashed
    | StateDamaged
    | StateLoaded
    | StateNotLoaded
    | StateStored
    | StageWritten
    | CheckpointWritten
    | DiskChanged
    | CopiesChanged
    | SaveAsked
    | Progressed
    | Validated
    | StagesPlanned
    | Rival
    | Summarized
    | DrainAsked
)
