"""The five cases of DT-FM's section 4.1, the machines of its appendix 10.5, and the models that are trained on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from swarmflow.simulator.checks import Table, TableFile, read_table
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import ModelPart, PeersPart, Scenario, load

FOLDER = Path(__file__).parent
LAYERS, BATCH = 24, 1024  # of the model in scenario.toml
BYTES = 2  # of a number of a gradient, in scenario.toml
HIDDEN, TOKENS = 2048, 2048  # of the model, and of a sequence, in scenario.toml


@dataclass(frozen=True, slots=True)
class Place:
    """Machines whose links are alike: a node or a city. link_mbps: of each machine's own link; 0: no limit."""

    name: str
    machines: int
    link_mbps: float = 0.0


@dataclass(frozen=True, slots=True)
class DtfmCase:
    """One of the five, or the sixth, which is that of appendix 10.5.

    The links between its places are in case{number}_latency_s.csv and case{number}_mbps.csv.
    """

    number: int
    title: str
    places: tuple[Place, ...]
    flops: float = 62.5e12  # of a machine, in a second: half of its peak, as in section 1

    @property
    def name(self) -> str:
        """As in the paper."""
        return f"Case {self.number}. {self.title}"

    def thinned(self, by: int) -> DtfmCase:
        """The same with fewer machines in each place."""
        return replace(self, places=tuple(replace(place, machines=place.machines // by) for place in self.places))

    @property
    def links(self) -> tuple[Table, Table]:
        """Latencies (s) and bandwidths (Mb/s) between its places."""
        latency_s, mbps = (
            read_table(TableFile(f"case{self.number}_{what}.csv"), FOLDER, what, len(self.places))
            for what in ("latency_s", "mbps")
        )
        return latency_s, mbps


def _cities(names: str, machines: int, link_mbps: float) -> tuple[Place, ...]:
    return tuple(Place(name, machines, link_mbps) for name in names.split())


CASES = (
    DtfmCase(1, "Data center on demand", tuple(Place(f"p3.16xlarge {node}", 8) for node in range(8))),
    DtfmCase(
        2,
        "Data center spot instances",
        (*(Place(f"p3.8xlarge {node}", 4) for node in range(8)), Place("p3.2xlarge", 32, 10_000)),
    ),
    DtfmCase(3, "Multiple data centers", _cities("Ohio Virginia", 32, 10_000)),
    DtfmCase(4, "Regional geo-distributed", _cities("California Ohio Oregon Virginia", 16, 2_000)),
    DtfmCase(
        5, "World-wide geo-distributed", _cities("Oregon Virginia Ohio Tokyo Seoul London Frankfurt Ireland", 8, 2_000)
    ),
)
# Appendix 10.5: 32 A40 of 149.7 TFLOP/s that were rented in two clusters, of which it does not say how many in each.
RENTED = DtfmCase(6, "FluidStack", (Place("US Mid", 16, 10_400), Place("US East", 16, 11_980)), flops=149.7e12 / 2)


@dataclass(frozen=True, slots=True)
class Model:
    """GPT3-1.3B with so many layers, or a wider model.

    batch: sequences of an iteration. gradient_bytes: of a number in the exchange.
    """

    layers: int = LAYERS
    batch: int = BATCH
    gradient_bytes: int = BYTES
    hidden: int = HIDDEN


def scenario(case: DtfmCase, model: Model, policy: str, seed: int, iterations: int = 2) -> Scenario:
    """One repetition: which machine serves which stage is drawn from the seed, but for `dtfm`, which plans it."""
    base = load(FOLDER / "scenario.toml")
    shuffled = [place for place in case.places for _ in range(place.machines)]
    Random(seed).shuffle(shuffled)
    peers = tuple(
        _peer(
            replace(base.peers[0], flops=Constant(case.flops)),
            place,
            -1 if policy == "dtfm" else number % base.model.stages,
        )
        for number, place in enumerate(shuffled)
    )
    latency_s, mbps = case.links
    return replace(
        base,
        run=replace(base.run, iterations=iterations),
        model=sized(base.model, model),
        trainers=replace(base.trainers, region=(case.places[0].name,)),
        network=replace(base.network, regions=tuple(place.name for place in case.places)),
        peers=peers,
        latency=latency_s,
        bandwidth=mbps,
    )


def _peer(like: PeersPart, place: Place, stage: int) -> PeersPart:
    link = Constant(place.link_mbps)
    return replace(like, count=1, stage=stage, region=(place.name,), up_mbps=link, down_mbps=link)


def sized(base: ModelPart, model: Model) -> ModelPart:
    """The model of scenario.toml with as many layers, as wide, and the batch."""
    deeper, wider = model.layers / LAYERS, model.hidden / HIDDEN
    # Of a layer: 12 H² parameters; 24 H² operations a token, and 4 T H of the attention to T tokens.
    parameters = deeper * wider**2
    operations = deeper * (24 * model.hidden**2 + 4 * TOKENS * model.hidden) / (24 * HIDDEN**2 + 4 * TOKENS * HIDDEN)
    assert isinstance(base.parameters, int)
    assert base.backward_flops is not None
    return replace(
        base,
        microbatches=model.batch,
        activation_bytes=round(base.activation_bytes * wider),
        parameters=round(base.parameters * parameters * model.gradient_bytes / BYTES),
        forward_flops=base.forward_flops * operations,
        backward_flops=base.backward_flops * operations,
    )


def petaflop(model: Model) -> float:
    """Of an iteration: forward passes, and backward passes of twice as many operations, without what is done again."""
    part = sized(load(FOLDER / "scenario.toml").model, model)
    return 3 * part.forward_flops * part.stages * part.microbatches / 1e15
