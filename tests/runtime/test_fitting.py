"""What fits into the memory that a peer may use: stage, microbatches, journal; and how a stage is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from peers.building import build
from peers.fitting import MemoryBudget, MicrobatchMemory, NoMemoryError
from swarmflow.compute.demands import measure_activations, stage_demands, stage_memory
from swarmflow.errors import ConfigError
from swarmflow.files import readable_size
from swarmflow.manifest import Manifest
from swarmflow.peer_memory import JOURNAL_BYTES, limit_for
from tests.runtime.manifests import manifest

OF = manifest(microbatches=64)
CPU = torch.device("cpu")
BASE, MB = 300_000_000, 1_000_000
ONE = 50 * MB
KEPT = MicrobatchMemory.kept(ONE)
IMPORTED = 200 * MB  # that is set aside for what comes with the first stage
STAGE = stage_memory(OF, 1).device_bytes


def budget(limit_bytes: int | None, capacity: int | None = None, journal_bytes: int | None = 100 * MB) -> MemoryBudget:
    made = MemoryBudget(CPU, limit_bytes, capacity, journal_bytes, lambda: BASE)
    made.begin()
    return made


def test_a_stages_memory_is_what_check_tells_of_it() -> None:
    demands = stage_demands(OF, measure_activations(OF.model, OF.precision, OF.dropout))
    assert [stage_memory(OF, stage).device_bytes for stage in range(OF.stages)] == [of.memory_bytes for of in demands]


@pytest.mark.parametrize(("room", "fits"), [(3 * ONE, 1), (4 * ONE - 1, 1), (4 * ONE, 2), (6 * ONE, 4), (99 * ONE, 6)])
def test_the_limit_gives_the_capacity(room: int, fits: int) -> None:
    """Two more than are held need room, for the pass that runs and for gradients that wait; six fill two stages."""
    made = budget(BASE + IMPORTED + 100 * MB + STAGE + room)
    made.check_stage(OF, 1)
    assert made.fitting(OF, 1, KEPT) == fits


def test_without_a_limit_the_free_memory_gives_it() -> None:
    assert budget(None).fitting(OF, 1, KEPT) >= 1
    assert budget(None, capacity=5).fitting(OF, 1, MicrobatchMemory.kept(1 << 60)) == 5
    assert budget(None).fitting(OF, 1, MicrobatchMemory.kept(1 << 60)) == 1


def test_a_stage_that_cannot_fit_is_refused_before_it_is_built() -> None:
    limit = BASE + IMPORTED + 100 * MB + STAGE
    with pytest.raises(ConfigError) as refused:
        budget(limit).check_stage(OF, 1)
    line = str(refused.value)
    assert line.startswith("--memory-limit 600.")
    assert "stage 1 needs more than 600." in line
    assert "500.0 MB for the process" not in line
    assert "600.0 MB for the process with 100.0 MB for repairs (--journal-bytes-max)" in line
    assert "raise the limit, or serve a smaller stage" in line


def test_the_limit_that_a_refusal_names_is_enough() -> None:
    """What is kept for repairs is a share of the limit, and grows with it."""
    enough = limit_for(BASE + IMPORTED + STAGE)
    with pytest.raises(NoMemoryError, match=f"needs more than {readable_size(enough, up=True)}"):
        budget(enough // 2, journal_bytes=None).check_stage(OF, 1)
    with pytest.raises(NoMemoryError):
        budget(enough - 1, journal_bytes=None).check_stage(OF, 1)
    budget(enough + 8, journal_bytes=None).check_stage(OF, 1)


def test_a_peer_says_which_stages_have_no_room() -> None:
    sizes = {stage: stage_memory(OF, stage).device_bytes for stage in range(OF.stages)}
    small, large = sorted(sizes, key=lambda stage: sizes[stage])
    assert sizes[small] < sizes[large]
    least = BASE + IMPORTED + 100 * MB + sizes[small]
    assert budget(None).unfit(OF) == ()
    assert budget(BASE + IMPORTED + 100 * MB + sizes[large] + 1).unfit(OF) == ()
    assert budget(least + 1).unfit(OF) == (large,)
    with pytest.raises(NoMemoryError, match=f"stage {small} needs more than"):
        budget(least).unfit(OF)


def test_without_a_limit_a_stage_that_is_larger_than_what_is_free_is_refused() -> None:
    """The kernel would end the process as it loads, or another program."""
    sizes = {stage: stage_memory(OF, stage).device_bytes for stage in range(OF.stages)}
    small, large = sorted(sizes, key=lambda stage: sizes[stage])

    def of_machine(free_bytes: int) -> MemoryBudget:
        return MemoryBudget(CPU, free_bytes=lambda device: free_bytes)

    roomy, narrow, none = map(of_machine, (sizes[large] + 1, sizes[large], sizes[small]))
    assert roomy.unfit(OF) == (), "the bound for repairs is no memory that is taken"
    assert narrow.unfit(OF) == (large,)
    narrow.check_stage(OF, small)
    with pytest.raises(
        NoMemoryError, match=rf"^this machine has .* free: stage {large} needs more than .*serve a small"
    ):
        narrow.check_stage(OF, large)
    with pytest.raises(NoMemoryError, match="this machine has"):
        none.unfit(OF)


def test_a_stage_beside_which_no_microbatch_had_room_is_not_asked_for_again() -> None:
    made = budget(BASE + IMPORTED + 100 * MB + max(STAGE, stage_memory(OF, 0).device_bytes) + ONE)
    with pytest.raises(NoMemoryError) as refused:
        made.check_microbatches(OF, 1, KEPT)
    made.full.add((OF.fingerprint, refused.value.stage))
    assert made.unfit(OF) == (1,)
    assert made.has_room(OF)
    assert made.unfit(replace(OF, cuts=1)) == (), "by another cut it may have room"
    made.full.add((OF.fingerprint, 0))
    assert not made.has_room(OF)


def test_without_a_limit_too_a_stage_that_had_no_room_is_not_asked_for_again() -> None:
    made = budget(None)
    made.full.add((OF.fingerprint, 1))
    assert made.unfit(OF) == (1,)
    made.full.add((OF.fingerprint, 0))
    with pytest.raises(NoMemoryError, match="no stage of this run has room"):
        made.unfit(OF)


@pytest.mark.parametrize(("capacity", "what"), [(None, "a microbatch"), (8, "8 microbatches (--capacity)")])
def test_a_limit_without_room_for_what_is_asked_is_refused(capacity: int | None, what: str) -> None:
    room = ((capacity or 1) + 2) * ONE
    limit = BASE + IMPORTED + 100 * MB + STAGE + room
    assert budget(limit, capacity).fitting(OF, 1, KEPT) >= (capacity or 1)
    with pytest.raises(ConfigError, match="stage 1 needs ") as refused:
        budget(limit - 1, capacity).fitting(OF, 1, KEPT)
    assert what in str(refused.value)


def test_the_journal_is_part_of_the_limit_and_smaller_with_it() -> None:
    assert budget(None, journal_bytes=None).journal_bytes == JOURNAL_BYTES
    assert budget(4_000 * MB, journal_bytes=None).journal_bytes == 500 * MB
    assert budget(64_000 * MB, journal_bytes=None).journal_bytes == JOURNAL_BYTES
    assert budget(4_000 * MB, journal_bytes=0).journal_bytes == 0


def test_what_the_process_used_at_its_start_counts_in_each_life() -> None:
    used = [BASE, 10 * BASE]
    made = MemoryBudget(CPU, BASE + IMPORTED + STAGE + 4 * ONE, None, 0, lambda: used.pop(0))
    made.begin()
    assert made.fitting(OF, 1, KEPT) == 2
    assert made.fitting(OF, 1, KEPT) == 2
    assert used == [10 * BASE]


def built(budget: MemoryBudget, of: Manifest = OF) -> tuple[bool, MicrobatchMemory]:
    """Whether stage 1 is built to compute its blocks again, and the memory of its microbatches."""
    served, one = build(of, budget, 1)
    return served.stage.block_recompute.on, one


def test_blocks_are_computed_again_where_too_few_microbatches_fit() -> None:
    again, kept = built(MemoryBudget(CPU))
    assert not again, "there is memory enough"
    assert kept == MicrobatchMemory.kept(kept.held_bytes)
    again, inputs = built(MemoryBudget(CPU, activations="recompute"))
    assert again
    assert inputs.held_bytes < kept.held_bytes / 4
    a_block = inputs.passes_bytes - inputs.held_bytes
    assert (kept.held_bytes - inputs.held_bytes) / 2 <= a_block < 0.75 * kept.held_bytes, "two are on the stage"
    wanted = 2 * OF.stages + 2
    enough = BASE + IMPORTED + STAGE + wanted * kept.held_bytes + kept.passes_bytes
    for limit, activations, expected in (
        (enough, "auto", False),
        (enough - 1, "auto", True),
        (enough - 1, "keep", False),
        (enough, "recompute", True),
    ):
        made = MemoryBudget(CPU, limit, None, 0, lambda: BASE, activations=activations)
        again, one = built(made)
        assert again is expected, (limit, activations)
        assert made.fitting(OF, 1, one) == (wanted if activations != "keep" else wanted - 1)
    few = BASE + IMPORTED + STAGE + 2 * kept.held_bytes + kept.passes_bytes
    assert built(MemoryBudget(CPU, few, 2, 0, lambda: BASE))[0] is False, "--capacity is what it should hold"
    assert built(MemoryBudget(CPU, few - 1, 2, 0, lambda: BASE))[0] is True
