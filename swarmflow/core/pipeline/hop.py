"""A hop, one microbatch at one stage: its state and the tensors that the peer keeps for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.core.protocol.messages import Done, HopHandover
from swarmflow.core.protocol.types import Attempt, Microbatch, ProcessId, Ref
from swarmflow.core.transitions import Transitions


class HopState(StrEnum):
    """One microbatch at one stage, from its admission until the step is committed or the hop is dropped."""

    FORWARD = "forward"  # the forward pass is queued or running
    DISPATCHED = "dispatched"  # the activation went to the next stage; its gradient is awaited
    NO_MEMORY = "no memory"  # the gradient has arrived; the backward pass waits for memory for the graph
    ACCUMULATING = "accumulating"  # the backward pass (last stage: the loss) is queued or running
    DONE = "done"  # the gradient is in the sum, and the leader knows
    DISOWNED = "disowned"  # as ACCUMULATING, but the ballot counts another holder's: it is subtracted afterwards
    SUBTRACTING = "subtracting"  # an orphan: its gradient is being taken out of the sum


_BACKWARD = "the gradient of the output arrives"
_ACCUMULATED = "the gradient is accumulated"
_ORPHAN = "the ballot counts another holder's gradient"
# A hop leaves the table from every state but DONE: cancelled, its bytes invalid, or subtracted.
HOP = Transitions(
    "hop",
    HopState.FORWARD,
    {
        HopState.FORWARD: {
            HopState.DISPATCHED: "the activation is computed",
            HopState.ACCUMULATING: "the last stage goes on with the loss",
        },
        HopState.DISPATCHED: {
            HopState.ACCUMULATING: _BACKWARD,
            HopState.NO_MEMORY: f"{_BACKWARD}, and no graph was kept",
        },
        HopState.NO_MEMORY: {HopState.ACCUMULATING: "a slot with memory for a graph is free"},
        HopState.ACCUMULATING: {HopState.DONE: _ACCUMULATED, HopState.DISOWNED: _ORPHAN},
        HopState.DONE: {HopState.SUBTRACTING: _ORPHAN},
        HopState.DISOWNED: {HopState.SUBTRACTING: _ACCUMULATED},
        HopState.SUBTRACTING: {},
    },
)
UNFINISHED = frozenset((HopState.FORWARD, HopState.DISPATCHED, HopState.NO_MEMORY, HopState.ACCUMULATING))
COMPUTING = frozenset((HopState.FORWARD, HopState.NO_MEMORY, HopState.ACCUMULATING, HopState.DISOWNED))
ORPHANED = frozenset((HopState.DISOWNED, HopState.SUBTRACTING))


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

    def whole_hop(self, hop: Hop) -> bool:
        """Return whether the hop has to run forward and backward again."""
        return self.undo or (self.gradient and hop.gradient is None)

    @property
    def anything(self) -> bool:
        """Whether anything is needed or under way."""
        return self.output or self.gradient or self.undo or self.forward or self.replay


@dataclass(slots=True)
class Hop:
    """One microbatch at this stage. Tensors are None before they arrive and after they were evicted."""

    microbatch: Microbatch
    attempt: Attempt
    upstream: ProcessId  # the predecessor
    repair: bool  # from the predecessor: the next hop may be held already
    held_by: ProcessId | None  # from the predecessor: by whom
    input: Ref | None
    targets: Ref
    graph: bool = True  # False: the backward pass repeats the forward pass
    settled: bool = False  # from the predecessor: it has had the gradient before
    state: HopState = field(default=HOP.initial, init=False)
    reported: ProcessId | None = field(default=None, init=False)  # the successor that the predecessor knows (Routed)
    done: Done | None = field(default=None, init=False)  # as sent to the leader, once the gradient is accumulated
    handovers: tuple[HopHandover, ...] = field(default=(), init=False)  # how it came here
    # Who awaits the gradient too, with its attempt: a predecessor that lives, although another one has taken its place.
    former: tuple[ProcessId, Attempt] | None = field(default=None, init=False)
    gradient: Ref | None = field(default=None, init=False)  # of the input, kept for a new predecessor
    gradient_in: Ref | None = field(default=None, init=False)  # of the output
    wanted: Wanted | None = field(default=None, init=False)  # what is being brought back

    @property
    def orphan(self) -> bool:
        """Whether the ballot counts another holder's gradient."""
        return self.state in ORPHANED

    @property
    def accumulated(self) -> bool:
        """Whether its gradient is in the sum, and cannot be taken away without its bytes."""
        return self.state in (HopState.DONE, HopState.SUBTRACTING)

    @property
    def given_back(self) -> bool:
        """Whether its predecessor has been sent the gradient of its input; that of its parameters may still wait."""
        return self.state is HopState.DONE or self.gradient is not None

    @property
    def kept(self) -> tuple[Ref, ...]:
        """The boundary tensors that are here, except for what the dispatcher keeps."""
        return tuple(ref for ref in (self.input, self.gradient_in, self.gradient) if ref is not None)

    @property
    def is_empty(self) -> bool:
        """Whether no boundary tensor is here, except for what the dispatcher keeps."""
        return self.input is None and self.gradient_in is None and self.gradient is None

    def move(self, to: HopState) -> None:
        """Enter a state. Raises IllegalTransition."""
        self.state = HOP.move(self.state, to)
        assert (self.done is not None) == (to is HopState.DONE), f"the Done of a hop that is {to}"
