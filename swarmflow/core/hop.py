"""One microbatch at one stage: what a peer knows and keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.messages import Done
from swarmflow.core.types import Microbatch, ProcessId, Ref


@dataclass(slots=True)
class HopQuery:
    """A neighbour was asked for bytes. everybody: its whole stage was. due_s: when to ask again; None: not set yet."""

    everybody: bool
    tries: int = 0
    due_s: float | None = None


@dataclass(slots=True)
class Wanted:
    """What of a hop has to be there once more, although its bytes may have been evicted.

    outputs, gradients: who asked for its output, or for the gradient of its input. resend: its output is to be sent to
    another successor. give_back: a replaced predecessor is owed the gradient. undo: it is an orphan to be taken away.
    forward, replay: what is being computed for that. asked: for its input (False), for its output's gradient (True).
    """

    outputs: dict[ProcessId, None] = field(default_factory=dict)
    gradients: dict[ProcessId, None] = field(default_factory=dict)
    resend: bool = False
    give_back: bool = False
    undo: bool = False
    forward: bool = False
    replay: bool = False
    asked: dict[bool, HopQuery] = field(default_factory=dict)

    @property
    def output(self) -> bool:
        """Whether anybody needs the hop's output."""
        return self.resend or bool(self.outputs)

    @property
    def gradient(self) -> bool:
        """Whether anybody needs the gradient of the hop's input."""
        return self.give_back or bool(self.gradients)

    @property
    def anything(self) -> bool:
        """Whether there is still something to wait for."""
        return self.output or self.gradient or self.undo or self.forward or self.replay


@dataclass(slots=True)
class Hop:
    """One microbatch at this stage. gradient: of its input, kept so that a replaced predecessor can have it.

    repair, held_by, settled: as the predecessor said. told: which successor the predecessor was told of. done: as the
    leader was told, once its gradient is accumulated. orphan: the manifest counts another's: what was added is being
    taken away. graph: kept in memory until the backward pass; else that one does the forward pass once more. input,
    gradient_in: kept for that, and for others; None once they were evicted, as gradient is. wanted: what is being
    brought back.
    """

    microbatch: Microbatch
    attempt: int
    upstream: ProcessId
    repair: bool
    held_by: ProcessId | None
    input: Ref | None
    targets: Ref
    graph: bool = True
    told: ProcessId | None = None
    computing: bool = True
    done: Done | None = None
    gradient: Ref | None = None
    gradient_in: Ref | None = None
    orphan: bool = False
    settled: bool = False
    wanted: Wanted | None = None

    @property
    def kept(self) -> tuple[Ref, ...]:
        """The boundary tensors that are here, but for what the outbox keeps."""
        return tuple(ref for ref in (self.input, self.gradient_in, self.gradient) if ref is not None)
