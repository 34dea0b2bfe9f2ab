"""The order in which requests of other processes are answered: whoever asks without end waits for its own answers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.door import Caller

ANSWERING_MAX: Final = 32  # answers that are made at a time: each may take a thread
# Those of one address: as many as a peer that loads a stage asks of one donor (execution/piece_requests.py).
ANSWERING_OF_ADDRESS_MAX: Final = 24
# Answers that are made, or wait to be written. Who asks and does not read has so many in this process' memory.
UNWRITTEN_OF_PROCESS_MAX: Final = 24
UNWRITTEN_OF_ADDRESS_MAX: Final = 96
WAITING_OF_PROCESS_MAX: Final = 32  # a request has REQUEST_BYTES_MAX (wire.py) at most; more are refused
WAITING_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class _WaitingRequest:
    process: ProcessId
    asker: Caller
    start: Callable[[], None]


class AnswerQueue:
    """Starts to answer requests, of the address first that has fewest answers under way, and of its processes alike."""

    def __init__(self) -> None:
        self._waiting: dict[int, _WaitingRequest] = {}  # by number, oldest first
        self._numbers = itertools.count()
        self._waiting_of_process: Counter[str] = Counter()
        self._answering: Counter[str] = Counter()  # by address
        self._unwritten_of_process: Counter[str] = Counter()
        self._unwritten_of_address: Counter[str] = Counter()

    def add(self, process: ProcessId, asker: Caller, start: Callable[[], None]) -> bool:
        """Take a request, which `start` begins to answer; False: too many of it wait.

        `made` has to follow when the answer is made, and `written` when it is written.
        """
        if self._waiting_of_process[asker.name] >= WAITING_OF_PROCESS_MAX or len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting[next(self._numbers)] = _WaitingRequest(process, asker, start)
        self._waiting_of_process[asker.name] += 1
        self._start()
        return True

    def made(self, asker: Caller) -> None:
        """Note that an answer is made, and about to be written."""
        _subtract(self._answering, asker.address)
        self._start()

    def written(self, asker: Caller) -> None:
        """Note that an answer is written, or dropped."""
        _subtract(self._unwritten_of_process, asker.name)
        _subtract(self._unwritten_of_address, asker.address)
        self._start()

    def drop(self, process: ProcessId) -> None:
        """Forget the requests of a process that is lost, and wait."""
        for number in [number for number, waiting in self._waiting.items() if waiting.process == process]:
            _subtract(self._waiting_of_process, self._waiting.pop(number).asker.name)

    def _start(self) -> None:
        while self._answering.total() < ANSWERING_MAX and (number := self._next()) is not None:
            waiting = self._waiting.pop(number)
            asker = waiting.asker
            _subtract(self._waiting_of_process, asker.name)
            self._answering[asker.address] += 1
            self._unwritten_of_process[asker.name] += 1
            self._unwritten_of_address[asker.address] += 1
            waiting.start()

    def _next(self) -> int | None:
        """Return the number of the request to answer next."""
        able = (number for number, waiting in self._waiting.items() if self._is_able(waiting.asker))
        return min(able, key=lambda number: (*self._load_of(self._waiting[number].asker), number), default=None)

    def _is_able(self, asker: Caller) -> bool:
        return (
            self._answering[asker.address] < ANSWERING_OF_ADDRESS_MAX
            and self._unwritten_of_process[asker.name] < UNWRITTEN_OF_PROCESS_MAX
            and self._unwritten_of_address[asker.address] < UNWRITTEN_OF_ADDRESS_MAX
        )

    def _load_of(self, asker: Caller) -> tuple[int, int]:
        return self._unwritten_of_address[asker.address], self._unwritten_of_process[asker.name]


def _subtract(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
