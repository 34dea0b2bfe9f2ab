"""A hop, one microbatch at one stage: its state and the tensors that the peer keeps for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.messages import Done
from swarmflow.core.types import Microbatch, ProcessId, Ref


@dataclass(slots=True)
class HopQuery:
    """A request for evicted bytes to a neighbour."""

    whole_stage: bool  # all peers of its stage were asked
    tries: int = 0
    due_s: float | None = None  # when to ask again; None: not set yet


@dataclass(slots=True)
class Wanted:
    """What a hop has to provide again, although its tensors may have been evicted."""

    outputs: dict[ProcessId, None] = field(default_factory=dict)  # who asked for the output
    gradients: dict[ProcessId, None] = field(default_factory=dict)  # who asked for the gradient of the input
    resend: bool = False  # the output goes to another successor
    give_back: bool = False  # a new predecessor needs the gradient
    undo: bool = False  # an orphan is to be taken away
    forward: bool = False  # a forward pass is under way for this
    replay: bool = False  # a forward and backward pass is under way for this
    asked: dict[bool, HopQuery] = field(default_factory=dict)  # False: for the input; True: for the output's gradient

    @property
    def output(self) -> bool:
        """Whether the output is needed."""
        return self.resend or bool(self.outputs)

    @property
    def gradient(self) -> bool:
        """Whether the gradient of the input is needed."""
        return self.give_back or bool(self.gradients)

    @property
    def anything(self) -> bool:
        """Whether anything is needed or under way."""
        return self.output or self.gradient or self.undo or self.forward or self.replay


@dataclass(slots=True)
class Hop:
    """One microbatch at this stage. Tensors are None before they arrive and after they were evicted."""

    microbatch: Microbatch
    attempt: int
    upstream: ProcessId  # the predecessor
    repair: bool  # from the predecessor: the next hop may be held already
    held_by: ProcessId | None  # from the predecessor: by whom
    input: Ref | None
    targets: Ref
    graph: bool = True  # False: the backward pass repeats the forward pass
    told: ProcessId | None = None  # the successor that the predecessor was told of (Routed)
    computing: bool = True
    done: Done | None = None  # as sent to the leader, once the gradient is accumulated
    gradient: Ref | None = None  # of the input, kept for a new predecessor
    gradient_in: Ref | None = None  # of the output
    orphan: bool = False  # the ballot counts another holder's: what was added is being taken away
    settled: bool = False  # from the predecessor: it has had the gradient before
    wanted: Wanted | None = None  # what is being brought back

    @property
    def kept(self) -> tuple[Ref, ...]:
        """The boundary tensors that are here, except for what the dispatcher keeps."""
        return tuple(ref for ref in (self.input, self.gradient_in, self.gradient) if ref is not None)
