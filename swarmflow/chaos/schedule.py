"""Which process is hit by what, and when: drawn from a seed and from who serves, and from nothing else."""

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
    """A process that serves as a step opens. stage: TRAINER for a trainer."""

    name: str
    stage: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One process is hit.

    kind: `kill` is SIGKILL, `stop` SIGSTOP and then SIGCONT, `drain` SIGTERM; `block`: what it sends to another one is
    lost; `fill`: its disk is full; `corrupt`: a byte of a stage's file flips, then SIGKILL; `spoil`: a peer computes
    what is not finite; `stall`: a trainer forms no microbatch. moment: when, in lengths of a step from the opening.
    pause_s: how long it lasts. fresh: a peer that is not known yet comes instead of one that ended, not the same one
    again. again_s: the replacement is killed too, so long after it began to load its stage. place: from 0 to 1, whom it
    is blocked from, which byte flips, or what is not finite.
    """

    victim: ServingProcess
    kind: Kind
    moment: float
    pause_s: float
    fresh: bool
    again_s: float | None
    place: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """rate: the probability with which each process that serves is hit at an opening.

    trainers: whether trainers are hit too. lose_stage: whether the last peer of a stage may be hit.
    """

    seed: int
    rate: float
    trainers: bool = True
    lose_stage: bool = False

    def at_opening(self, step: int, serving: Sequence[ServingProcess]) -> tuple[Fault, ...]:
        """The faults of a step, given who serves as it opens.

        What happens to a process is drawn for (seed, rate, step, process) alone, so that it does not depend on who
        else serves, but for the peers that are spared because they are the last of their stage.
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
