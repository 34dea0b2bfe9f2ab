"""Finds the current incarnation of each other process by challenges: incarnations are random and have no order."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId

INCARNATION_BITS = 63
NAMES_MAX = 16_384  # names that are remembered; each is the hash of a key, which its owner has to make
RETIRED_MAX = 64  # replaced incarnations of one name that are remembered


def new_incarnation() -> int:
    """Return a random incarnation; never 0, which stands for any incarnation."""
    return 1 + secrets.randbelow((1 << INCARNATION_BITS) - 1)


@dataclass(slots=True)
class _NameHistory:
    """The incarnations of one name."""

    current: ProcessId  # the one that has answered the latest challenge
    challenge: int  # number of the latest challenge that was answered
    retired: OrderedDict[ProcessId, None] = field(default_factory=OrderedDict)  # replaced ones, oldest first


class IncarnationTracker:
    """Remembers which incarnation of a process is the current one, and refuses for ever those that it has replaced.

    A process that answers a challenge was alive after the challenge was made. Two incarnations of one process never
    live at the same time, so of two that have answered, the one that was challenged later is the later one, in whatever
    order the answers are read. A dead incarnation never answers a new challenge; it is remembered all the same, within
    the bounds of the memory.
    """

    def __init__(self) -> None:
        self._histories: OrderedDict[str, _NameHistory] = OrderedDict()  # by name, the latest answer last
        self._challenges = 0  # made so far

    def challenge(self) -> int:
        """Return the number of a new challenge; later ones are greater."""
        self._challenges += 1
        return self._challenges

    def retired(self, process: ProcessId) -> bool:
        """Return whether another incarnation has replaced this one."""
        history = self._histories.get(process.name)
        return history is not None and process in history.retired

    def answered(self, process: ProcessId, challenge: int) -> tuple[bool, ProcessId | None]:
        """Record the answer of an incarnation to a challenge. Return whether it is current, and the one it replaces."""
        history = self._histories.setdefault(process.name, _NameHistory(process, challenge))
        self._histories.move_to_end(process.name)
        if len(self._histories) > NAMES_MAX:
            self._histories.popitem(last=False)
        if process in history.retired:
            return False, None
        if process == history.current:
            history.challenge = max(history.challenge, challenge)
            return True, None
        if challenge < history.challenge:
            self._retire(history, process)
            return False, None
        replaced, history.current, history.challenge = history.current, process, challenge
        self._retire(history, replaced)
        return True, replaced

    def _retire(self, history: _NameHistory, process: ProcessId) -> None:
        history.retired[process] = None
        if len(history.retired) > RETIRED_MAX:
            history.retired.popitem(last=False)
