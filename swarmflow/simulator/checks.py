"""Checks of what only scenarios hold: numbers that may be distributions, and tables that may be files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarmflow.config_check import Check, Disallowed, integer, number
from swarmflow.errors import ConfigError
from swarmflow.simulator.distributions import Bounded, Constant, Integers, Normal, OneOf, Uniform

FORMS = "{ uniform = [low, high] }, { integers = [low, high] }, { choice = [...] } or { normal = [mean, deviation] }"
Table = tuple[tuple[float, ...], ...]
NORMAL_LEAST = 0.01  # of its mean: where a normal distribution is cut off whose values have to be above 0


def distribution(least: float = 0.0, above: bool = False) -> Callable[[object], Bounded]:
    """A number, at least (or above) `least`, or a distribution whose values all are."""
    single = number(above=least) if above else number(at_least=least)
    allowed = f"a number {'above' if above else 'at least'} {least:g}, or {FORMS} of such numbers"
    return _check(single, single, None if above else least, allowed)


def mbps(value: object) -> Bounded:
    """A bandwidth, 0: no limit. A distribution has to be above 0: next to a few kb/s, 0 does not mean no limit."""
    allowed = f"a number at least 0 (0: no limit), or {FORMS} of numbers above 0 (of a choice also 0)"
    return _check(number(at_least=0), number(above=0), None, allowed)(value)


def _check(single: Check, within: Check, least: float | None, allowed: str) -> Callable[[object], Bounded]:
    """Return the check of a value that is a number or a distribution.

    single: checks a number, and those of a choice. within: checks the numbers that bound a distribution. least: as in
    `_distribution`. allowed: what is told of another value.
    """

    def check(value: object) -> Bounded:
        try:
            if not isinstance(value, dict):
                return Constant(single(value))
            if len(value) != 1:
                raise Disallowed(allowed)
            [(form, given)] = value.items()
            if form == "choice" and isinstance(given, list) and given:
                return OneOf(tuple(single(item) for item in given))
            return _distribution(form, given, within, allowed, least)
        except Disallowed as error:
            raise Disallowed(allowed) from error

    return check


def _distribution(form: str, given: object, single: Check, allowed: str, least: float | None) -> Bounded:
    """least: the lowest value that a normal distribution may give; None: all have to be above 0."""
    if not isinstance(given, list) or len(given) != 2:
        raise Disallowed(allowed)
    if form == "normal":
        mean = single(given[0])
        return Normal(mean, number(at_least=0)(given[1]), NORMAL_LEAST * mean if least is None else least)
    low, high = single(given[0]), single(given[1])
    if low > high or form not in ("uniform", "integers"):
        raise Disallowed(allowed)
    if form == "uniform":
        return Uniform(low, high)
    return Integers(integer(0)(given[0]), integer(0)(given[1]))


def whole_or_list(least: int) -> Callable[[object], int | tuple[int, ...]]:
    """An integer, or a list of them."""

    def check(value: object) -> int | tuple[int, ...]:
        try:
            if isinstance(value, list) and value:
                return tuple(integer(least, 2**53)(item) for item in value)
            return int(integer(least, 2**53)(value))
        except Disallowed as error:
            raise Disallowed(f"an integer, at least {least}, or a list of one for each stage") from error

    return check


def numbers(value: object) -> tuple[float, ...]:
    """A list of numbers above 0."""
    if not isinstance(value, list):
        raise Disallowed("a list of numbers above 0")
    return tuple(number(above=0)(item) for item in value)


def names(value: object) -> tuple[str, ...]:
    """A list of different names."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise Disallowed("a list of names")
    if len(set(value)) < len(value):
        raise Disallowed("a list of different names")
    return tuple(value)


def name_or_names(value: object) -> tuple[str, ...]:
    """A name, or a list of different ones."""
    if isinstance(value, str) and value:
        return (value,)
    return names(value)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table in a CSV file next to the scenario: numbers only, a line a row."""

    name: str


def table(value: object) -> Table | TableFile:
    """Rows of numbers, or the name of a CSV file with them."""
    if isinstance(value, str) and value.strip():
        return TableFile(value)
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise Disallowed("a list of rows of numbers, or the name of a CSV file with them")
    return tuple(tuple(number(at_least=0)(item) for item in row) for row in value)


def read_table(given: Table | TableFile, folder: Path, key: str, size: int) -> Table:
    """The square table of so many rows that a key names. Raises ConfigError, which names the key and what is wrong."""
    rows = given
    if isinstance(given, TableFile):
        key = f"{key} = {given.name!r}"
        rows = table_rows(given, folder, key)
    assert not isinstance(rows, TableFile)
    if len(rows) != size or any(len(row) != size for row in rows):
        widths = sorted({len(row) for row in rows})
        raise ConfigError(f"{key}: must have {size} rows of {size} numbers, not {len(rows)} of {widths}")
    return rows


def table_rows(given: TableFile, folder: Path, key: str) -> Table:
    """The numbers of a CSV file. Raises ConfigError, which names the key and what is wrong."""
    try:
        lines = list(csv.reader((folder / given.name).read_text(encoding="utf-8").splitlines()))
        return tuple(tuple(number(at_least=0)(float(cell)) for cell in line) for line in lines if line)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read the file: {error.strerror}") from error
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{key}: must hold numbers, at least 0, separated by commas") from error
