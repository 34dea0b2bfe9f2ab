"""How many bytes a second go from this process to those around it, and when they and the leader are told."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.messages import LinkRateReport
from swarmflow.core.types import ProcessId

NEAR_MAX = 16  # of its stage, or of the next: in a larger stage nobody asks for the ways between two of its peers
AGING = 0.9  # of what was measured before: a way that has become slower is found out in the end
CHANGED = 0.25  # of what was told
TOLD_MAX = 64  # ways that a process tells of: more are not around a peer
SLOWEST, FASTEST = 1.0, 1e12  # bytes a second; what is told beyond these is no way


def believable(told: LinkRateReport) -> dict[ProcessId, float]:
    """What may be reckoned with of what a process tells."""
    return {process: rate for process, rate in told.rates[:TOLD_MAX] if SLOWEST <= rate <= FASTEST}


@dataclass(slots=True)
class LinkRates:
    """The ways to the peers of the own stage and of the next one.

    A tensor that waits for another one makes its way look slower than it is, never faster: so the fastest that was
    measured counts, less a tenth for each measurement since. What nobody needs is not told: see core/leading/sharing.
    """

    rates: dict[ProcessId, float] = field(default_factory=dict)
    detoured: set[int] = field(default_factory=set)
    _told: dict[ProcessId, float] = field(default_factory=dict)
    _near: dict[ProcessId, None] = field(default_factory=dict)

    def open(self, mates: tuple[ProcessId, ...], after: tuple[ProcessId, ...]) -> list[ProcessId]:
        """A new epoch, with these in the own stage and the next. Returns the mates to whom the way is not known."""
        near = [*(mates if len(mates) < NEAR_MAX else ()), *(after if len(after) <= NEAR_MAX else ())]
        if any(process not in self._near for process in near):
            self._told.clear()  # who is new has heard nothing
        self._near = dict.fromkeys(near)
        self.detoured.clear()
        self.rates = {process: rate for process, rate in self.rates.items() if process in self._near}
        return [process for process in mates if process in self._near and process not in self.rates]

    def measured(self, process: ProcessId, size_bytes: int, seconds: float) -> None:
        """So many bytes were there so long after they were sent."""
        if process in self._near and size_bytes > 0 and seconds > 0:
            self.rates[process] = max(size_bytes / seconds, AGING * self.rates.get(process, 0.0))

    def sent(self, index: int, *, direct: bool) -> None:
        """A microbatch goes to the next stage. What takes a detour tells nothing of the way itself."""
        if direct:
            self.detoured.discard(index)
        else:
            self.detoured.add(index)

    def forget_told(self) -> None:
        """There is another leader, who was told nothing."""
        self._told.clear()

    def tell(self, elements: dict[str, int]) -> LinkRateReport | None:
        """What the others should know. None: nothing that they do not know. elements: of the own gradients."""
        if not self.rates:
            return None
        if all(abs(rate - self._told.get(process, 0.0)) <= CHANGED * rate for process, rate in self.rates.items()):
            return None
        self._told = dict(self.rates)
        return LinkRateReport(tuple(sorted(elements.items())), tuple(self.rates.items()))
