"""SCENARIO.toml: the swarm, the network and the bad luck that `swarmflow simulate` pretends (docs/simulate.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from swarmflow import config_check as check
from swarmflow.core.protocol.piece_format import BY_CODEC
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.routing.routers import ROUTERS
from swarmflow.errors import ConfigError
from swarmflow.simulator import checks
from swarmflow.simulator.checks import Table, TableFile
from swarmflow.simulator.distributions import Bounded, Constant, Distribution
from swarmflow.suggestions import did_you_mean

SIZE_MAX = 2**53
FIXED, ADAPTIVE = "fixed", "adatopk"  # codecs: of model.codec_ratio, and of a leader's choice for each step
COMPRESSION_RATIO = 50.0  # of the adaptive codec, as in RUN.toml
NONE = Constant(0.0)


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """[run]: how long, under which policy, from which seed. duration_s: 0: as long as the iterations take."""

    name: Annotated[str, check.name] = "scenario"
    policy: Annotated[str, check.text] = "swarmflow"
    recompute: Annotated[bool, check.boolean] = True
    split_backward: Annotated[bool, check.boolean] = True
    relays: Annotated[bool, check.boolean] = True
    router: Annotated[str, check.choice(*ROUTERS)] = "shortest"
    placement: Annotated[str, check.choice("auto", "planned")] = "auto"
    seed: Annotated[int, check.integer(0, check.SEED_MAX)] = 0
    iterations: Annotated[int, check.integer(1)] = 10
    warmup: Annotated[int, check.integer(0)] = 1
    duration_s: Annotated[float, check.number(at_least=0)] = 0.0
    limit_s: Annotated[float, check.number(above=0)] = 1e6
    rebalance_s: Annotated[float, check.number(at_least=0)] = 60.0
    late_s: Annotated[float, check.number(above=0)] = 15.0
    silence_s: Annotated[float, check.number(above=0)] = 8.0
    timeout_s: Annotated[float, check.number(at_least=0)] = 0.0
    checkpoint_every: Annotated[int, check.integer(0)] = 0
    journal_bytes_max: Annotated[int, check.integer(0, SIZE_MAX)] = 1 << 30
    codec: Annotated[str, check.choice(FIXED, ADAPTIVE)] = FIXED
    compression_ratio: Annotated[float | None, check.number(at_least=1)] = None

    @property
    def slowest_ratio(self) -> float:
        """By how much the tensors of the slowest boundary are compressed against fp32; 0: the codec is not adaptive."""
        return (self.compression_ratio or COMPRESSION_RATIO) if self.codec == ADAPTIVE else 0.0

    @property
    def timeouts(self) -> Timeouts:
        """Of the processes of the run."""
        return Timeouts(late_s=self.late_s, silence_s=self.silence_s)


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """[model]: what is computed and what is sent. Bytes and floating-point operations are of one microbatch."""

    stages: Annotated[int, check.integer(1)] = 1
    microbatches: Annotated[int, check.integer(1)] = 8
    costs: Annotated[tuple[float, ...], checks.numbers] = ()
    tied_parameters: Annotated[int, check.integer(0, SIZE_MAX)] = 0
    activation_bytes: Annotated[int, check.integer(0, SIZE_MAX)] = 0
    gradient_bytes: Annotated[int | None, check.integer(0, SIZE_MAX)] = None
    token_bytes: Annotated[int, check.integer(0, SIZE_MAX)] = 8192
    codec_ratio: Annotated[float, check.number(above=0)] = 1.0
    parameters: Annotated[int | tuple[int, ...], checks.whole_or_list(1)] = 1_000_000
    reduce_codec: Annotated[str, check.choice(*BY_CODEC)] = "none"
    delay: Annotated[int, check.integer(0, 1)] = 0
    state_bytes: Annotated[float, check.number(at_least=0)] = 12.0
    forward_flops: Annotated[float, check.number(at_least=0)] = 0.0
    backward_flops: Annotated[float | None, check.number(at_least=0)] = None
    microbatch_memory_bytes: Annotated[int, check.integer(0, SIZE_MAX)] = 0
    stage_memory_bytes: Annotated[int | tuple[int, ...], checks.whole_or_list(0)] = 0

    def memory_bytes(self, stage: int) -> int:
        """What a stage takes without microbatches."""
        given = self.stage_memory_bytes
        return given if isinstance(given, int) else given[stage]

    @property
    def least_memory_bytes(self) -> int:
        """What a peer needs to serve any stage at all: the smallest one and a microbatch."""
        return min(map(self.memory_bytes, range(self.stages))) + self.microbatch_memory_bytes

    @property
    def cost_factors(self) -> tuple[float, ...]:
        """The computing of each stage, 1 on the average."""
        costs = self.costs or (1.0,) * self.stages
        return tuple(cost * len(costs) / sum(costs) for cost in costs)

    @property
    def reduced_bytes(self) -> tuple[int, ...]:
        """The bytes of the sums of each stage's all-reduce, after the first step."""
        parameters = self.parameters
        counts = (parameters,) * self.stages if isinstance(parameters, int) else parameters
        return tuple(BY_CODEC[self.reduce_codec].usual_bytes(count) for count in counts)


