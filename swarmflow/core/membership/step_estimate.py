"""An estimate of the seconds that a step takes with given peers on each stage: computing, connections, slots, sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from swarmflow.core.protocol.types import Plan

# A microbatch takes a slot for so many times as long as its tensors and passes alone: it waits behind others. Measured
# in examples/llama-8b.toml, then in 9 stages, from the first one and back.
QUEUES = 1.5
QUEUES_OVERLAPPED = 4.0  # the same, before the last stage, where an all-reduce takes what is left of the links
POWER = 8.0  # of the mean that stands for the longest time: a stage that is nearly the busiest counts too


@dataclass(frozen=True, slots=True)
class StageDemand:
    """What the peers of a stage have to do in a step."""

    work: float  # computing, in seconds of a peer of speed 1
    sent_bytes: float  # of the activations and gradients that leave the stage
    held_s: float  # the time for which each microbatch takes a slot, summed over the microbatches
    reduced_bytes: float  # of the sums of its all-reduce
    idle_links_s: float = 0.0  # when its connections have nothing to send, before their first tensor and after the last
    overlaps: bool = False  # the all-reduce goes on while the next step's microbatches cross the same connections


@dataclass(frozen=True, slots=True)
class StagePower:
    """What one peer can do, or the peers of a stage all together."""

    peers: int = 0
    speed: float = 0.0  # in the unit of `Join.speed`
    slots: float = 0.0  # microbatches with a graph that fit in memory; infinite: not known of every peer
    upload_rate: float = 0.0  # of the connections with a known rate, in bytes/s
    upload_rate_min: float = math.inf  # of one of these, in bytes/s
    unmeasured: int = 0  # peers of which no rate is known

    def plus(self, other: StagePower) -> StagePower:
        """Return these peers and others together."""
        return StagePower(
            self.peers + other.peers,
            self.speed + other.speed,
            self.slots + other.slots,
            self.upload_rate + other.upload_rate,
            min(self.upload_rate_min, other.upload_rate_min),
            self.unmeasured + other.unmeasured,
        )

    def over_paths(self, reduce_rate: float) -> StagePower:
        """Return the same, not limited by connections: as fast as their links, which are accounted for otherwise.

        reduce_rate: at which their sums are reduced, in bytes/s.
        """
        return replace(self, upload_rate=math.inf, upload_rate_min=reduce_rate, unmeasured=0)

    def assuming(self, upload_rate: float) -> StagePower:
        """Return the same with this rate for each connection without a known one, in bytes/s."""
        if not self.unmeasured:
            return self
        rate = self.upload_rate + self.unmeasured * upload_rate
        return StagePower(self.peers, self.speed, self.slots, rate, min(self.upload_rate_min, upload_rate))


def power_of_one(speed: float, slots: float, upload_rate: float) -> StagePower:
    """Return what one peer can do. slots: infinite if not known. upload_rate: in bytes/s; 0: not known."""
    return StagePower(1, speed, slots, upload_rate, upload_rate or math.inf, int(upload_rate == 0.0))


def together(powers: Iterable[StagePower]) -> StagePower:
    """Return the peers of a stage, all together."""
    peers = unmeasured = 0
    speed, slots, upload_rate, upload_rate_min = 0.0, 0.0, 0.0, math.inf
    for power in powers:  # of every peer of the run, between any two steps
        peers += power.peers
        speed += power.speed
        slots += power.slots
        upload_rate += power.upload_rate
        upload_rate_min = min(upload_rate_min, power.upload_rate_min)
        unmeasured += power.unmeasured
    return StagePower(peers, speed, slots, upload_rate, upload_rate_min, unmeasured)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The seconds of a step that a stage takes: its microbatches, then its all-reduce."""

    pipeline_s: float  # with the all-reduce where that overlaps with the microbatches
    reduce_s: float  # 0 where it overlaps


def demands(plan: Plan, run: StagePower) -> tuple[StageDemand, ...]:
    """Return what each stage has to do in a step. run: all its peers together.

    An inner stage sends an activation on and a gradient back for every microbatch, the ends one of both. A slot is
    taken from the arrival of an activation (at the last stage: from its reservation) until the gradient leaves.
    """
    costs = plan.costs or (1.0,) * plan.stages
    tensor_s = plan.boundary_bytes * run.peers / run.upload_rate
    found: list[StageDemand] = []
    last = plan.stages - 1
    for stage, cost in enumerate(costs):
        tensors = (stage < last) + (stage > 0)
        transfers = 2 * (last - stage) or 1
        queues = QUEUES_OVERLAPPED if plan.delay and stage < last else QUEUES
        held_s = queues * transfers * tensor_s + sum(costs[stage:]) * run.peers / run.speed
        if stage < last:
            held_s /= 1 + plan.without_graph
        found.append(
            StageDemand(
                plan.microbatches * cost,
                float(plan.microbatches * tensors * plan.boundary_bytes),
                plan.microbatches * held_s,
                float(plan.reduced_bytes[stage]) if plan.reduced_bytes else 0.0,
                0.0 if plan.delay else _idle_links_s(stage, last, tensor_s),
                plan.delay > 0,
            )
        )
    return tuple(found)


def _idle_links_s(stage: int, last: int, tensor_s: float) -> float:
    """Return how long a stage's connections have nothing to send, before its first tensor and after its last one.

    The first stage has sent all activations when the last one's way to the end and back begins; the last stage has
    nothing to send before one has come to it. With delayed updates there is always something. What computers wait is
    left out: with it the last stages of like peers get too many of them.
    """
    tensors = 2 * last - 1 if stage in (0, last) else 2 * stage - 1
    return max(0, tensors) * tensor_s


def stage_times(demand: StageDemand, power: StagePower) -> StageTimes:
    """Return the seconds that a stage of one peer or more needs: by its computers, its connections or its slots."""
    reduce_s = 0.0 if demand.overlaps else _reduce_s(demand, power)
    return StageTimes(max(bounds_s(demand, power)), reduce_s)


def bounds_s(demand: StageDemand, power: StagePower) -> tuple[float, float, float]:
    """Return how long a stage takes for its microbatches at least: by its computers, its connections and its slots."""
    links_s = demand.idle_links_s + demand.sent_bytes / power.upload_rate
    if demand.overlaps:
        links_s += _reduce_s(demand, power)
    return demand.work / power.speed, links_s, demand.held_s / max(1.0, power.slots)


def _reduce_s(demand: StageDemand, power: StagePower) -> float:
    """Return how long an all-reduce takes: each of n peers sends 2 (n - 1) / n of the sums; the slowest is awaited."""
    share = 2 * (power.peers - 1) / power.peers
    return share * demand.reduced_bytes / power.upload_rate_min


def step_s(times: Sequence[StageTimes]) -> float:
    """Return the estimate of a step: all stages take the longest pipeline time, and after it the longest all-reduce."""
    return max(each.pipeline_s for each in times) + max(each.reduce_s for each in times)


def smooth_step_s(times: Sequence[StageTimes]) -> float:
    """Return about the same, but such that it falls too where one of several stages that are equally busy is helped."""
    return _power_mean([each.pipeline_s for each in times]) + _power_mean([each.reduce_s for each in times])


def _power_mean(values: Sequence[float]) -> float:
    """Return a bound of the largest value, close to it, that rises with every value."""
    largest = max(values)
    if largest == 0.0:
        return 0.0
    return float(largest * sum((value / largest) ** POWER for value in values) ** (1.0 / POWER))
