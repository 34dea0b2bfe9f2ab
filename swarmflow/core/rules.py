"""The rules of a run as its leader applies them: what it decides by, and whom it lets in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmflow.core.messages import Join
from swarmflow.core.types import Plan, ProcessId


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """What the leader knows of the run beyond its plan.

    steps: after which the run is finished. learning_rate: of step t. clip: largest gradient norm (0: off). software,
    run: what a process that joins must match. from_seed: version 0 is made by each peer from the seed, else the
    trainers serve it. Silence longer than silence_s is death. A step whose work is done waits join_hold_s for peers
    that are loading its version, so that they take part in its update instead of loading again; a peer that was too
    slow before is waited for longer, up to join_hold_s_max. A leader or a candidate without a majority waits
    quorum_timeout_s, then goes on as a lineage that new_lineage names, at random. One that has a version on disk,
    and knows of a later one, waits copies_wait_s for those who have copies of it. A ballot in which nothing was
    done for ballot_s is begun anew, since a message may have been lost. Who owes something and shows no progress
    for stall_s (and ten times what is usual) is put out for pause_s, and twice as long each time. A run's first
    step is not opened before peers_first peers are ready. A leader that starts waits memory_wait_s for peers that
    may hold a later version in memory than any disk: they look for an heir of the former leader first.
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
    heartbeat_s: float = 1.0
    silence_s: float = 8.0
    quorum_timeout_s: float = 30.0
    ballot_s: float = 60.0
    stall_s: float = 60.0
    pause_s: float = 30.0
    join_hold_s: float = 15.0
    join_hold_s_max: float = 960.0
    copies_wait_s: float = 20.0
    memory_wait_s: float = 40.0
    peers_first: int = 0

    def hold_s(self, tries: int) -> float:
        """How long a step waits for a peer that has loaded in vain `tries` times: four times longer each time.

        A state that takes longer to load than a step and the first wait would otherwise never arrive in time, and
        hold up every step for nothing.
        """
        return min(self.join_hold_s * 4.0**tries, self.join_hold_s_max)


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
    return None
