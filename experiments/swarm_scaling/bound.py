"""The least time that a step of like peers can take, with the stages in sequence and whole microbatches."""

from __future__ import annotations

from math import ceil

from swarmflow.simulator.scenario import Scenario

BYTES_PER_MBIT = 125_000.0


def served(peers: int, stages: int) -> list[int]:
    """The peers of each stage."""
    return [peers // stages + (stage < peers % stages) for stage in range(stages)]


def step_bound_s(scene: Scenario) -> float:
    """Return the seconds until the last peer has nothing left to compute, whoever computes what, by mean times.

    Stages of fewer peers come first: fill and drain rise with the stage, so no other order ends sooner. Of some peer of
    a stage at least the mean number of microbatches is asked, rounded up. Before it begins the first one has passed the
    stages before, and after its last one the gradient passes them: whole backward passes at the first stage, and before
    the others that part of them which the gradient of the input takes.
    """
    group, model = scene.peers[0], scene.model
    assert group.forward_s is not None
    assert group.backward_s is not None
    assert group.up_mbps is not None
    forward_s, backward_s = group.forward_s.at(0.5), group.backward_s.at(0.5)
    tensor_s = model.activation_bytes / model.codec_ratio / (group.up_mbps.at(0.0) * BYTES_PER_MBIT)
    early_s = backward_s - min(forward_s, backward_s / 2)
    longest_s = 0.0
    for stage, peers in enumerate(sorted(served(group.count, model.stages))):
        fill_s = stage * (forward_s + tensor_s)
        drain_s = stage * tensor_s + (backward_s + (stage - 1) * early_s if stage else 0.0)
        most = ceil(model.microbatches / peers)
        longest_s = max(longest_s, fill_s + most * (forward_s + backward_s) + drain_s)
    return longest_s
