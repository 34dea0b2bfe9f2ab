"""What the collectives of ZeRO stage 3 take on the best ring of the machines: arithmetic, nothing is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, permutations

from experiments.dtfm_cases.cases import DtfmCase, Model, scenario

BYTES = 2  # of a parameter, and of a gradient
COLLECTIVES = 3  # of each layer: two all-gathers of its parameters, and one reduce-scatter of its gradients
MBIT_BYTES = 125_000.0


@dataclass(frozen=True, slots=True)
class Zero:
    """The seconds of an iteration. gatherings: how often each worker gathers the model in it."""

    communication_s: float
    compute_s: float
    gatherings: int

    @property
    def overlapped_s(self) -> float:
        """Return what it takes if everything is computed beside the communication."""
        return max(self.communication_s, self.compute_s)

    @property
    def alternating_s(self) -> float:
        """Return what it takes if nothing is."""
        return self.communication_s + self.compute_s


def zero(case: DtfmCase, model: Model, sequences: int) -> Zero:
    """Return what ZeRO-S3 takes with so many sequences of a worker at a time.

    Every worker has all layers and batch / workers sequences, and for each group of `sequences` of them the parameters
    are gathered for the forward pass, and again for the backward pass, whose gradients are reduced and scattered: three
    collectives of a ring a layer (Rajbhandari et al., 2020, section 7: 3 times the parameters).
    """
    of = scenario(case, model, "gpipe", 0).model
    workers = sum(place.machines for place in case.places)
    layer_bytes = 12 * model.hidden**2 * BYTES
    gatherings = max(1, model.batch // workers // sequences)
    collective_s = (workers - 1) * hop_s(case, layer_bytes / workers)
    assert of.backward_flops is not None
    operations = (of.forward_flops + of.backward_flops) * of.stages * model.batch
    flops = scenario(case, model, "gpipe", 0).peers[0].flops
    assert flops is not None
    return Zero(
        gatherings * COLLECTIVES * model.layers * collective_s, operations / workers / flops.at(0.5), gatherings
    )


def hop_s(case: DtfmCase, size_bytes: float) -> float:
    """Return what a step of a ring takes: as long as its slowest link, in the best order of the places."""
    latency_s, mbps = case.links

    def link_s(one: int, other: int) -> float:
        own = [case.places[end].link_mbps or float("inf") for end in (one, other)]
        rate = min(mbps[one][other], *own) or float("inf")
        return latency_s[one][other] + size_bytes / (rate * MBIT_BYTES)

    places = range(len(case.places))
    between = [[link_s(one, other) for other in places] for one in places]
    within_s = max(between[place][place] for place in places if case.places[place].machines > 1)
    orders = ((0, *order, 0) for order in permutations(places[1:]))
    ring_s = min(max(between[one][other] for one, other in pairwise(order)) for order in orders)
    return max(within_s, ring_s)
