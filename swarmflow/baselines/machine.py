"""What a machine of a baseline can do. It knows what messages and its own computer tell it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from swarmflow.baselines.messages import BaselineMessage, Trip
from swarmflow.core.types import ProcessId


class BaselineRuntime(Protocol):
    """One process' network, computer and clock. What was planned for a process that is dead by then does not happen."""

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
        """How long a gradient is waited for before a microbatch is started over; 0: as long as one ever took."""
        ...

    def send(self, to: ProcessId, message: BaselineMessage, tensor_bytes: int = 0) -> None:
        """A message sets out, with tensors where there are any."""
        ...

    def compute(self, work: str, trip: Trip | None, done: Callable[[], None]) -> None:
        """Compute something, after what is more urgent."""
        ...

    def drop(self, trip: Trip | None = None) -> None:
        """What has not been begun of a microbatch (None: of all) is not computed any more."""
        ...

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Plan something."""
        ...

    def load(self, stage: int, donors: tuple[ProcessId, ...], done: Callable[[], None]) -> None:
        """Copy a stage's state from the first of these that lives."""
        ...

    def capacity(self, stage: int) -> int:
        """Microbatches that this computer holds at a time."""
        ...

    def tensor_bytes(self, stage: int, kind: str) -> int:
        """Of a stage's `activation` (its output), of the `gradient` of its input, of `tokens` or `targets`."""
        ...

    def elements(self, group: str) -> int:
        """Length of a reduction group's flat gradient."""
        ...

    def count(self, name: str) -> None:
        """Count something that happened."""
        ...

    def say(self, text: str) -> None:
        """A line of the trace."""
        ...


class BaselineMachine(Protocol):
    """A process of a baseline."""

    def start(self) -> None:
        """It begins."""
        ...

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """A message came."""
        ...

    def lost(self, process: ProcessId) -> None:
        """A connection broke, or what was sent there did not arrive."""
        ...


class ServingMachine(BaselineMachine, Protocol):
    """A peer."""

    @property
    def stage(self) -> int:
        """Whose state it holds; -1: none yet."""
        ...

    @property
    def slots(self) -> int:
        """Microbatches that it holds."""
        ...
