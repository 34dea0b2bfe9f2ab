"""The computers and links of a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random

from swarmflow.core.protocol.piece_format import PieceFormat, piece_format
from swarmflow.simulator.distributions import Constant, Distribution, share_of
from swarmflow.simulator.network import INFINITE, Matrix, NetworkLinks, Port, Shared, Spread
from swarmflow.simulator.scenario import PeersPart, Scenario

BYTES_PER_MBIT = 125_000.0
CAPACITY = 4  # of a peer of which the scenario says neither its capacity nor its memory


@dataclass(frozen=True, slots=True)
class Profile:
    """A computer. Seconds are those of a microbatch at a stage of average cost."""

    forward_s: float
    backward_s: float
    update_s: float
    capacities: tuple[int, ...]  # microbatches that it holds at each stage; 0: it has no memory for it and for one
    jitter: float  # computing takes up to this share longer or shorter
    stage: int  # that it asks for, -1: any


@dataclass(slots=True)
class ScenarioHardware:
    """Hardware and network of a scenario. Peers that join later are like those that the scenario names."""

    scenario: Scenario
    seed: int
    random: Random
    network: Shared = field(init=False)
    profiles: dict[str, Profile] = field(init=False, default_factory=dict)  # of peers, by name
    _factors: tuple[float, ...] = field(init=False, default=())  # the cost of each stage, 1 on the average

    def __post_init__(self) -> None:
        network = self.scenario.network
        jitter = network.jitter_s, Random(f"jitter of {self.seed}")
        self.network = Shared(_links(self.scenario, self.seed), {}, network.queue_s, *jitter)
        self._factors = self.scenario.model.cost_factors
        trainers = self.scenario.trainers
        for number in range(trainers.count):
            place = self._place(trainers.region, number, number)
            up, down = _rate(trainers.up_mbps), _rate(trainers.down_mbps)
            self.network.ports[trainer_name(number)] = Port(place, up, down)

    def add_peer(self, number: int) -> str:
        """Set up the computer of a peer, and return its name."""
        name = peer_name(number)
        if name in self.profiles:
            return name
        like = number % self.scenario.peer_count
        group, within = _group_of(self.scenario.peers, like)
        model = self.scenario.model
        draw = partial(_draw, self.seed, number)

        if group.flops is not None:
            flops = draw(1, group.flops)
            backward_flops = 2 * model.forward_flops if model.backward_flops is None else model.backward_flops
            forward_s, backward_s = model.forward_flops / flops, backward_flops / flops
        else:
            forward_s = draw(1, group.forward_s or Constant(0.0))
            backward_s = 2 * forward_s if group.backward_s is None else draw(2, group.backward_s)
        capacities = capacities_of(self.scenario, self.seed, number)
        stage = within % model.stages if group.spread else group.stage
        update_s = draw(4, group.update_s)
        self.profiles[name] = Profile(forward_s, backward_s, update_s, capacities, group.jitter, stage)
        place = self._place(group.region, within, self.scenario.trainers.count + like)
        up, down = _rate(draw(5, group.up_mbps)), _rate(draw(6, group.down_mbps))
        self.network.ports[name] = Port(place, up, down)
        return name

    def fits(self, name: str) -> bool:
        """Return whether a peer has memory for the stage that it asks for, or for any, and one microbatch."""
        return self.capacity(name, self.profiles[name].stage) > 0

    def link(self, one: str, other: str) -> tuple[float, float]:
        """Return latency and bandwidth (bytes/s) from one computer to another, their uplink and downlink included.

        Of a jitter, the latency includes the median.
        """
        here, there = self.network.ports[one], self.network.ports[other]
        latency_s, rate = self.network.links.between(here.place, there.place)
        if self.network.jitter_s is not None:
            latency_s += self.network.jitter_s.at(0.5)
        return latency_s, min(rate, here.up, there.down)

    def pass_s(self, name: str, stage: int) -> float:
        """Return the mean seconds of a forward and a backward pass at a stage."""
        profile = self.profiles[name]
        return (profile.forward_s + profile.backward_s) / 2 * self._factors[stage]

    def persistent(self, number: int) -> bool:
        """Return whether this peer never leaves by churn."""
        return _group_of(self.scenario.peers, number % self.scenario.peer_count)[0].persistent

    def _place(self, regions: tuple[str, ...], within: int, machine: int) -> int:
        known = self.scenario.network.regions
        return known.index(regions[within % len(regions)]) if known else machine

    # --- hardware -----------------------------------------------------------------------------------------------------

    def compute_s(self, name: str, stage: int, work: str) -> float:
        """Return seconds by the computer's speed and the stage's cost."""
        profile = self.profiles[name]
        if work == "update":
            return profile.update_s
        seconds = (work != "backward") * profile.forward_s + (work != "forward") * profile.backward_s
        if profile.jitter:
            seconds *= 1 + profile.jitter * (2 * self.random.random() - 1)
        return seconds * self._factors[stage]

    def weights_share(self, name: str, work: str) -> float:
        """Return what is as long as a forward pass, and at most half of the backward pass."""
        if not self.scenario.run.split_backward:
            return 0.0
        profile = self.profiles[name]
        seconds = profile.backward_s + (work == "loss") * profile.forward_s
        return min(profile.forward_s, profile.backward_s / 2) / seconds if seconds > 0 else 0.0

    def load_s(self) -> float | None:
        """Return None: states cross the network."""
        return None

    def broken_s(self) -> float | None:
        """Return the scenario's break_s."""
        return self.scenario.network.break_s or None

    def capacity(self, name: str, stage: int) -> int:
        """Return the capacity of its profile; without a stage that of the stage where it is least."""
        capacities = self.profiles[name].capacities
        return capacities[stage] if stage >= 0 else min(filter(None, capacities), default=0)

    def speed(self, name: str) -> float:
        """Return microbatches a second at a stage of average cost; 1 where they take no time."""
        seconds = self.profiles[name].forward_s + self.profiles[name].backward_s
        return 1 / seconds if seconds > 0 else 1.0

    def upload_rate(self, name: str) -> float:
        """Return the bandwidth of its uplink, in bytes/s; 0 where there is no limit."""
        up = self.network.ports[name].up
        return up if up < INFINITE else 0.0

    def boundary_bytes(self, stage: int, kind: str) -> int:
        """Return bytes of the scenario, compressed for a boundary tensor."""
        model = self.scenario.model
        if kind in ("tokens", "targets"):
            return model.token_bytes
        plain = model.activation_bytes
        if kind == "gradient" and model.gradient_bytes is not None:
            plain = model.gradient_bytes
        return round(plain / model.codec_ratio)

    def elements(self, group: str) -> int:
        """Return the number of the stage's parameters."""
        model = self.scenario.model
        if group == "tied":
            return max(1, model.tied_parameters)
        return _of_stage(model.parameters, int(group.removeprefix("stage-")))

    def piece(self) -> PieceFormat:
        """Return the bytes of a piece of an all-reduce, by the scenario's codec."""
        return piece_format(self.scenario.model.reduce_codec, self.scenario.model.delay)

    def state_bytes(self, stage: int) -> int:
        """Return bytes of weights and optimizer state."""
        model = self.scenario.model
        return round(model.state_bytes * _of_stage(model.parameters, stage))


