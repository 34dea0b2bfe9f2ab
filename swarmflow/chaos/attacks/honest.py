"""The honest processes of a swarm under attack: whether they go on, who they are, what they count, what they hold."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from swarmflow.chaos.cast import Cast
from swarmflow.chaos.meters import Meters
from swarmflow.chaos.watch import Seen
from swarmflow.system import resident_bytes

# What honest processes count about others: (metric, label, what stands before its values, values that are shown).
_COUNTED = (
    ("swarmflow_frames_refused_total", "reason", "frames_refused:", re.compile(".*")),
    (
        "swarmflow_decisions_total",
        "kind",
        "",
        re.compile(
            "messages_.*|claims_.*|put_out|accusations|steps_restarted|rollbacks|resynchronisations|stalled|hops_lost"
        ),
    ),
    ("swarmflow_denials_total", "reason", "denials:", re.compile("stale|unknown|invalid|stage")),
)


@dataclass
class Honest:
    """The processes that do not attack, by name, from the beginning of an attack on."""

    cast: Cast
    meters: Meters
    names: list[str]
    ended: list[str] = field(default_factory=list)  # of those that are gone, and were not killed on purpose
    rejoined: list[str] = field(default_factory=list)  # of those that had to join again, once for each time
    _ids: dict[str, str] = field(default_factory=dict)  # of the present life of each process
    _counted: dict[str, float] = field(default_factory=dict)
    _resident: dict[str, int] = field(default_factory=dict)
    _grown: int = 0
    _looked: Seen | None = None  # when memory was read last

    def begin(self, seen: Seen) -> None:
        """Take the present state for that before the attack."""
        self.ended, self.rejoined, self._grown = [], [], 0
        self._ids = {name: found for name in self.names if (found := self._id(seen, name))}
        self._counted = self._counts()
        self._resident = {name: resident_bytes(self.cast.present(name).pid) for name in self.names}

    def look(self, seen: Seen | None) -> None:
        """Notice who has ended, or has become another incarnation, and what each holds."""
        for name in self.names:
            process = self.cast.present(name)
            if process.exit_code is not None and not process.expendable and name not in self.ended:
                self.ended.append(name)
            found = self._id(seen, name)
            if found and self._ids.setdefault(name, found) != found:
                self._ids[name] = found
                self.rejoined.append(name)
            if seen is not self._looked and name in self._resident:
                self._grown = max(self._grown, resident_bytes(process.pid) - self._resident[name])
        self._looked = seen

    def serve(self, seen: Seen | None) -> bool:
        """Return whether all of them serve."""
        phases = [self.cast.sight(seen, self.cast.present(name)) for name in self.names]
        return all(sight is not None and sight.phase in ("serving", "leading") for sight in phases)

    @property
    def grown_bytes(self) -> int:
        """By how much the memory of one of them has grown at most."""
        return self._grown

    def counted(self) -> dict[str, int]:
        """Return what they have counted of others since the beginning, by metric and label."""
        now = self._counts()
        found = Counter({name: round(value - self._counted.get(name, 0.0)) for name, value in now.items()})
        return dict((+found).most_common())

    def _counts(self) -> dict[str, float]:
        self.meters.read_all()
        gone = self.meters.sum("swarmflow_suspected_total")
        return {"gone": gone} | {
            f"{prefix}{value}": count
            for metric, label, prefix, shown in _COUNTED
            for value, count in self.meters.by_label(metric, label).items()
            if shown.fullmatch(value)
        }

    def _id(self, seen: Seen | None, name: str) -> str:
        sight = self.cast.sight(seen, self.cast.present(name))
        return sight.id if sight is not None else ""
