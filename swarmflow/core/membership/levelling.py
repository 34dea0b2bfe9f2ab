"""Moves of peers between stages by the estimated time of a step, and the stage of a newcomer by the same estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from swarmflow.core.membership.rebalance import Move
from swarmflow.core.membership.step_estimate import (
    StageDemand,
    StagePower,
    StageTimes,
    bounds_s,
    smooth_step_s,
    stage_times,
    step_s,
    together,
)
from swarmflow.core.protocol.types import ProcessId

# Each move costs the download of a stage, and rates are measured while links are busy: all moves together must bring
# the estimate of a step below this share of it.
STEP_RATIO_MAX = 0.9
MOVES_MAX = 256  # that are planned ahead; those of a larger swarm are planned again
MOVE_GAIN = 0.05  # over the number of stages: by this share each move lowers the smoothed estimate at least
# Moves that together lower the estimate although the first ones raise it: a stage of one peer has no all-reduce, and
# one of two has. Of seven peers, five, one and one would stay for ever at 1.5 times the step of one, three and three.
LOOK_AHEAD = 3


@dataclass(frozen=True, slots=True)
class PlacedPeer:
    """A peer of a stage."""

    process: ProcessId
    power: StagePower  # of it alone
    movable: bool  # False: its stage was chosen by its user, or it has been moved lately
    unfit: frozenset[int] = frozenset()  # stages for which its memory has no room


def best_stage(
    needs: Sequence[StageDemand],
    powers: Sequence[StagePower],
    newcomer: StagePower,
    room: Sequence[float] = (),
    gains: Sequence[float] = (),
    unfit: Collection[int] = (),
) -> tuple[int, str]:
    """Return the stage at which a newcomer brings the estimate of a step lowest, and why. Every stage has a peer.

    room: how many may load each stage; empty: any number. Where none has room, any stage will do. gains: seconds a step
    that each stage gains by the newcomer's links beyond what the powers tell; empty: nothing is known of them. unfit:
    stages for which the newcomer has no memory.
    """
    times = [stage_times(need, power) for need, power in zip(needs, powers, strict=True)]
    after_s = []
    for stage, (need, power) in enumerate(zip(needs, powers, strict=True)):
        if stage in unfit:
            continue
        with_it = [*times]
        with_it[stage] = stage_times(need, power.plus(newcomer))
        gain_s = gains[stage] if gains else 0.0
        after_s.append((smooth_step_s(with_it) - gain_s, -times[stage].pipeline_s, stage))
    free = [choice for choice in after_s if not room or room[choice[2]] > 0]
    stage = min(free or after_s)[2]
    before, limit = times[stage].pipeline_s, limits(needs[stage], powers[stage])
    after = stage_times(needs[stage], powers[stage].plus(newcomer)).pipeline_s
    links = f", and links save {gains[stage]:.3g} s" if gains else ""
    return stage, f"its {before:.3g} s a step, limited by {limit}, fall to {after:.3g}{links}"


def limits(need: StageDemand, power: StagePower) -> str:
    """Return what limits a stage, in words."""
    names = "computing", "connections", "memory for microbatches"
    return max(zip(bounds_s(need, power), names, strict=True))[1]


def level(
    needs: Sequence[StageDemand],
    stages: Sequence[Sequence[PlacedPeer]],
    at_once: int,
    room: Sequence[float] = (),
    links_s: float = 0.0,
) -> list[Move]:
    """Return the moves to make now, at most so many; none: all that are worth it together would not gain enough.

    Each move is the one that gives the lowest estimate, as long as that falls with one of the next few: to the stage
    whose microbatches take longest (Algorithm 2 of SWARM, where computing limits the stages), or from the stage whose
    all-reduce does. The last peer of a stage stays. Every stage must have a peer. room: how many may load each stage;
    empty: any number. links_s: of a step, on links, wherever the peers are: it is not in the estimate.
    """
    plan = _Plan(needs, [list(peers) for peers in stages], list(room or [math.inf] * len(needs)))
    before_s = after_s = step_s(plan.times)
    moves: list[tuple[ProcessId, int]] = []
    worth, least_s = 0, smooth_step_s(plan.times)
    while len(moves) < MOVES_MAX and len(moves) - worth < LOOK_AHEAD and (found := plan.move()) is not None:
        moves.append(found)
        smooth_s = smooth_step_s(plan.times)
        if smooth_s < least_s * (1 - MOVE_GAIN / len(needs)) ** (len(moves) - worth):
            worth, least_s, after_s = len(moves), smooth_s, step_s(plan.times)
    del moves[worth:]
    before_s, after_s = before_s + links_s, after_s + links_s
    if after_s > STEP_RATIO_MAX * before_s:
        return []
    several = f", by {len(moves)} moves" if len(moves) > 1 else ""
    reason = f"the estimate of a step of {before_s:.3g} s falls to {after_s:.3g}{several}"
    return [Move(process, stage, reason) for process, stage in moves[:at_once]]


@dataclass(slots=True)
class _Plan:
    """The stages after the moves that are planned."""

    needs: Sequence[StageDemand]
    stages: list[list[PlacedPeer]]
    room: list[float]  # how many more may load each stage

    @property
    def times(self) -> list[StageTimes]:
        """Of each stage."""
        powers = (together(peer.power for peer in peers) for peers in self.stages)
        return [stage_times(need, power) for need, power in zip(self.needs, powers, strict=True)]

    def move(self) -> tuple[ProcessId, int] | None:
        """Make the move that gives the lowest estimate, and return it; None: there is none. A moved peer stays."""
        times = self.times
        least_s, best = math.inf, None
        powers = [together(peer.power for peer in peers) for peers in self.stages]
        busiest = max(range(len(times)), key=lambda stage: (times[stage].pipeline_s, -stage))
        reduces = max(range(len(times)), key=lambda stage: (times[stage].reduce_s, -stage))
        pairs = [(one, busiest) for one in range(len(times))] + [(reduces, other) for other in range(len(times))]
        for one, other in pairs:
            for peer in self._candidates(one, other) if one != other and self.room[other] > 0 else ():
                rest = together(mate.power for mate in self.stages[one] if mate is not peer)
                moved = [*times]
                moved[one] = stage_times(self.needs[one], rest)
                moved[other] = stage_times(self.needs[other], powers[other].plus(peer.power))
                if (seconds := smooth_step_s(moved)) < least_s:
                    least_s, best = seconds, (one, other, peer)
        if best is None:
            return None
        one, other, peer = best
        self.room[other] -= 1
        self.stages[one].remove(peer)
        self.stages[other].append(PlacedPeer(peer.process, peer.power, movable=False))
        return peer.process, other

    def _candidates(self, stage: int, other: int) -> list[PlacedPeer]:
        """Return the peers of a stage of which one may go to another one: four at most.

        They are the slowest, the fastest computer, the fastest connection and the fastest in both: where several
        computers are as fast, the fastest one is that behind the slowest connection.
        """
        peers = self.stages[stage]
        movable = [peer for peer in peers if peer.movable and other not in peer.unfit] if len(peers) > 1 else []
        if not movable:
            return []
        power = {peer.process: peer.power for peer in movable}
        orders: tuple[Callable[[ProcessId], tuple[float, float, ProcessId]], ...] = (
            lambda process: (power[process].speed, power[process].upload_rate, process),
            lambda process: (-power[process].speed, power[process].upload_rate, process),
            lambda process: (-power[process].upload_rate, power[process].speed, process),
            lambda process: (-power[process].upload_rate * power[process].speed, 0.0, process),
        )
        chosen = {min(power, key=order) for order in orders}
        return [peer for peer in movable if peer.process in chosen]
