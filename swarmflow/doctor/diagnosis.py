"""What an examination finds: one line for each check, with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from swarmflow.clean_text import clean

_CHECK_WIDTH = 10


class Level(StrEnum):
    """How good it is."""

    OK = "ok"
    WARN = "warn"  # a peer works, but worse than it could, or nothing can be told
    FAIL = "fail"  # a peer would not work


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check. found, advice: a sentence each, without a full stop; others' text may stand in both."""

    check: str  # its name, one word
    level: Level
    found: str
    advice: str = ""  # what to do; empty: nothing

    def lines(self) -> str:
        """Return it for a person, the advice on a line of its own."""
        line = f"{self.level:<5} {self.check:<{_CHECK_WIDTH}} {clean(self.found)}"
        return f"{line}\n{'':<6}{'':<{_CHECK_WIDTH}} -> {clean(self.advice)}" if self.advice else line


def ok(check: str, found: str, advice: str = "") -> Diagnosis:
    """Return a diagnosis that needs nothing."""
    return Diagnosis(check, Level.OK, found, advice)


def warn(check: str, found: str, advice: str) -> Diagnosis:
    """Return a diagnosis about which something should be done."""
    return Diagnosis(check, Level.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Diagnosis:
    """Return a diagnosis with which a peer does not work."""
    return Diagnosis(check, Level.FAIL, found, advice)


def as_json(diagnoses: Sequence[Diagnosis]) -> str:
    """Return all of them for programs: an object with `ok`, whether none is a failure, and the list `checks`."""
    passed = all(diagnosis.level is not Level.FAIL for diagnosis in diagnoses)
    document = {"ok": passed, "checks": [asdict(diagnosis) for diagnosis in diagnoses]}
    return json.dumps(document, indent=2)  # in ASCII: a terminal may show it
