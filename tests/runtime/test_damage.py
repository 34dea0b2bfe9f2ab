"""A bit that flips in the state of a stage in memory is found before a gradient or an update is made with it."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.sums import TensorSums
from swarmflow.core.protocol.actions import Apply, Seal
from swarmflow.core.protocol.events import Sealed, StateDamaged
from tests.further import more
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.stage_peers import EPOCH, GROUPS, peers
from tests.runtime.test_followed_pieces import MODES, stage_of, step
from tests.runtime.test_kept_stage import sealed

SEAL, APPLY = Seal(EPOCH, 1, GROUPS, GROUPS), Apply(EPOCH, scale=0.01, learning_rate=0.1)


@pytest.mark.parametrize(("sums", "delay"), MODES)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "sgd"])
def test_a_flipped_bit_anywhere_in_the_state_is_found(sums: str, delay: int, optimizer: str) -> None:
    """In what gradients are computed with at once, in the moments as the update comes to them."""
    served = stage_of(manifest(**SUMS[sums], delay=delay, optimizer=optimizer), 1)
    assert served.weights_are_intact(), "nothing is known of it yet"
    for number in range(2):
        assert step(served, number, reduced=True), "nor here, of the first"
    names = [served.name_of(group) for group in served.groups(2)]
    served.hash(served.version)
    assert [served.name_of(group) for group in served.groups(2)] == names, "as a peer that has loaded it names it"
    for name, tensor in served.state_of(served.version)._tensors.items():
        moment = name.partition(".")[2] in served.optimizer.state_names()
        bits = tensor.view(torch.int32)
        for place in (0, tensor.numel() // 2, tensor.numel() - 1):
            for bit in (0, 30):
                bits[place] ^= 1 << bit
                assert served.weights_are_intact() == moment
                bits[place] ^= 1 << bit
    assert served.weights_are_intact()
    assert step(served, 2, reduced=True), "it is the update that has changed it"


@pytest.mark.parametrize(("sums", "delay"), MODES)
@pytest.mark.parametrize("optimizer", ["adamw", *more("lamb", "sgd")])
@pytest.mark.parametrize("bit", [*more(0), 30])
def test_of_a_state_in_which_a_bit_has_flipped_no_version_is_made(
    sums: str, delay: int, optimizer: str, bit: int
) -> None:
    """Also where the update fails of it: then the numbers are the memory's fault, and not the model's."""
    of, damaged = manifest(**SUMS[sums], delay=delay, optimizer=optimizer), []
    for name in stage_of(of, 1).state_of(0)._tensors:
        served = stage_of(of, 1)
        step(served, 0, reduced=True)
        bits = served.state_of(1)._tensors[name].view(torch.int32)
        bits[-1] ^= 1 << bit
        assert not step(served, 1, reduced=True)
        assert served.version == -1
        damaged.append(name)
    assert len(damaged) > 2


def test_an_update_that_fails_by_itself_says_so() -> None:
    served = stage_of(manifest(**SUMS["fp32"], optimizer="adamw"), 1)
    step(served, 0, reduced=True)
    with pytest.raises(NotFiniteError):
        served.update(1, math.inf, 0.1)


@pytest.mark.parametrize("delay", [0, 1])
def test_so_does_one_that_fails_before_it_comes_to_weights_that_stages_share(delay: int) -> None:
    """With a delay these, too, have the parameters of the version before until the update brings them to this one."""
    served = stage_of(manifest(**SUMS["fp32"], delay=delay))
    for number in range(2):
        assert step(served, number, reduced=True)
    served.reduced["own"] = TensorSums(torch.full_like(served.groups(2)["own"].params, 1e30))
    with pytest.raises(NotFiniteError):
        served.update(2, 0.5, 0.01)


@pytest.mark.parametrize(("sums", "delay"), MODES)
def test_a_damaged_state_has_no_root_and_nothing_of_the_damaged_piece_is_given(sums: str, delay: int) -> None:
    served = stage_of(manifest(**SUMS[sums], delay=delay), 1)
    step(served, 0, reduced=True)
    pieces = served.pieces.all()
    with ThreadPoolExecutor(1) as threads:
        assert served.begin_hash(threads).result() is not None
        for name, tensor in served.state_of(1)._tensors.items():
            given = [served.read(piece, 1) for piece in pieces]
            assert given == [served.pieces.read(piece, 1) for piece in pieces]
            tensor.view(torch.int32)[-1] ^= 1
            assert served.begin_hash(threads).result() is None
            damaged = [piece for piece, whole in zip(pieces, given, strict=True) if served.read(piece, 1) != whole]
            assert [served.read(piece, 1) for piece in damaged] == [None]
            assert name.startswith(f"{damaged[0].group}.")
            tensor.view(torch.int32)[-1] ^= 1


@pytest.mark.asyncio
async def test_peers_of_a_stage_whose_states_differ_do_not_agree_on_a_reduced_gradient() -> None:
    async with peers(manifest(**SUMS["blockwise16"])) as (peer,):
        await sealed(peer)
        served = peer.host.served
        assert served is not None
        first = await peer.ask(SEAL)
        assert await peer.ask(SEAL) == first
        served.groups(served.version)["own"].state["exp_avg"].view(torch.int32)[7] ^= 1
        served.hash(served.version)  # as if an update had made it so
        other = await peer.ask(SEAL)
        assert isinstance(first, Sealed)
        assert isinstance(other, Sealed)
        same = {name: (norm, digest) for name, norm, digest in first.results}
        changed = {name for name, norm, digest in other.results if same[name] != (norm, digest)}
        assert changed == {"stage-1"}, "the tied weights and their moments are the same"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("action", "tensor"),
    [(SEAL, "params"), (SEAL, "grid"), (APPLY, "params"), (APPLY, "exp_avg"), (APPLY, "grid")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_no_gradient_is_taken_with_damaged_weights_and_no_update_made_of_a_damaged_state(
    action: Seal | Apply, tensor: str
) -> None:
    async with peers(manifest(**SUMS["blockwise16"])) as (peer,):
        await sealed(peer)
        served = peer.host.served
        assert served is not None
        served.hash(served.version)
        bits = served.groups(served.version)["own"].tensors()[tensor].view(torch.int32)
        bits[0] ^= 1
        assert await peer.ask(action) == StateDamaged(EPOCH)
        assert served.version == (EPOCH.step if action is SEAL else -1), "nobody loads or keeps what is not whole"


@pytest.mark.asyncio
async def test_damaged_moments_void_no_gradient_and_enter_no_version() -> None:
    """What the others of the stage have summed with this peer is right, so they need not begin the step again."""
    async with peers(manifest(**SUMS["blockwise16"])) as (peer,):
        await sealed(peer)
        served = peer.host.served
        assert served is not None
        served.hash(served.version)
        sound = await peer.ask(SEAL)
        served.groups(served.version)["own"].state["exp_avg"].view(torch.int32)[7] ^= 1
        assert await peer.ask(SEAL) == sound
        assert await peer.ask(APPLY) == StateDamaged(EPOCH)
        assert served.version == -1
