"""FusionLLM's testbeds (Table 5): two clusters of machines with several GPUs, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from random import Random

from swarmflow.planning.arrangement import Problem

RTX_4090, RTX_2080 = 41.3e12, 5.04e12  # FLOP/s: half of what they do in fp32
BITS = 8
# Mb/s and seconds between two machines of one cluster, and of two: the paper has them in a plot without numbers.
WITHIN, BETWEEN = ((100.0, 1000.0), (0.001, 0.005)), ((8.0, 100.0), (0.01, 0.05))
SAME_MBPS, SAME_S = 10_000.0, 0.0002  # between two GPUs of a machine


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines alike."""

    machines: int
    gpus: int  # of each machine
    flops: float  # of a GPU


@dataclass(frozen=True, slots=True)
class Testbed:
    """Clusters, in the order of the paper."""

    name: str
    clusters: tuple[Cluster, ...]

    @property
    def machines(self) -> list[int]:
        """The number of the cluster of each machine."""
        return [number for number, cluster in enumerate(self.clusters) for _ in range(cluster.machines)]

    @property
    def gpus(self) -> list[int]:
        """The machine of each GPU, in their order."""
        return [machine for machine, of in enumerate(self.machines) for _ in range(self.clusters[of].gpus)]

    @property
    def flops(self) -> list[float]:
        """The speed of each GPU."""
        return [self.clusters[self.machines[machine]].flops for machine in self.gpus]


TESTBEDS = (
    Testbed("Testbed 1, 24 GPUs", (Cluster(1, 8, RTX_4090), Cluster(4, 4, RTX_2080))),
    Testbed("Testbed 2, 48 GPUs", (Cluster(2, 8, RTX_4090), Cluster(8, 4, RTX_2080))),
)
SMALL = Testbed("6 GPUs", (Cluster(1, 2, RTX_4090), Cluster(2, 2, RTX_2080)))


@dataclass(frozen=True, slots=True)
class TestbedLinks:
    """Seconds and Mb/s between machines, `[from][to]`, the same in both directions."""

    latency_s: tuple[tuple[float, ...], ...]
    mbps: tuple[tuple[float, ...], ...]


def links(testbed: Testbed, seed: int) -> TestbedLinks:
    """Draw the links between machines, each size as likely as any other (log-uniform)."""
    random, clusters = Random(f"links {seed}"), testbed.machines
    count = len(clusters)
    latency_s = [[SAME_S] * count for _ in range(count)]
    mbps = [[SAME_MBPS] * count for _ in range(count)]
    for one in range(count):
        for other in range(one):
            rates, delays = WITHIN if clusters[one] == clusters[other] else BETWEEN
            mbps[one][other] = mbps[other][one] = exp(random.uniform(log(rates[0]), log(rates[1])))
            latency_s[one][other] = latency_s[other][one] = random.uniform(*delays)
    return TestbedLinks(tuple(map(tuple, latency_s)), tuple(map(tuple, mbps)))


def problem(testbed: Testbed, of: TestbedLinks, activation_bytes: float) -> Problem:
    """Return the choice of a GPU for each stage of one pipeline."""
    gpus = testbed.gpus
    latency_s = [[of.latency_s[one][other] for other in gpus] for one in gpus]
    bytes_per_s = [[of.mbps[one][other] * 1e6 / BITS for other in gpus] for one in gpus]
    return Problem(latency_s, bytes_per_s, 1, len(gpus), activation_bytes, [1.0] * len(gpus))
