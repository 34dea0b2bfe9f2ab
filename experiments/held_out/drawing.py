"""Draws scenarios by a seed. The rules were written before any result was seen; README.md lists them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from random import Random
from statistics import fmean

from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import ChurnPart, ModelPart, NetworkPart, PeersPart, RunPart, Scenario, TrainersPart

WARMUP, ITERATIONS = 1, 3
SCENARIOS = 20
LIMIT_S = 50_000.0
PEERS_MAX = 32
PARAMETERS_MAX = 128_000_000  # of a stage: with more, its all-reduces take minutes to simulate
VOCABULARY = 32_000
EACH = (0.8, 1.2)  # of a machine's speed, by what is typical of its kind


class SwarmFamily(StrEnum):
    """What is difficult about a swarm."""

    CONSUMER_LINKS = "consumer links"
    SLOW_FIFTH = "slow fifth"
    HEAVY_STAGE = "heavy stage"
    LITTLE_MEMORY = "little memory"
    HALF_DIE = "half die"
    MIXED_DEVICES = "mixed devices"


@dataclass(frozen=True, slots=True)
class LinkKind:
    """Links that the machines of a swarm have, and the widths of models that are worth training over them."""

    name: str
    up_mbps: float
    down_mbps: float
    widths: tuple[int, ...]


CONSUMER = LinkKind("consumer", 5.0, 20.0, (512, 768, 1024))
LINKS = (
    LinkKind("cable", 50.0, 250.0, (768, 1024, 2048)),
    LinkKind("fibre", 300.0, 300.0, (1024, 2048)),
    LinkKind("office", 1000.0, 1000.0, (1024, 2048)),
    LinkKind("data centre", 10_000.0, 10_000.0, (1024, 2048)),
)
TFLOPS = (2.0, 10.0, 40.0)  # a laptop's, a desktop GPU's and a server GPU's, half of what the data sheets promise


@dataclass(frozen=True, slots=True)
class MassDeath:
    """Peers that die at the same moment. share: of the first measured iteration, by when they do."""

    peers: tuple[int, ...]
    share: float


@dataclass(frozen=True, slots=True)
class HeldOutScenario:
    """One scenario. death: to be put into its churn, as each policy takes its own time to get there."""

    name: str
    families: tuple[SwarmFamily, ...]
    scenario: Scenario
    death: MassDeath | None

    @property
    def by_chance(self) -> bool:
        """Whether its churn differs from seed to seed."""
        return self.scenario.churn.leave_chance > 0


def draw(seed: int) -> list[HeldOutScenario]:
    """The scenarios of a seed."""
    return [_draw(number, families, seed) for number, families in enumerate(_families(seed))]


def _families(seed: int) -> list[tuple[SwarmFamily, ...]]:
    """Each family alone, twice; then one set of three families after every three of two, no set twice."""
    random = Random(f"families {seed}")
    alone: list[tuple[SwarmFamily, ...]] = [(family,) for family in SwarmFamily]
    pairs, triples = list(combinations(SwarmFamily, 2)), list(combinations(SwarmFamily, 3))
    random.shuffle(pairs)
    random.shuffle(triples)
    mixed = [triples.pop() if number % 4 == 3 else pairs.pop() for number in range(SCENARIOS - 2 * len(alone))]
    return [*alone, *alone, *mixed]


def _draw(number: int, families: tuple[SwarmFamily, ...], seed: int) -> HeldOutScenario:
    random = Random(f"scenario {seed} {number}")
    link = CONSUMER if SwarmFamily.CONSUMER_LINKS in families else random.choice(LINKS)
    stages = random.randint(3, 6)
    # With one peer a stage nothing is decided, and of half of two a stage nearly nothing is left.
    peers = random.randint((3 if SwarmFamily.HALF_DIE in families else 2) * stages, PEERS_MAX)
    network = _network(random)
    machines = _machines(random, families, peers)
    chance = random.choice((0.0, 0.0, 0.0, 0.0, 0.05, 0.1))
    name = f"{number + 1}. {' + '.join(families)}"
    scenario = Scenario(
        run=RunPart(name=name, warmup=WARMUP, iterations=ITERATIONS, limit_s=LIMIT_S),
        model=_model(random, families, link, stages, machines),
        trainers=TrainersPart(region=network.regions[:1], up_mbps=link.up_mbps, down_mbps=link.down_mbps),
        network=network,
        churn=ChurnPart(leave_chance=chance, join_chance=0.5 if chance else 0.0),
        peers=tuple(_peers(random, families, link, network, machines)),
        latency=_table(network.latency_matrix_s),
        bandwidth=_table(network.mbps_matrix),
        arrivals=(),
    )
    death = None
    if SwarmFamily.HALF_DIE in families:
        death = MassDeath(tuple(sorted(random.sample(range(peers), peers // 2))), random.uniform(0.1, 0.9))
    return HeldOutScenario(name, families, scenario, death)


def _table(given: object) -> tuple[tuple[float, ...], ...]:
    assert isinstance(given, tuple), "drawn, and in no file"
    return given


def _network(random: Random) -> NetworkPart:
    """One to three regions: near each other within one, oceans or a continent between them."""
    count = random.randint(1, 3)
    within_s = [random.uniform(0.002, 0.03) for _ in range(count)]
    between_s = {pair: random.uniform(0.03, 0.15) for pair in combinations(range(count), 2)}
    between_mbps = {pair: random.uniform(100.0, 1000.0) for pair in combinations(range(count), 2)}
    pairs = [[(min(one, other), max(one, other)) for other in range(count)] for one in range(count)]
    return NetworkPart(
        regions=tuple(f"region {number}" for number in range(count)),
        latency_matrix_s=tuple(tuple(between_s.get(pair, within_s[pair[0]]) for pair in row) for row in pairs),
        mbps_matrix=tuple(tuple(between_mbps.get(pair, 0.0) for pair in row) for row in pairs),
    )


def _model(
    random: Random, families: tuple[SwarmFamily, ...], link: LinkKind, stages: int, machines: list[float]
) -> ModelPart:
    """A decoder, drawn until a step has more work than its all-reduce: with less, its user would make it larger.

    machines: the operations a second of each.
    """
    while True:
        model = _decoder(random, families, link, stages, len(machines))
        of_each_peer = model.microbatches * stages / len(machines)  # microbatches that the average peer has of a step
        byte_s = 8e-6 / link.up_mbps
        sending_s = of_each_peer * 2 * model.activation_bytes / model.codec_ratio * byte_s
        computing_s = of_each_peer * 3 * model.forward_flops / fmean(machines)
        within = _most_parameters(model) <= PARAMETERS_MAX
        if within and max(sending_s, computing_s) > 2 * max(model.reduced_bytes) * byte_s:
            return model


def _most_parameters(model: ModelPart) -> int:
    assert isinstance(model.parameters, tuple), "one for each stage"
    return max(model.parameters)


def _decoder(random: Random, families: tuple[SwarmFamily, ...], link: LinkKind, stages: int, peers: int) -> ModelPart:
    """So many blocks a stage, and the embedding at the first. Costs and parameters go with the blocks."""
    width, depth = random.choice(link.widths), random.choice((1, 2, 4))
    sequence, sequences = random.choice((1024, 2048)), random.choice((2, 4, 8))
    blocks = [depth] * stages
    if SwarmFamily.HEAVY_STAGE in families:
        blocks[random.randrange(stages)] *= random.randint(3, 6)
    block = 12 * width**2
    parameters = [count * block for count in blocks]
    parameters[0] += VOCABULARY * width
    tokens = sequence * sequences
    # 2 operations a parameter and token, and those of attention: 4 a number of each token and its half of the others.
    block_flops = tokens * (2.0 * block + 2.0 * sequence * width)
    return ModelPart(
        stages=stages,
        microbatches=random.choice((4, 6, 8, 10)) * (peers // stages),
        costs=tuple(map(float, blocks)),
        activation_bytes=2 * tokens * width,
        codec_ratio=2.0,  # 8 bits a number on the wire
        token_bytes=4 * tokens,
        parameters=tuple(parameters),
        reduce_codec=random.choice(("none", "blockwise16")),
        forward_flops=block_flops * sum(blocks) / stages,
    )


def _machines(random: Random, families: tuple[SwarmFamily, ...], count: int) -> list[float]:
    """The operations a second of each, in random order."""
    kinds = [random.choice(TFLOPS)] * count
    if SwarmFamily.MIXED_DEVICES in families:
        # Each kind once at least.
        weights = [random.uniform(0.2, 1.0) for _ in TFLOPS]
        kinds = [*TFLOPS, *random.choices(TFLOPS, weights, k=count - len(TFLOPS))]
    random.shuffle(kinds)
    slow = count // 5 if SwarmFamily.SLOW_FIFTH in families else 0
    factors = [0.1] * slow + [1.0] * (count - slow)
    random.shuffle(factors)
    return [1e12 * kind * factor * random.uniform(*EACH) for kind, factor in zip(kinds, factors, strict=True)]


def _peers(
    random: Random, families: tuple[SwarmFamily, ...], link: LinkKind, network: NetworkPart, machines: list[float]
) -> list[PeersPart]:
    """One section a machine, the regions in turn."""
    capacities = (1, 2) if SwarmFamily.LITTLE_MEMORY in families else random.choice(((4, 4), (2, 8)))
    regions = network.regions
    return [
        PeersPart(
            capacity=Constant(random.randint(*capacities)),
            flops=Constant(flops),
            region=(regions[number % len(regions)],),
            up_mbps=Constant(link.up_mbps),
            down_mbps=Constant(link.down_mbps),
        )
        for number, flops in enumerate(machines)
    ]
