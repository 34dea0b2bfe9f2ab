"""The faults of a run: drawn from a seed and the serving processes, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

Kind = Literal["kill", "stop", "drain", "block", "fill", "corrupt", "spoil", "stall"]

TRAINER: Final = -1
PAUSE_S_MIN: Final = 0.2
PAUSE_S_MAX: Final = 15.0
# A little over 1: some faults come after the step's commit, whenever that is this time.
MOMENT_MAX: Final = 1.1
LOADING_S_MAX: Final = 1.0
_KINDS: Final[tuple[Kind, ...]] = ("kill", "stop", "drain")
_KIND_WEIGHTS: Final = (5, 3, 2)
_AGAIN: Final = 0.25
_SABOTAGE: Final = 0.3  # of the faults
_OF_PEERS: Final[tuple[Kind, ...]] = ("block", "block", "fill", "corrupt", "spoil")
_OF_TRAINERS: Final[tuple[Kind, ...]] = ("block", "block", "fill", "corrupt", "stall")


@dataclass(frozen=True, order=True, slots=True)
class ServingProcess:
    """A process that serves as a step opens."""

    name: str
    stage: int  # TRAINER for a trainer


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one process.

    kind: `kill` is SIGKILL, `stop` SIGSTOP and then SIGCONT, `drain` SIGTERM; `block`: its messages to another process
    are lost; `fill`: its disk is full; `corrupt`: a byte of a stage's file flips, then SIGKILL; `spoil`: a peer
    computes values that are not finite; `stall`: a trainer forms no microbatch.
    """

    victim: ServingProcess
    kind: Kind
    moment: float  # when, in lengths of a step from the opening
    pause_s: float  # how long it lasts
    fresh: bool  # a peer that the run does not know replaces one that ended, instead of the same one
    again_s: float | None  # the replacement is killed too, so long after it began to load its stage
    place: float = 0.0  # from 0 to 1: the process that it is blocked from, the byte that flips, or the spoilt value


@dataclass(frozen=True, slots=True)
class Schedule:
    """Draws the faults of each step."""

    seed: int
    rate: float  # the probability of a fault for each serving process at an opening
    trainers: bool = True  # whether trainers have faults too
    lose_stage: bool = False  # whether the last peer of a stage may have one

    def at_opening(self, step: int, serving: Sequence[ServingProcess]) -> tuple[Fault, ...]:
        """Return the faults of a step, given the processes that serve as it opens.

        The fault of a process is drawn for (seed, rate, step, process) alone, so that it does not depend on other
        processes, but for the peers that are spared because they are the last of their stage.
        """
        drawn = sorted(self._draw(step, process) for process in serving)
        left = {process.stage: sum(other.stage == process.stage for other in serving) for process in serving}
        faults: list[Fault] = []
        for chance, _, fault in drawn:
            stage = fault.victim.stage
            spared = not self.trainers if stage == TRAINER else left[stage] == 1 and not self.lose_stage
            if chance >= self.rate or spared:
                continue
            left[stage] -= 1
            faults.append(fault)
        return tuple(faults)

    def _draw(self, step: int, process: ServingProcess) -> tuple[float, str, Fault]:
        random = Random(f"{self.seed} {self.rate} {step} {process.name}")
        chance = random.random()
        peer = process.stage != TRAINER
        [kind] = random.choices(_KINDS, _KIND_WEIGHTS)
        moment = random.uniform(0.0, MOMENT_MAX)
        pause_s = PAUSE_S_MIN * (PAUSE_S_MAX / PAUSE_S_MIN) ** random.random()
        fresh = random.random() < 0.5
        again = random.random() < _AGAIN
        again_s = random.uniform(0.0, LOADING_S_MAX)
        if random.random() < _SABOTAGE:
            kind = random.choice(_OF_PEERS if peer else _OF_TRAINERS)
        replaced = peer and kind in ("kill", "drain")
        place = random.random()
        twice_s = again_s if again and replaced else None
        return chance, process.name, Fault(process, kind, moment, pause_s, fresh and replaced, twice_s, place)
