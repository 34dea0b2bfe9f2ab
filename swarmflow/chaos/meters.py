"""Reads the metrics of every life of every process, often and before each fault, and adds them up at the end."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import urllib.request
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from swarmflow.local.swarm import LocalProcess

EVERY_S = 0.25
_ANSWER_S = 2.0
_ADDRESS = re.compile(r"metrics: (http://127\.0\.0\.1:\d+/metrics)")

Sample = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class MeteredLife:
    """The last values read of one life of a process."""

    process: LocalProcess
    killed: bool = False  # it was ended by a SIGKILL of this command, during its work
    values: dict[Sample, float] = field(default_factory=dict)
    address: str | None = None


@dataclass(frozen=True)
class Compute:
    """Seconds that peers computed."""

    total_s: float
    lost_s: float  # in no commit because their process was killed
    unused_s: float  # of living processes, in no commit either


class Meters:
    """Inside its `with` block a thread reads the metrics of all lives to `follow`, each EVERY_S seconds."""

    def __init__(self) -> None:
        self._lives: list[MeteredLife] = []
        self._frozen: set[int] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_often, name="meters", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def follow(self, process: LocalProcess) -> None:
        """Read this life of a process from now on. Its log names the port of its metrics."""
        with self._lock:
            self._lives.append(MeteredLife(process))

    def freeze(self, process: LocalProcess, frozen: bool) -> None:
        """Do not read a frozen process, which does not answer."""
        with self._lock:
            (self._frozen.add if frozen else self._frozen.discard)(process.pid)

    def read(self, process: LocalProcess, *, killed: bool = False) -> None:
        """Read one life now. killed: it dies next, so that its work of the current step is lost."""
        life = self._life(process)
        life.killed = killed
        _read(life)

    def read_all(self) -> None:
        """Read all living processes that are not frozen."""
        with self._lock:
            lives = [life for life in self._lives if life.process.pid not in self._frozen]
        for life in lives:
            if life.process.exit_code is None:
                _read(life)

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels, over all lives."""
        wanted = set(labels.items())
        return sum(
            value
            for life in self._lives
            for (sample, own), value in sorted(life.values.items(), key=str)
            if sample == name and wanted <= own
        )

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the sum of a metric's samples over all lives, by the values of a label."""
        labels = [dict(own) for life in self._lives for sample, own in life.values if sample == name]
        return {value: self.sum(name, **{label: value}) for value in sorted({own[label] for own in labels})}

    def compute(self) -> Compute:
        """Return the seconds computed and their outcome, by the last values read."""
        total_s, lost_s = self.sum("swarmflow_compute_seconds_total"), 0.0
        for life in self._lives:
            if life.killed:
                lost_s += _of(life, "swarmflow_compute_seconds_total") - _of(life, "swarmflow_settled_seconds_total")
        # A process that ended in order had only its last step unsettled at the last reading, which was committed.
        unused_s = self.sum("swarmflow_settled_seconds_total", outcome="unused")
        return Compute(total_s, max(0.0, lost_s), unused_s)

    def _life(self, process: LocalProcess) -> MeteredLife:
        with self._lock:
            return next(life for life in self._lives if life.process is process)

    def _read_often(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.read_all()


def _of(life: MeteredLife, name: str) -> float:
    return sum(value for (sample, _), value in sorted(life.values.items(), key=str) if sample == name)


def _read(life: MeteredLife) -> None:
    """Read a life; one that does not answer keeps the values of the last reading."""
    if life.address is None:
        found = _ADDRESS.search(life.process.log.read_text(encoding="utf-8", errors="replace"))
        if found is None:
            return
        life.address = found[1]
    with (
        contextlib.suppress(OSError, http.client.HTTPException),
        urllib.request.urlopen(life.address, timeout=_ANSWER_S) as answer,
    ):
        families = text_string_to_metric_families(answer.read().decode())
        life.values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith("swarmflow_")
        }
