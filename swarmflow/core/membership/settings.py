"""The rules of a run as its leader applies them: what it decides by, and whom it lets in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Plan, ProcessId


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """What the leader knows of the run beyond its plan.

    steps: after which the run is finished. learning_rate: of step t. clip: largest gradient norm (0: off). software,
    run: what a process that joins must match. from_seed: version 0 is made by each peer from the seed, else the
    trainers serve it. new_lineage: a random name, for a leader that goes on without a majority. A run's first step is
    not opened before peers_first peers are ready. planned: the stages of peers follow a plan by their links.
    """

    steps: int
    learning_rate: Callable[[int], float]
    clip: float
    software: str
    run: str
    from_seed: bool
    new_lineage: Callable[[], str]
    checkpoint_every: int = 0
    validate_every: int = 0
    peers_first: int = 0
    planned: bool = False


def refusal(settings: LeaderSettings, plan: Plan, sender: ProcessId, join: Join) -> str | None:
    """Why a process may not join, in words for the person who started it; None: it may."""
    if join.software != settings.software:
        return f"this run uses swarmflow {settings.software}, not {join.software}: install that version"
    if join.run != settings.run:
        return "it belongs to another run, or its RUN.toml or data differ from this run's"
    if join.member.process != sender or join.role not in ("peer", "trainer"):
        return "it does not say who it is"
    if join.role == "peer" and join.member.stage >= plan.stages:
        return f"--stage {join.member.stage}: this run has the stages 0 to {plan.stages - 1}, or auto"
    if join.member.stage < 0 and len(set(join.unfit)) == plan.stages:
        return "its memory has no room for any stage of this run"
    if join.member.stage in join.unfit:
        return f"--stage {join.member.stage}: its memory has no room for that one"
    return None
