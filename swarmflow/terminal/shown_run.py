"""The view of a run (docs/view.md) with checked types: it comes from another process, which may be hostile.

Texts are made printable as they are read, so that whatever is shown of a view is clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from swarmflow.clean_text import clean

TEXT_CHARS_MAX = 500  # of a name or a sentence
NUMBER_MAX = 1 << 63  # JSON has integers of any length, which no float holds
ID_CHARS_MAX = 24  # of a process: names are cut to 6 characters by whoever makes a view

WORKS = ("serving", "ready", "draining")  # phases of peers that hold their stage
PHASES = ("serving", "ready", "draining", "loading", "waiting", "barred", "failed")  # in the order of a list


class ShownSummary(msgspec.Struct, frozen=True):
    """What a peer reports of itself."""

    microbatches: int = 0
    tokens: int = 0
    compute_s: float = 0.0
    used_s: float = 0.0
    wasted_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_bytes: int = 0
    loading_bytes: int = 0
    loading_total_bytes: int = 0
    reach: str = ""


class ShownPeer(msgspec.Struct, frozen=True):
    """One peer."""

    id: str = ""
    phase: str = ""
    version: int = 0
    capacity: int = 0
    held: int = 0
    queued: int = 0
    address: str = ""
    summary: ShownSummary | None = None


class ShownStage(msgspec.Struct, frozen=True):
    """One stage. phases: number of peers in each phase, in a brief view, which names few of the peers."""

    stage: int = 0
    peers: list[ShownPeer] = []
    phases: dict[str, int] = {}

    def counts(self) -> Mapping[str, int]:
        """Return the number of peers in each phase that has any."""
        if self.phases:
            return {phase: number for phase, number in self.phases.items() if number > 0}
        return Counter(peer.phase for peer in self.peers)

    @property
    def working(self) -> int:
        """The number of peers that hold the stage."""
        counts = self.counts()
        return sum(counts.get(phase, 0) for phase in WORKS)


class ShownTrainer(msgspec.Struct, frozen=True):
    """One trainer."""

    id: str = ""
    name: str = ""
    leads: bool = False
    address: str = ""


class ShownRun(msgspec.Struct, frozen=True):
    """The state of a run."""

    run: str = ""
    run_id: str = ""
    phase: str = ""
    waiting_for: str = ""
    waiting_s: float = 0.0
    step: int = 0
    steps: int = 0
    durable_version: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    step_seconds: float | None = None
    left_s: float | None = None
    microbatches: int = 0
    stages: list[ShownStage] = []
    trainers: list[ShownTrainer] = []

    @property
    def peers(self) -> int:
        """The number of peers, in whatever phase."""
        return sum(sum(stage.counts().values()) for stage in self.stages)


class ShownEvent(msgspec.Struct, frozen=True):
    """One event of the timeline."""

    seq: int = 0
    time: float = 0.0
    kind: str = ""
    level: str = "info"
    text: str = ""


def shown_run(view: Mapping[str, Any]) -> ShownRun:
    """Return a view with checked types. Raises ValueError where it is none."""
    return msgspec.convert(_clean(view), ShownRun)


def shown_event(event: Mapping[str, Any]) -> ShownEvent:
    """Return an event with checked types; an empty one where it is none, since a list must not fail for one line."""
    try:
        return msgspec.convert(_clean(event), ShownEvent)
    except msgspec.ValidationError:
        return ShownEvent()


def loss_of(line: Mapping[str, Any]) -> float | None:
    """Return the loss of a committed step; None where it has none."""
    loss = line.get("loss")
    return float(loss) if isinstance(loss, int | float) and abs(loss) < NUMBER_MAX else None


def _clean(value: Any, depth: int = 0) -> Any:  # noqa: ANN401
    """Return a value of JSON whose texts are printable and short; deeper than a view is it is dropped."""
    if isinstance(value, str):
        return clean(value[:TEXT_CHARS_MAX])
    if depth > _DEPTH_MAX:
        return None
    if isinstance(value, Mapping):
        return {clean(str(key)): _clean(item, depth + 1) for key, item in value.items() if key not in _UNSHOWN}
    if isinstance(value, list | tuple):
        return [_clean(item, depth + 1) for item in value]
    return max(-NUMBER_MAX, min(value, NUMBER_MAX)) if type(value) is int else value


_DEPTH_MAX = 8
_UNSHOWN = ("hops", "links")
