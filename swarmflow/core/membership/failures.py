"""Tries at a step that failed by what members said: who is left out of the next one, and when the run stops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from swarmflow.core.membership.findings import TRIES_MAX
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, ProcessId

LEFT_OUT_AFTER = 2  # failures of one version that a member had a part in
EXPONENT_STEP = 16
EXPONENT_MIN = -76  # what does not fit into it is larger than any number in fp32
Believed = Callable[[Iterable[ProcessId]], bool]  # whether one of these reporters is honest


@dataclass(frozen=True, slots=True)
class Failure:
    """A try at a step that failed."""

    version: int  # of the weights
    culprits: tuple[ProcessId, ...]  # the members that made it fail; of several it is one
    text: str
    exponent: int | None = None  # for which a gradient was too large; None: that was not the reason


@dataclass(slots=True)
class Failures:
    """The failures of the present version, and the processes left out for them, by name.

    A process is to blame if the step is committed without it after failing with it. Of two members that disagree either
    may be; the step is tried without one of them and, if it fails again, without the other one.
    """

    found: list[Failure] = field(default_factory=list)
    _out: dict[str, tuple[ProcessId, Failure]] = field(default_factory=dict)

    @property
    def left_out(self) -> list[ProcessId]:
        """The processes that take no part while others can replace them."""
        return [process for process, _ in self._out.values()]

    def joined(self, process: ProcessId) -> bool:
        """Return whether another life of a process that is left out has come: it is left out too."""
        found = self._out.get(process.name)
        if found is not None:
            self._out[process.name] = process, found[1]
        return found is not None

    def add(self, failure: Failure, mates: Callable[[ProcessId], Sequence[ProcessId]], believed: Believed) -> str:
        """Record one. Returns why it cannot go on like this, empty: the step is tried again.

        The first of the culprits that can be spared is left out first. mates: who can stand in for a process, those
        left out for other failures too.
        """
        self.found = [first for first in self.found if first.version == failure.version]
        alike = [first for first in self.found if self._alike(first, failure)]
        self.found.append(failure)
        self._acquit(failure, believed)
        if failure.exponent is not None and failure.exponent <= EXPONENT_MIN:
            return f"step {failure.version}: {failure.text}, but there is no such number"
        if len(alike) + 1 >= LEFT_OUT_AFTER and not self._confirmed(failure, believed):
            self._leave_out(failure, alike, mates)
        if len(alike) + 1 < TRIES_MAX:
            return ""
        return f"step {failure.version}: {failure.text}, for the {len(alike) + 1}th time"

    def exponent(self, version: int) -> int:
        """For the next try at a version: below all for which a gradient was too large, as members not left out said."""
        found = [f for f in self.found if f.version == version and not self._is_out(f.culprits)]
        believed = [f.exponent for f in found if f.exponent is not None]
        return min(believed) - EXPONENT_STEP if believed else DEFAULT_EXPONENT

    def forget(self, name: str) -> None:
        """Drop what a process had a part in: it is kept out for it."""
        self._out.pop(name, None)
        self.found = [failure for failure in self.found if all(process.name != name for process in failure.culprits)]

    def settle(self) -> list[tuple[ProcessId, str]]:
        """Return the processes that were left out, and why, once the version is committed."""
        blamed = [(process, failure.text) for process, failure in self._out.values()]
        self.found, self._out = [], {}
        return blamed

    def _leave_out(
        self, failure: Failure, alike: Sequence[Failure], mates: Callable[[ProcessId], Sequence[ProcessId]]
    ) -> None:
        """Leave out one of the culprits; where nobody would be left, let those in who can stand in for it.

        alike: the failures before. A culprit that had no part in any of them stays: once may be chance.
        """
        names = {process.name for first in alike for process in first.culprits}
        again = [process for process in failure.culprits if process.name in names]
        able = [(process, others) for process in again if (others := mates(process))]
        if not able:
            return
        left_out = set(self.left_out)
        process, others = min(able, key=lambda each: left_out.issuperset(each[1]))
        if left_out.issuperset(others):
            for other in others:
                del self._out[other.name]
        self._out[process.name] = process, failure

    def _confirmed(self, failure: Failure, believed: Believed) -> bool:
        """Return whether enough others reported the same of this exponent, or of the one before."""
        return failure.exponent is not None and self._reported(failure.exponent + EXPONENT_STEP, failure, believed)

    def _acquit(self, failure: Failure, believed: Believed) -> None:
        """Whose gradient was too large was right where those of enough are, for the same exponent or a smaller one."""
        if failure.exponent is None:
            return
        for name, (process, first) in list(self._out.items()):
            another = first.exponent is not None and process not in failure.culprits
            if another and first.exponent is not None and self._reported(first.exponent, first, believed):
                del self._out[name]

    def _reported(self, exponent: int, own: Failure, believed: Believed) -> bool:
        """Return whether enough others had gradients too large for an exponent, or for a smaller one."""
        alike = [f for f in self.found if f.exponent is not None and f.exponent <= exponent]
        reporters = {process.name: process for f in [own, *alike] for process in f.culprits}
        return len(reporters) > 1 and believed(reporters.values())

    def _is_out(self, culprits: tuple[ProcessId, ...]) -> bool:
        return any(process.name in self._out for process in culprits)

    def _alike(self, first: Failure, failure: Failure) -> bool:
        """Return whether one process may have made both fail, in the same way."""
        names = {process.name for process in first.culprits}
        same = any(process.name in names for process in failure.culprits)
        return same and (first.exponent is None) == (failure.exponent is None)
