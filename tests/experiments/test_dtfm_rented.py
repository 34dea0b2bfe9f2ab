"""DT-FM's rented machines: what the paper says of them and of the models, and shares of the peak that are possible."""

from __future__ import annotations

from collections import Counter

import pytest

from experiments.dtfm_cases.cases import RENTED, Model, scenario
from experiments.dtfm_rented.__main__ import MODELS, PAPER, PEAK, PFLOPS, RUNTIME, rows

NAMED = {"GPT3-1.3B": 1.3e9, "GPT3-6.7B": 6.7e9, "GPT3-13B": 13e9}


def test_32_machines_are_in_two_places() -> None:
    found = scenario(RENTED, MODELS["GPT3-6.7B"], "swarmflow", 0)
    assert Counter(peer.region[0] for peer in found.peers) == {"US Mid": 16, "US East": 16}
    assert {peer.flops.at(0.5) for peer in found.peers if peer.flops is not None} == {149.7e12 / 2}
    latency_s, mbps = RENTED.links
    assert latency_s[0][1] == latency_s[1][0] == 0.0218
    assert mbps[0][1] == mbps[1][0] == (3870 + 3730) / 2, "symmetrised"


@pytest.mark.parametrize("name", ["GPT3-6.7B", "GPT3-13B"])
def test_models_are_as_large_as_their_names_say(name: str) -> None:
    model = scenario(RENTED, MODELS[name], "gpipe", 0).model
    parameters = model.parameters
    assert isinstance(parameters, int), "alike on each stage"
    # Half of the gradients' numbers, which have 16 bits; the embeddings are left out.
    assert 2 * parameters * model.stages == pytest.approx(NAMED[name], rel=0.05)


def test_a_share_of_the_peak_is_of_what_machines_can_compute() -> None:
    small = Model(32, 16, hidden=4096)
    found = {(row.policy, row.metric): row for row in rows(RENTED.thinned(4), {"GPT3-6.7B": small}, 0)}
    peak = 8 * 149.7e12 / 1e15
    for policy in ("swarmflow", "swarm", "gpipe", "dtfm"):
        share = found[policy, PEAK].mean
        assert share == pytest.approx(100 * found[policy, PFLOPS].mean / peak)
        assert 0 < share < 100 * 0.5 * 3 / 4, "half of the peak, a quarter of which repeats forward passes"
        assert found[policy, RUNTIME].mean > 0
        assert found[policy, PEAK].paper is None, "a smaller one than the paper's"
    assert set(PAPER) == set(MODELS) == set(NAMED)
