"""Values that are not finite between the stages, in a sum, in an update and in a state that is copied."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.compute.codec import codec_named
from swarmflow.core.protocol.actions import Apply, Reset, RunBackward, RunForward, RunLoss, RunReplay, Seal, SumPiece
from swarmflow.core.protocol.events import (
    Applied,
    ComputedNotFinite,
    ComputeFailed,
    ForwardComputed,
    LossComputed,
    PieceReduced,
)
from swarmflow.core.protocol.types import Microbatch
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.state_transfer import copy_stage
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from tests.runtime.manifests import SHAPE, manifest
from tests.runtime.stage_peers import EPOCH, GROUPS, Peer, peers
from tests.runtime.test_copy_keeper import processes, serve, written

pytestmark = pytest.mark.asyncio

CODECS = ["none", "fp16", "blockwise8"]
MODES = ["fp32", "exact"]
FIRST = Microbatch(EPOCH, 0)


def spoil(peer: Peer, value: float = math.nan) -> None:
    """The first parameter of the stage is not what it was."""
    assert peer.host.served is not None
    with torch.no_grad():
        peer.host.served.stage.groups["own"].params[0] = value


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("accumulate", MODES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_what_a_peer_computes_and_is_not_finite_is_not_sent(codec: str, accumulate: str, value: float) -> None:
    of = manifest(codec=codec, accumulate=accumulate)
    async with peers(of, stage=0) as (first,):
        assert isinstance(await first.ask(RunForward(FIRST, first.tokens(0), first.tokens(0))), ForwardComputed)
        spoil(first, value)
        for careful in (False, True):
            first.driver.perform([Reset(careful=careful)])
            event = await first.ask(RunForward(FIRST, first.tokens(0), first.tokens(0)))
            assert isinstance(event, ComputedNotFinite)
            assert (event.epoch, event.index, event.value) == (EPOCH, 0, "activation")
            assert event.layer == ("transformer.wpe" if careful else "")
    async with peers(of) as (last,):
        spoil(last, value)
        event = await last.ask(RunLoss(FIRST, last.hidden(0), last.tokens(0)))
        assert isinstance(event, ComputedNotFinite)
        assert event.value == "loss"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("accumulate", MODES)
async def test_what_comes_and_is_not_finite_is_refused_as_its_senders_mistake(codec: str, accumulate: str) -> None:
    broken = torch.ones(SHAPE)
    broken[1, 7, 31] = math.inf
    wire = codec_named(codec).encode(broken)
    of = manifest(codec=codec, accumulate=accumulate, cut=(1, 2))
    async with peers(of) as (peer,):
        assert isinstance(await peer.ask(RunForward(FIRST, peer.keep(wire), peer.tokens(0))), ComputeFailed)
        assert isinstance(await peer.ask(RunForward(FIRST, peer.hidden(0), peer.tokens(0))), ForwardComputed)
        assert isinstance(await peer.ask(RunBackward(FIRST, peer.keep(wire))), ComputeFailed)
        replay = RunReplay(FIRST, peer.hidden(0), peer.tokens(0), peer.keep(wire), 1)
        assert isinstance(await peer.ask(replay), ComputeFailed)


async def test_a_bf16_number_is_looked_at_after_it_was_rounded() -> None:
    """The largest fp32 numbers are infinite in bf16."""
    async with peers(manifest(codec="none", precision="bf16"), stage=0) as (peer,):
        event: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        peer.host._encode(FIRST, torch.full(SHAPE, 3.4e38), lambda ref: event.set_result(ref), "gradient")  # type: ignore[arg-type, return-value]
        assert await peer.next() == ComputedNotFinite(EPOCH, 0, "gradient")


async def test_who_has_added_up_something_not_finite_says_so_instead_of_a_norm() -> None:
    async with peers(manifest(accumulate="fp32")) as (peer,):
        assert isinstance(await peer.loss(0), LossComputed)
        assert peer.host.served is not None
        stage = peer.host.served.stage
        stage.groups["own"].grads[-1] = math.nan
        failure = await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS))
        assert failure == ComputedNotFinite(EPOCH, -1, "gradient", "transformer.ln_f")


async def test_a_sum_that_is_not_finite_is_named_by_its_first_piece() -> None:
    async with peers(manifest(accumulate="fp32")) as (peer,):
        assert isinstance(await peer.loss(0), LossComputed)
        assert peer.host.served is not None
        elements = peer.host.served.stage.groups["own"].grads.numel()
        part = np.zeros(elements, dtype="<f4")
        part[-1] = math.nan
        action = SumPiece(EPOCH, 1, "stage-1", 0, 0, elements, (None, peer.keep(part.tobytes())))
        assert isinstance(await peer.ask(action), PieceReduced)
        failure = await peer.ask(Seal(EPOCH, 1, GROUPS, ("tied",)))
        assert failure == ComputedNotFinite(EPOCH, -1, "sum", group="stage-1", piece=0)
        assert peer.recorded.events.empty(), "a gradient without a norm is not ready for a commit"


@pytest.mark.parametrize("accumulate", MODES)
async def test_an_update_that_is_not_finite_is_no_version(accumulate: str) -> None:
    async with peers(manifest(accumulate=accumulate)) as (peer,):
        await peer.loss(0)
        await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS))
        event = await peer.ask(Apply(EPOCH, scale=1e30, learning_rate=0.1))
        assert isinstance(event, ComputedNotFinite)
        assert (event.index, event.value) == (-1, "update")
        assert peer.host.served is not None
        assert peer.host.served.version == -1, "nobody is given such a state"
    async with peers(manifest(accumulate=accumulate)) as (peer,):
        await peer.loss(0)
        await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS))
        assert isinstance(await peer.ask(Apply(EPOCH, scale=1.0, learning_rate=0.1)), Applied)


async def test_a_state_that_is_not_finite_is_copied_to_no_disk_and_another_holder_is_asked(tmp_path: Path) -> None:
    of = manifest()
    good = written(of, tmp_path / "good", 8)
    broken = Checkpoint.begin(tmp_path / "broken", 8, of.fingerprint, of.stages)
    elements = state_tensor_lengths(of, 0)
    writer = broken.writer(0, elements)
    for name, count in elements.items():
        values = np.zeros(count, dtype="<f4")
        values[-1] = math.nan
        writer.write(name, 0, values.tobytes())
    broken.add(0, writer)
    async with processes(tmp_path, 3) as (spoilt, sound, trainer):
        serve(spoilt, broken)
        serve(sound, good)
        copy = Checkpoint.begin_copy(tmp_path / "copy", 8, of.fingerprint, of.stages, ())
        requests = trainer.session.requests
        with pytest.raises(NetworkError, match="values that are not finite"):
            await copy_stage(requests, copy, 0, (spoilt.member,), elements)
        assert not copy.has(0)
        await copy_stage(requests, copy, 0, (spoilt.member, sound.member), elements)
        assert copy.root(0) == good.root(0)
