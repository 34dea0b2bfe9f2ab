"""The interfaces of a baseline's machines: they know what messages and their own computer tell, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarmflow.baselines.messages import BaselineMessage, Trip
from swarmflow.core.protocol.types import ProcessId


@dataclass(frozen=True, slots=True)
class BaselineTask:
    """One computation: `forward`, `loss`, `backward` or `replay` of a microbatch, or the `update`."""

    work: str
    trip: Trip | None  # None: the update
    done: Callable[[], None]  # called at its end
    given: Callable[[], None] | None = None  # called when the gradient of the input is there; the others follow
    room: int = 0  # graphs that there is memory for beside those that are kept: so many more passes may be unfinished


class BaselineRuntime(Protocol):
    """One process' network, computer and clock. Callbacks of a process that is dead by then are not called."""

    @property
    def me(self) -> ProcessId:
        """The own process."""
        ...

    @property
    def now_s(self) -> float:
        """The time."""
        ...

    @property
    def timeout_s(self) -> float:
        """How long a process waits for a gradient before a microbatch is started over; 0: as long as one ever took."""
        ...

    def send(self, to: ProcessId, message: BaselineMessage, tensor_bytes: int = 0) -> None:
        """Send a message, with tensors of so many bytes."""
        ...

    @property
    def forward_s(self) -> float | None:
        """How long a forward pass takes on the own computer, as measured there; None: it has computed none."""
        ...

    @property
    def without_graph(self) -> int:
        """Microbatches that a peer admits without a graph, for each one with a graph."""
        ...

    def compute(self, task: BaselineTask) -> None:
        """Compute a task after more urgent ones."""
        ...

    def drop(self, trip: Trip | None = None) -> None:
        """Cancel the work of a microbatch (None: all work) that has not begun."""
        ...

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back after a delay."""
        ...

    def load(self, stage: int, donors: tuple[ProcessId, ...], done: Callable[[], None]) -> None:
        """Copy a stage's state from all donors at a time, then call `done`."""
        ...

    def capacity(self, stage: int) -> int:
        """Return of how many microbatches of a stage this computer keeps the graphs at a time."""
        ...

    def tensor_bytes(self, stage: int, kind: str) -> int:
        """Return the size of a stage's `activation` (its output), `gradient` (of its input), `tokens` or `targets`."""
        ...

    def share_bytes(self, group: str, members: int) -> int:
        """Return the size of the share of a flat gradient that one of so many members sums, as it is sent."""
        ...

    def unsummed(self, process: ProcessId, group: str, share: float) -> None:
        """Count a share of a group's gradient that died with a process before it was added to the sum."""
        ...

    def count(self, name: str) -> None:
        """Count an event."""
        ...


class BaselineMachine(Protocol):
    """A process of a baseline."""

    def start(self) -> None:
        """Begin."""
        ...

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """Handle a message."""
        ...

    def lost(self, process: ProcessId) -> None:
        """Handle a broken connection, or one that could not be made."""
        ...
