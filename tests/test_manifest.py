"""The manifest of a run as it comes over the network: what is believed of it."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from swarmflow.boundary import Boundary
from swarmflow.compute.codec import tokens_wire_bytes
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import SharedWeights, tied_ends
from swarmflow.errors import IncompatibleError
from swarmflow.manifest import Manifest
from tests.runtime.manifests import manifest

RUN_ID = "0123456789abcdef"


def test_a_manifest_is_the_same_after_its_way() -> None:
    sent = manifest(run_id=RUN_ID, timeouts=Timeouts(silence_s=3.0))
    assert Manifest.decode(sent.encode()) == sent
    assert sent.plan.timeouts.silence_s == 3.0


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("heartbeat_s", -1.0, "timeouts.heartbeat_s = -1: must be above 0"),
        ("late_s", 1e300, r"timeouts.late_s = 1e\+300: must be above 0"),
        ("silence_s", 0.5, "timeouts.silence_s = 0.5: must be above heartbeat_s"),
        ("silence_s", "soon", "does not fit this version"),
    ],
)
def test_timeouts_that_no_run_can_have_are_refused(name: str, value: object, told: str) -> None:
    fields = json.loads(manifest(run_id=RUN_ID).encode())
    fields["timeouts"][name] = value
    with pytest.raises(IncompatibleError, match=told):
        Manifest.decode(json.dumps(fields).encode())


def test_a_run_of_an_earlier_version_keeps_its_name() -> None:
    """Its folders lack what was added since, and are found by the fingerprint of what they have."""
    plain = manifest()
    assert b"empty_places" not in plain.encode()
    assert plain.encode() == msgspec.json.encode(plain, order="sorted").replace(b'"empty_places":false,', b"")
    marked = manifest(empty_places=True)
    assert Manifest.decode(marked.encode()) == marked
    assert marked.fingerprint != plain.fingerprint


def test_less_travels_where_boundaries_are_learnt() -> None:
    whole = manifest(run_id=RUN_ID)
    compressed = manifest(run_id=RUN_ID, boundary=Boundary("maxout", 4))
    assert Manifest.decode(compressed.encode()) == compressed
    assert compressed.boundary_width * 4 == whole.boundary_width == whole.hidden_size
    assert compressed.plan.boundary_bytes * 4 == whole.plan.boundary_bytes
    assert compressed.tensor_bytes_max < whole.tensor_bytes_max


def test_frozen_weights_are_computed_with_four_operations_a_token_and_trained_ones_with_six() -> None:
    whole = manifest(computed_parameters=(1000, 3000), microbatch_sequences=2)
    tokens = whole.seq_len * whole.microbatch_sequences
    assert sum(whole.gigaflops) == pytest.approx(6e-9 * tokens * 4000)
    adapted = replace(whole, parameters=(10, 30), base=("0" * 64, "1" * 64))
    assert sum(adapted.gigaflops) == pytest.approx(tokens * (4e-9 * 3960 + 6e-9 * 40))


def test_a_frame_holds_the_positions_of_documents_however_narrow_the_boundary_is() -> None:
    narrow = manifest(run_id=RUN_ID, boundary=Boundary("bottleneck", 1), positions=True, microbatch_sequences=64)
    narrow = replace(narrow, seq_len=4096)
    assert tokens_wire_bytes((narrow.microbatch_sequences, 2, narrow.seq_len)) < narrow.tensor_bytes_max


@pytest.mark.parametrize(
    ("kind", "number", "told"),
    [("bottleneck", 32, "impossible boundary"), ("maxout", 0, "impossible boundary"), ("sum", 2, "does not fit")],
)
def test_a_boundary_that_no_model_of_this_size_can_have_is_refused(kind: str, number: int, told: str) -> None:
    fields = json.loads(manifest(run_id=RUN_ID).encode())
    fields["boundary"] = {"kind": kind, "number": number}
    with pytest.raises(IncompatibleError, match=told):
        Manifest.decode(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("roots", "told"), [(["0" * 64], "each stage"), (["0" * 64, "../" + 61 * "0"], "impossible name")]
)
def test_frozen_weights_are_named_by_a_hash_for_each_stage(roots: list[str], told: str) -> None:
    fields = json.loads(manifest(run_id=RUN_ID).encode())
    fields["base"] = roots
    with pytest.raises(IncompatibleError, match=told):
        Manifest.decode(json.dumps(fields).encode())


@pytest.mark.parametrize(("group", "stages"), [("shared-0", [0, 9]), ("shared-0", [1]), ("stage-0", [0, 1])])
def test_weights_that_no_stages_can_share_are_refused(group: str, stages: list[int]) -> None:
    whole = manifest(run_id=RUN_ID, shared=(SharedWeights("shared-0", (0, 1)),))
    assert Manifest.decode(whole.encode()).plan.shared == (*whole.shared, *tied_ends(whole.stages))
    fields = json.loads(whole.encode())
    fields["shared"] = [[group, stages]]
    with pytest.raises(IncompatibleError, match="weights that no stages can share"):
        Manifest.decode(json.dumps(fields).encode())
