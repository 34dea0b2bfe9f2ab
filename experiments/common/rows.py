"""Figures of an experiment, one a row, beside what the paper reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from swarmflow.errors import ConfigError
from swarmflow.files import write_whole


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. setting, metric: named as in the paper's table. n: repetitions. paper: its mean, if any."""

    setting: str
    policy: str
    metric: str
    mean: float
    std: float
    n: int
    paper: float | None = None


def row(setting: str, policy: str, metric: str, values: Sequence[float], paper: float | None = None) -> Row:
    """Mean and (sample) standard deviation of some values, at least one."""
    std = stdev(values) if len(values) > 1 else 0.0
    return Row(setting, policy, metric, fmean(values), std, len(values), paper)


def write_json(path: Path, rows: Iterable[Row]) -> None:
    """A list of objects with the keys of Row. Raises ConfigError when the file cannot be written."""
    text = json.dumps([asdict(each) for each in rows], indent=1) + "\n"
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def distinct(values: Iterable[str]) -> list[str]:
    """Each once, in the order in which they come."""
    return list(dict.fromkeys(values))
