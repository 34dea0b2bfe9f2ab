"""Which life of each other process is the current one, by proofs of life: incarnations are random and have no order."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId

INCARNATION_BITS = 63
NAMES_MAX = 16_384  # names whose lives are remembered; each is the hash of a key, which its owner has to make
RETIRED_MAX = 64  # lives of one name that are remembered as replaced


def new_incarnation() -> int:
    """Return a random incarnation, which is never 0: that stands for any."""
    return 1 + secrets.randbelow((1 << INCARNATION_BITS) - 1)


@dataclass(slots=True)
class _Name:
    """The lives of one name."""

    current: ProcessId  # the one that answered the latest challenge
    answered: int  # the number of that challenge
    retired: OrderedDict[ProcessId, None] = field(default_factory=OrderedDict)


class Lives:
    """Remembers which life of a process is the current one, and refuses for ever those that it has replaced.

    A process that answers a challenge was alive after the challenge was made. Two lives of one process follow one
    another, so of two that have answered, the one that was challenged later is the later one, in whatever order the
    answers are read. A dead life never answers a new challenge; it is remembered all the same, within the bounds of
    the memory.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._challenges = 0

    def challenge(self) -> int:
        """Return the number of a new challenge; later ones are greater."""
        self._challenges += 1
        return self._challenges

    def retired(self, process: ProcessId) -> bool:
        """Return whether another life has taken the place of this one."""
        name = self._names.get(process.name)
        return name is not None and process in name.retired

    def answered(self, process: ProcessId, challenge: int) -> tuple[bool, ProcessId | None]:
        """Record that a life has answered a challenge. Return whether it is current, and the life that it replaces."""
        name = self._names.setdefault(process.name, _Name(process, challenge))
        self._names.move_to_end(process.name)
        if len(self._names) > NAMES_MAX:
            self._names.popitem(last=False)
        if process in name.retired:
            return False, None
        if process == name.current:
            name.answered = max(name.answered, challenge)
            return True, None
        if challenge < name.answered:
            self._retire(name, process)
            return False, None
        replaced, name.current, name.answered = name.current, process, challenge
        self._retire(name, replaced)
        return True, replaced

    def _retire(self, name: _Name, process: ProcessId) -> None:
        name.retired[process] = None
        if len(name.retired) > RETIRED_MAX:
            name.retired.popitem(last=False)