@dataclass(frozen=True, kw_only=True)
class TrainersPart:
    """[trainers]: they form microbatches; the first one leads."""

    count: Annotated[int, check.integer(1)] = 1
    region: Annotated[tuple[str, ...], checks.name_or_names] = ()
    up_mbps: Annotated[float, check.number(at_least=0)] = 0.0
    down_mbps: Annotated[float, check.number(at_least=0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class PeersPart:
    """[[peers]]: `count` peers alike, or drawn alike. Bandwidths of 0 are no limit."""

    count: Annotated[int, check.integer(1)] = 1
    stage: Annotated[int, check.integer(-1)] = -1
    spread: Annotated[bool, check.boolean] = False
    persistent: Annotated[bool, check.boolean] = False
    capacity: Annotated[Distribution | None, checks.distribution(1)] = None
    memory_bytes: Annotated[Bounded | None, checks.distribution(above=True)] = None
    forward_s: Annotated[Distribution | None, checks.distribution()] = None
    backward_s: Annotated[Distribution | None, checks.distribution()] = None
    flops: Annotated[Distribution | None, checks.distribution(above=True)] = None
    update_s: Annotated[Distribution, checks.distribution()] = NONE
    jitter: Annotated[float, check.number(at_least=0, below=1)] = 0.0
    region: Annotated[tuple[str, ...], checks.name_or_names] = ()
    up_mbps: Annotated[Distribution, checks.mbps] = NONE
    down_mbps: Annotated[Distribution, checks.mbps] = NONE


@dataclass(frozen=True, kw_only=True)
class NetworkPart:
    """[network]: the links between machines, by distribution, by region or one by one. break_s: 0: not noticed."""

    latency_s: Annotated[Distribution, checks.distribution()] = NONE
    jitter_s: Annotated[Distribution | None, checks.distribution()] = None
    mbps: Annotated[Distribution, checks.mbps] = NONE
    symmetric: Annotated[bool, check.boolean] = True
    regions: Annotated[tuple[str, ...], checks.names] = ()
    latency_matrix_s: Annotated[Table | TableFile | None, checks.table] = None
    mbps_matrix: Annotated[Table | TableFile | None, checks.table] = None
    break_s: Annotated[float, check.number(at_least=0)] = 1.0
    queue_s: Annotated[float, check.number(at_least=0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class ChurnPart:
    """[churn]: peers that leave without notice, and join. Chances are by iteration, rates by hour and peer."""

    leave_chance: Annotated[float, check.number(at_least=0, below=1)] = 0.0
    join_chance: Annotated[float, check.number(at_least=0, below=1)] = 0.0
    leaves_per_hour: Annotated[float, check.number(at_least=0)] = 0.0
    absence_s: Annotated[Distribution, checks.distribution()] = NONE
    trace: Annotated[str | None, check.text] = None
    spare_last: Annotated[bool, check.boolean] = True


@dataclass(frozen=True, slots=True)
class Arrival:
    """A line of a churn trace: at this second a peer joins or leaves. peer: its number, or -1: any, or another one."""

    time_s: float
    joins: bool
    peer: int


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole file. latency (s), bandwidth (Mb/s): the network's tables, read. arrivals: the churn's trace."""

    run: RunPart
    model: ModelPart
    trainers: TrainersPart
    network: NetworkPart
    churn: ChurnPart
    peers: tuple[PeersPart, ...]
    latency: Table | None
    bandwidth: Table | None
    arrivals: tuple[Arrival, ...]

    @property
    def peer_count(self) -> int:
        """How many peers begin."""
        return sum(group.count for group in self.peers)


_PARTS: dict[str, type] = {
    "run": RunPart,
    "model": ModelPart,
    "trainers": TrainersPart,
    "network": NetworkPart,
    "churn": ChurnPart,
}


def load(path: Path) -> Scenario:
    """Read and check a scenario. Raises ConfigError, one line that names the key, its value and what is allowed."""
    source, raw = str(path), check.read_toml(path, "a scenario")
    sections = [*_PARTS, "peers"]
    for name in raw:
        if name not in sections:
            shown = ", ".join("[[peers]]" if section == "peers" else f"[{section}]" for section in sections)
            raise ConfigError(
                f"{source}: unknown section or key {name!r}{did_you_mean(name, sections)}; allowed: {shown}"
            )
    parts: dict[str, Any] = {
        name: kind(**check.checked_section(source, name, raw.get(name, {}), kind)) for name, kind in _PARTS.items()
    }
    groups = raw.get("peers")
    if not isinstance(groups, list) or not groups:
        raise ConfigError(f"{source}: a scenario needs peers: write [[peers]] and what they are like below")
    peers = tuple(
        PeersPart(**check.checked_section(source, f"peers[{number}]", group, PeersPart))
        for number, group in enumerate(groups)
    )
    try:
        _check_model(parts["model"])
        _check_codec(parts["run"], parts["model"])
        for number, group in enumerate(peers):
            _check_peers(f"peers[{number}]", group, parts["model"], parts["network"])
        _check_places("trainers.region", parts["trainers"].region, parts["network"])
        tables = _tables(parts["network"], path.parent, parts["trainers"].count + sum(g.count for g in peers))
        arrivals = _arrivals(parts["churn"], path.parent)
        _check_enough(parts["model"], peers, arrivals)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    return Scenario(**parts, peers=peers, latency=tables[0], bandwidth=tables[1], arrivals=arrivals)


def _check_model(model: ModelPart) -> None:
    for key in ("costs", "parameters", "stage_memory_bytes"):
        value = getattr(model, key)
        if isinstance(value, tuple) and value and len(value) != model.stages:
            raise ConfigError(f"model.{key} = {list(value)}: must have one for each of the {model.stages} stages")


def _check_codec(run: RunPart, model: ModelPart) -> None:
    if run.codec == FIXED and run.compression_ratio is not None:
        raise ConfigError(
            f'run.compression_ratio = {run.compression_ratio:g}: run.codec is "{FIXED}", and compression_ratio belongs '
            f"to {ADAPTIVE}; model.codec_ratio is that of a fixed codec"
        )
    if run.codec == ADAPTIVE and model.codec_ratio != 1.0:
        raise ConfigError(f'model.codec_ratio = {model.codec_ratio:g}: run.codec is "{ADAPTIVE}"; leave it out')
    if run.codec == ADAPTIVE and model.delay:
        raise ConfigError(f'model.delay = {model.delay}: run.codec is "{ADAPTIVE}", which has no delay')


def _check_peers(section: str, group: PeersPart, model: ModelPart, network: NetworkPart) -> None:
    if group.stage >= model.stages:
        raise ConfigError(f"{section}.stage = {group.stage}: the stages are 0 to {model.stages - 1}, or -1 for any")
    if group.stage >= 0 and group.spread:
        raise ConfigError(f"{section}.spread = true: goes only without {section}.stage")
    if (group.forward_s is None) == (group.flops is None):
        raise ConfigError(f"{section} needs forward_s (and backward_s), or flops, and not both")
    if group.flops is not None and (model.forward_flops == 0 or group.backward_s is not None):
        raise ConfigError(f"{section}.flops: goes with model.forward_flops above 0, and without {section}.backward_s")
    if group.capacity is not None and group.memory_bytes is not None:
        raise ConfigError(f"{section} has both capacity and memory_bytes: keep one of them")
    if group.memory_bytes is not None:
        if model.microbatch_memory_bytes == 0:
            raise ConfigError(f"{section}.memory_bytes: goes with model.microbatch_memory_bytes above 0")
        if group.memory_bytes.most < model.least_memory_bytes:
            raise ConfigError(
                f"{section}.memory_bytes: at most {group.memory_bytes.most:,.0f}, but a stage with one microbatch "
                f"takes {model.least_memory_bytes:,} (model.stage_memory_bytes + model.microbatch_memory_bytes); "
                "more stages make each of them smaller"
            )
    _check_places(f"{section}.region", group.region, network)


def _check_enough(model: ModelPart, groups: tuple[PeersPart, ...], arrivals: tuple[Arrival, ...]) -> None:
    """Every stage has to have a peer at some time."""
    begin = sum(group.count for group in groups)
    numbers = {arrival.peer for arrival in arrivals if arrival.joins and arrival.peer >= begin}
    come = len(numbers) + sum(arrival.joins and arrival.peer < 0 for arrival in arrivals)
    if model.stages > begin + come:
        later = f", and {come} come later (churn.trace)" if come else ""
        raise ConfigError(
            f"model.stages = {model.stages}: each stage needs a peer of its own, and there are {begin} "
            f"(peers.count, all together){later}"
        )


def _check_places(key: str, given: tuple[str, ...], network: NetworkPart) -> None:
    if network.regions and not given:
        raise ConfigError(f"{key}: must be one or several of network.regions = {list(network.regions)}")
    for name in given:
        if name not in network.regions:
            guess = did_you_mean(name, network.regions)
            raise ConfigError(f"{key} = {name!r}: must be one of network.regions = {list(network.regions)}{guess}")


def _tables(network: NetworkPart, folder: Path, machines: int) -> tuple[Table | None, Table | None]:
    size = len(network.regions) or machines
    found: list[Table | None] = []
    for key in ("latency_matrix_s", "mbps_matrix"):
        given = getattr(network, key)
        found.append(None if given is None else checks.read_table(given, folder, f"network.{key}", size))
    if network.regions and found == [None, None]:
        raise ConfigError("network.regions: needs network.latency_matrix_s or network.mbps_matrix, by region")
    return found[0], found[1]


def _arrivals(churn: ChurnPart, folder: Path) -> tuple[Arrival, ...]:
    """The churn trace: lines `seconds,join` or `seconds,leave`, with the number of the peer as a third where given."""
    if churn.trace is None:
        return ()
    key = f"churn.trace = {churn.trace!r}"
    try:
        lines = (folder / churn.trace).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read the file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: is not UTF-8 text (byte {error.start})") from error
    found: list[Arrival] = []
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split(",")]
        if cells == [""] or cells[0].startswith("#"):
            continue
        try:
            time_s, kind, peer = check.number(at_least=0)(float(cells[0])), cells[1], int(cells[2]) if cells[2:] else -1
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{key}: line {number} must be seconds,join or seconds,leave[,number]") from error
        if kind not in ("join", "leave") or peer < -1:
            raise ConfigError(f"{key}: line {number} must be seconds,join or seconds,leave[,number]")
        found.append(Arrival(time_s, kind == "join", peer))
    return tuple(sorted(found, key=lambda arrival: arrival.time_s))
