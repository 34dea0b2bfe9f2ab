"""One microbatch at one peer of a baseline, and the states that it passes through."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.baselines.messages import Path, Trip
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.transitions import Transitions


class BaselineHopState(StrEnum):
    """How far one microbatch is at one peer."""

    RESERVED = "reserved"  # a slot is kept, its tensors are not here
    FORWARD = "forward"  # its forward pass (at the last stage: with loss and backward pass) waits or runs
    COMPUTED = "computed"  # its forward pass is done
    NO_MEMORY = "no memory"  # the gradient of its output is here, and there is no memory to compute its graph again
    BACKWARD = "backward"  # its backward pass waits or runs
    GIVEN = "given"  # the gradient of its input is sent, and those of its parameters are left
    DONE = "done"  # its gradients are computed, and its slot is free


HOP_STATES = Transitions(
    "hop of a baseline",
    BaselineHopState.RESERVED,
    {
        BaselineHopState.RESERVED: {BaselineHopState.FORWARD: "its tensors arrive"},
        BaselineHopState.FORWARD: {
            BaselineHopState.COMPUTED: "the forward pass is done",
            BaselineHopState.GIVEN: "the loss is computed, with the gradient of its input",
            BaselineHopState.DONE: "the loss is computed, with all gradients",
        },
        BaselineHopState.COMPUTED: {
            BaselineHopState.BACKWARD: "the gradient of its output is here, and so is its graph",
            BaselineHopState.NO_MEMORY: "the gradient of its output is here, and its graph was not kept",
        },
        BaselineHopState.NO_MEMORY: {BaselineHopState.BACKWARD: "there is memory for its graph"},
        BaselineHopState.BACKWARD: {
            BaselineHopState.GIVEN: "the gradient of its input is computed",
            BaselineHopState.DONE: "the backward pass is done",
        },
        BaselineHopState.GIVEN: {BaselineHopState.DONE: "the gradients of its parameters are computed"},
        BaselineHopState.DONE: {},
    },
)


@dataclass(slots=True)
class BaselineHop:
    """One microbatch at one peer, forward and backward."""

    trip: Trip
    source: ProcessId  # its trainer
    upstream: ProcessId  # its sender, which gets its gradient
    attempt: int  # of `upstream`
    repair: tuple[int, ...]  # how often each sender from the trainer on has sent it again
    reserved_s: float = 0.0  # when its slot was reserved
    graph: bool = field(init=False, default=False)  # its graph is kept, or will be once it is computed
    state: BaselineHopState = field(init=False, default=HOP_STATES.initial)
    gradient: bool = field(init=False, default=False)  # of its output: it is here, even before the forward pass is done
    orphan: bool = field(init=False, default=False)  # `upstream` is dead, and no other process has asked for it
    path: Path = field(init=False, default=())  # the peers that computed the gradients after it

    def enter(self, state: BaselineHopState) -> None:
        """Move to a state. Raises IllegalTransition, and leaves the hop as it was, where it cannot follow."""
        self.state = HOP_STATES.move(self.state, state)
        assert self.state is not BaselineHopState.BACKWARD or self.gradient, f"{self.trip} has no gradient"

    @property
    def given(self) -> bool:
        """Whether the gradient of its input is computed."""
        return self.state in (BaselineHopState.GIVEN, BaselineHopState.DONE)
