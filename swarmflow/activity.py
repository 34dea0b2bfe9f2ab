"""What this process does right now, in words for those who wait for it: a terminal and a log show what takes long."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_numbers = itertools.count()
_active: dict[int, Activity] = {}  # in the order in which they began; changed and read by any thread


@dataclass(eq=False, slots=True)
class Activity:
    """One thing that takes time."""

    text: str  # "reading the data": the words after "now"
    detail: Callable[[], str]  # how far it is, called by any thread; empty where that is not known
    since_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The time that it has taken so far."""
        return time.monotonic() - self.since_s

    def line(self) -> str:
        """Return the text with its detail."""
        detail = self.detail()
        return f"{self.text}: {detail}" if detail else self.text


@contextmanager
def doing(text: str, detail: Callable[[], str] = str) -> Iterator[None]:
    """Let those who wait see what happens inside the block."""
    number = next(_numbers)
    _active[number] = Activity(text, detail)
    try:
        yield
    finally:
        del _active[number]


class Waiting:
    """What a process waits for while nothing holds it up: set again and again, counted from when it became so."""

    def __init__(self) -> None:
        self._number = next(_numbers)

    def set(self, text: str) -> None:
        """Set what it waits for; empty: nothing."""
        known = _active.get(self._number)
        if not text:
            _active.pop(self._number, None)
        elif known is not None and _without_numbers(known.text) == _without_numbers(text):
            known.text = text  # numbers in it are its progress
        else:
            _active.pop(self._number, None)
            _active[self._number] = Activity(text, str)


def current() -> Activity | None:
    """Return what began last of all that is not over; None: nothing takes time."""
    while True:
        try:
            return next(reversed(_active.values()), None)
        except RuntimeError:  # changed meanwhile by another thread
            continue


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())