def trainer_name(number: int) -> str:
    """Return the name of a trainer; t0 leads at first."""
    return f"t{number}"


def peer_name(number: int) -> str:
    """Return the name of a peer."""
    return f"p{number}"


def peer_number(name: str) -> int:
    """Return the number of a peer of this name."""
    return int(name.removeprefix("p"))


def _of_stage(value: int | tuple[int, ...], stage: int) -> int:
    return value if isinstance(value, int) else value[stage]


def _rate(mbps: float) -> float:
    return mbps * BYTES_PER_MBIT if mbps > 0 else INFINITE


def _group_of(groups: tuple[PeersPart, ...], number: int) -> tuple[PeersPart, int]:
    for group in groups:
        if number < group.count:
            return group, number
        number -= group.count
    raise IndexError(number)


def _draw(seed: int, number: int, what: int, given: Distribution) -> float:
    """Return one of the random properties of a peer."""
    return given.at(share_of(seed + what, number, 7))


def capacities_of(scenario: Scenario, seed: int, number: int) -> tuple[int, ...]:
    """Return the microbatches that a peer holds at a time at each stage; 0: no memory for it and one microbatch."""
    group, _ = _group_of(scenario.peers, number % scenario.peer_count)
    model = scenario.model
    if group.memory_bytes is not None:
        memory_bytes = _draw(seed, number, 3, group.memory_bytes)
        left = (memory_bytes - model.memory_bytes(stage) for stage in range(model.stages))
        return tuple(max(0, int(free // model.microbatch_memory_bytes)) for free in left)
    return (CAPACITY if group.capacity is None else int(_draw(seed, number, 3, group.capacity)),) * model.stages


def _links(scenario: Scenario, seed: int) -> NetworkLinks:
    network = scenario.network
    if scenario.latency is None and scenario.bandwidth is None:
        return Spread(network.latency_s, _Rates(network.mbps), seed, network.symmetric)
    places = range(len(scenario.latency or scenario.bandwidth or ()))
    links = Spread(network.latency_s, _Rates(network.mbps), seed, network.symmetric)
    pairs = [[links.between(one, other) for other in places] for one in places]
    latency_s = scenario.latency or tuple(tuple(latency for latency, _ in row) for row in pairs)
    if scenario.bandwidth is not None:
        return Matrix(latency_s, tuple(tuple(_rate(mbps) for mbps in row) for row in scenario.bandwidth))
    return Matrix(latency_s, tuple(tuple(rate for _, rate in row) for row in pairs))


@dataclass(frozen=True, slots=True)
class _Rates:
    """A distribution of Mb/s, in bytes a second."""

    mbps: Distribution

    def at(self, share: float) -> float:
        return _rate(self.mbps.at(share))
