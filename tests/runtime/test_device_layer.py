"""Passes on a device that computes beside the host: no thread waits for it, and no bit differs from one that waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import NoReturn, TypeVar

import pytest
import torch

from swarmflow.compute import queued_wide_sums
from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.codec import CODECS, Codec, codec_named
from swarmflow.compute.device_layer import DeviceLayer, HostLayer, QueuedLayer, StreamName
from swarmflow.compute.device_work import DeviceWork
from swarmflow.compute.exact import ExponentOverflowError
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.grid import Blockwise, Grid
from swarmflow.compute.topk import TopKCodec
from swarmflow.core.protocol.actions import RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ComputedNotFinite,
    ComputeFailed,
    Event,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Overflowed,
    Replayed,
)
from swarmflow.core.protocol.types import Epoch, Microbatch
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution import stage_host
from swarmflow.runtime.execution.worker import Worker
from tests.compute.models import config_of
from tests.further import more
from tests.runtime.fake_device import (
    DEVICE,
    BlockingError,
    DeviceTensor,
    FakeDevice,
    FakeStreams,
    WaitingWorker,
    WatchedWorker,
    on_host,
    watched,
)
from tests.runtime.manifests import SHAPE, SUMS, manifest
from tests.runtime.nodes import DEADLINE_S
from tests.runtime.stage_peers import EPOCH, Peer, peers

X = TypeVar("X")

CODEC_NAMES = (*CODECS, "adatopk")
SPLIT_MIN_S = 60.0  # no pass takes as long, however busy this machine is


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """The codecs' tables are on the device, as after `StageHost.warm_up`."""
    with FakeDevice():
        codec_named("blockwise8").encode(DeviceTensor(torch.zeros(1, 1)))


@pytest.fixture(autouse=True)
def one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is split only where the device itself takes long."""
    monkeypatch.setattr(stage_host, "SPLIT_MIN_S", SPLIT_MIN_S)


async def _passes(of: Manifest, stage: int, layer: DeviceLayer, worker: type[Worker]) -> list[bytes | float]:
    """What three microbatches give, all that they send and the bits of what they add up to."""
    found: list[bytes | float] = []
    with FakeDevice():
        async with peers(of, stage=stage, layer=layer, worker=worker) as [peer]:
            with watched() if worker is WatchedWorker else nullcontext():
                for index in range(3):
                    found += await _microbatch(peer, index, stage)
            assert peer.host.served is not None
            sums = [group.sums for group in peer.host.served.stage.groups.values()]
            found += [_bytes(each.gradient()[0 : each.elements]) for each in sums]
    return found


def _bytes(tensor: torch.Tensor) -> bytes:
    return on_host(tensor).contiguous().numpy().tobytes()


async def _microbatch(peer: Peer, index: int, stage: int) -> list[bytes | float]:
    at = Microbatch(EPOCH, index)
    if stage == 1:
        done = await peer.ask(RunLoss(at, peer.hidden(index), peer.tokens(index)))
        assert isinstance(done, LossComputed)
        assert done.gradient is not None
        again = RunReplay(at, peer.hidden(index), peer.tokens(index), None, 1)
        repeated = await peer.ask(again)
        assert isinstance(repeated, Replayed)
        assert repeated.gradient is not None
        found = [peer.driver.store.get(ref) for ref in (done.gradient, repeated.gradient)]
        return [done.loss_sum, *(bytes(each) for each in found)]
    sent = await peer.ask(RunForward(at, peer.tokens(index), peer.tokens(index)))
    assert isinstance(sent, ForwardComputed)
    assert isinstance(await peer.ask(RunBackward(at, peer.hidden(10 + index))), BackwardComputed)
    return [bytes(peer.driver.store.get(sent.output))]


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("sums", SUMS)
async def test_no_pass_waits_for_the_device(sums: str, stage: int) -> None:
    of = manifest(**SUMS[sums])
    waiting = await _passes(of, stage, HostLayer(DEVICE), WaitingWorker)
    assert await _passes(of, stage, QueuedLayer(FakeStreams()), WatchedWorker) == waiting


@pytest.mark.asyncio
@pytest.mark.parametrize("codec", CODEC_NAMES)
async def test_no_codec_waits_for_the_device(codec: str) -> None:
    of = manifest(codec=codec, **SUMS["fp32"])
    waiting = await _passes(of, 1, HostLayer(DEVICE), WaitingWorker)
    assert await _passes(of, 1, QueuedLayer(FakeStreams()), WatchedWorker) == waiting


@pytest.mark.asyncio
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", *more("qwen2")])
async def test_no_family_waits_for_the_device(family: str, stage: int) -> None:
    of = manifest(model=config_of(family), **SUMS["fp32"])
    waiting = await _passes(of, stage, HostLayer(DEVICE), WaitingWorker)
    assert await _passes(of, stage, QueuedLayer(FakeStreams()), WatchedWorker) == waiting


@pytest.mark.asyncio
async def test_a_gradient_overtakes_the_activations_of_a_later_step_that_are_queued() -> None:
    streams = FakeStreams()
    async with _peer(manifest(**SUMS["fp32"]), 0, streams) as peer:
        await _forward(peer, 0)
        streams.held = True
        later = Epoch(EPOCH.generation, EPOCH.step + 1)
        tokens = peer.tokens(1)
        peer.driver.perform([RunForward(Microbatch(later, index), tokens, tokens) for index in range(5)])
        await _until(lambda: peer.compute.waiting == 3)
        await asyncio.to_thread(streams.wait_for_launches, 2)
        peer.driver.perform([RunBackward(Microbatch(EPOCH, 0), peer.hidden(0))])
        await _until(lambda: peer.compute.waiting == 4)
        order = []
        for left in range(6, 0, -1):
            await asyncio.to_thread(streams.wait_for_launches, min(2, left))
            streams.fire()
            order.append(type(await peer.next()))
        assert order == [ForwardComputed, ForwardComputed, BackwardComputed, *3 * [ForwardComputed]]
        assert streams.launched_max == 2


@pytest.mark.asyncio
async def test_a_pass_is_reported_when_its_event_fires_and_takes_the_time_of_the_device() -> None:
    streams = FakeStreams(pass_s=0.25)
    async with _peer(manifest(**SUMS["fp32"]), 0, streams) as peer:
        streams.held = True
        tokens = peer.tokens(0)
        peer.driver.perform([RunForward(Microbatch(EPOCH, 0), tokens, tokens)])
        await asyncio.to_thread(streams.wait_for_launches, 1)
        assert peer.compute.working
        assert peer.recorded.events.empty()
        streams.fire()
        assert isinstance(await peer.next(), ForwardComputed)
        assert not peer.compute.working
        assert peer.driver.metrics.compute_seconds.at("forward")._value.get() == 0.25


@pytest.mark.asyncio
async def test_passes_that_take_the_device_long_are_split() -> None:
    async with _peer(manifest(**SUMS["exact"]), 1, FakeStreams(pass_s=2 * SPLIT_MIN_S)) as peer:
        assert isinstance(await peer.loss(0), LossComputed)
        assert isinstance(await peer.loss(1), InputGradientComputed)
        assert isinstance(await peer.next(), LossComputed)


@pytest.mark.asyncio
async def test_pinned_buffers_are_used_again() -> None:
    streams = FakeStreams()
    async with _peer(manifest(**SUMS["fp32"]), 1, streams) as peer:
        await peer.loss(0)
        pinned_bytes = streams.pinned_bytes
        for index in range(1, 4):
            await peer.loss(index)
        assert 0 < streams.pinned_bytes == pinned_bytes


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sums", "largest", "expected"),
    [
        ("exact", 1e6, Overflowed(Microbatch(EPOCH, 0))),
        ("exact", 3e38, ComputedNotFinite(EPOCH, 0, "gradient")),
        ("blockwise16", 3e38, ComputedNotFinite(EPOCH, 0, "gradient")),
    ],
)
async def test_a_gradient_that_does_not_fit_is_found_when_the_pass_is_done(
    sums: str, largest: float, expected: Event
) -> None:
    async with _peer(manifest(codec="none", **SUMS[sums]), 0, FakeStreams()) as peer:
        await _forward(peer, 0)
        gradient = torch.full(SHAPE, largest)
        assert (
            await peer.ask(RunBackward(Microbatch(EPOCH, 0), peer.keep(codec_named("none").encode(gradient))))
            == expected
        )
        assert peer.host.served is not None
        added = [group.sums for group in peer.host.served.stage.groups.values()]
    for each in added:
        if sums == "exact":
            assert not bool(on_host(each.gradient()[0 : each.elements]).any()), "nothing of it was added"
        else:
            assert math.isnan(each.sum_of_squares()), "the sums are void"


@pytest.mark.asyncio
async def test_a_loss_that_is_not_finite_is_found_when_the_pass_is_done() -> None:
    async with _peer(manifest(**SUMS["fp32"]), 1, FakeStreams()) as peer:
        assert peer.host.served is not None
        for group in peer.host.served.stage.groups.values():
            on_host(group.params).fill_(math.nan)
        assert await peer.loss(0) == ComputedNotFinite(EPOCH, 0, "loss")


@pytest.mark.asyncio
async def test_a_tensor_that_is_not_finite_is_refused_before_it_is_computed_with() -> None:
    async with _peer(manifest(codec="none", **SUMS["fp32"]), 1, FakeStreams()) as peer:
        hidden = peer.keep(codec_named("none").encode(torch.full(SHAPE, math.inf)))
        refused = await peer.ask(RunLoss(Microbatch(EPOCH, 0), hidden, peer.tokens(0)))
        assert refused == ComputeFailed(Microbatch(EPOCH, 0), "a tensor with a value that is not finite came")


@pytest.mark.asyncio
async def test_an_error_of_a_launch_ends_the_peer_and_leaves_the_thread_free() -> None:
    async with _peer(manifest(**SUMS["fp32"]), 0, FakeStreams()) as peer:
        for _ in range(3):  # more than may be ahead of the device
            with pytest.raises(KeyError):
                await peer.ask(RunBackward(Microbatch(EPOCH, 0), peer.hidden(0)))
        await _forward(peer, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codec", [*CODECS.values(), TopKCodec(64)], ids=lambda codec: codec.name)
def test_a_device_encodes_and_decodes_what_the_cpu_does(codec: Codec, dtype: torch.dtype) -> None:
    values = torch.randn(3, 7, 300, generator=torch.Generator().manual_seed(0)).mul(3e4).to(dtype)
    layer, wire = QueuedLayer(FakeStreams()), codec.encode(values)
    with FakeDevice(), watched():
        tensor = DeviceTensor(values)
        encoded = layer.run(
            StreamName.COPY_OUT, lambda work: codec.begin_encode(tensor, work), _value, _raised
        ).settle()
        decoded = layer.run(
            StreamName.COPY_IN, lambda work: codec.decode(wire, values.shape, dtype, work=work), _value, _raised
        ).settle()
    assert encoded.wire == wire
    assert torch.equal(on_host(decoded), codec.decode(wire, values.shape, dtype))
    values[1, 2, 3] = math.nan
    with FakeDevice(), watched():
        broken = DeviceTensor(values)
        spoilt = layer.run(StreamName.COPY_OUT, lambda work: codec.begin_encode(broken, work), _value, _raised).settle()
    assert spoilt.wire is None


def test_wide_blocks_are_added_without_knowing_how_many_there_are() -> None:
    generator, parts = torch.Generator().manual_seed(0), []
    for _ in range(4):
        part = torch.randn(40 * BLOCK_ELEMENTS, generator=generator).mul_(1e-3)
        part[BLOCK_ELEMENTS * torch.randint(40, (6,), generator=generator)] = 50.0
        parts.append(part)
    expected, found = _sums(torch.device("cpu")), _sums(DEVICE)
    layer = QueuedLayer(FakeStreams())
    for number, part in enumerate(parts):
        expected.add(part, 1, number)
        _add(found, part, 1, number, layer)
    expected.add(parts[0], -1, 0)
    _add(found, parts[0], -1, 0, layer)
    assert torch.equal(on_host(found[:]), expected[:])
    with pytest.raises(NotFiniteError):
        _add(found, torch.full((BLOCK_ELEMENTS,), math.inf), 1, 9, layer)


def test_where_wide_blocks_have_no_room_the_step_is_tried_again_and_reads_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queued_wide_sums, "_ROOM_MIN", 3)
    part = torch.full((40 * BLOCK_ELEMENTS,), 50.0)
    found, layer = _sums(DEVICE), QueuedLayer(FakeStreams())
    with pytest.raises(ExponentOverflowError) as error:
        _add(found, part, 1, 0, layer)
    assert error.value.finite
    assert math.isnan(found.sum_of_squares())
    with FakeDevice():
        found.zero()
    _add(found, part, 1, 0, layer)
    expected = _sums(torch.device("cpu"))
    expected.add(part, 1, 0)
    assert torch.equal(on_host(found[:]), expected[:])


def test_room_for_wide_blocks_grows_when_the_host_learns_that_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued_wide_sums, "_ROOM_MIN", 3)
    found, expected, layer = _sums(DEVICE), _sums(torch.device("cpu")), QueuedLayer(FakeStreams())
    for block in range(0, 40, 2):
        part = torch.zeros(40 * BLOCK_ELEMENTS)
        part[block * BLOCK_ELEMENTS :][: 2 * BLOCK_ELEMENTS] = 50.0
        expected.add(part, 1, block)
        _add(found, part, 1, block, layer)
    assert torch.equal(on_host(found[:]), expected[:])


def test_the_fake_device_notices_who_waits() -> None:
    with FakeDevice(), watched():
        tensor = torch.ones(3, device=DEVICE)
        for wait in (
            lambda: float(tensor.sum()),
            lambda: tensor.tolist(),
            lambda: tensor.cpu(),
            lambda: bool(tensor.any()),
            lambda: tensor[tensor > 0],
            lambda: tensor.nonzero(),
            lambda: torch.ones(3).to(DEVICE),
        ):
            with pytest.raises(BlockingError):
                wait()


@asynccontextmanager
async def _peer(of: Manifest, stage: int, streams: FakeStreams) -> AsyncIterator[Peer]:
    """A peer whose threads may not wait for its device."""
    with FakeDevice():
        async with peers(of, stage=stage, layer=QueuedLayer(streams), worker=WatchedWorker) as [peer]:
            yield peer


async def _forward(peer: Peer, index: int) -> None:
    tokens = peer.tokens(index)
    assert isinstance(await peer.ask(RunForward(Microbatch(EPOCH, index), tokens, tokens)), ForwardComputed)


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not reached():
            await asyncio.sleep(0)


def _sums(device: torch.device) -> BlockwiseSums:
    with FakeDevice():
        grid = Grid.empty(40 * BLOCK_ELEMENTS, Blockwise(4), 4, device)
        grid.follow(torch.full((40,), 1e-2, device=device), 0)
        return BlockwiseSums(grid, 40 * BLOCK_ELEMENTS)


def _add(sums: BlockwiseSums, gradient: torch.Tensor, weight: int, number: int, layer: QueuedLayer) -> None:
    """Add a microbatch's gradient, as a pass does."""

    def body(work: DeviceWork) -> None:
        reader = sums.queued.reader(work)
        sums.add(DeviceTensor(gradient.clone()), weight, number, 0, reader)
        sums.queued.judge(reader)

    with FakeDevice(), nullcontext() if sums.queued.reads_at_once else watched():
        layer.run(StreamName.COMPUTE, body, _value, _raised).settle()


def _value(value: X, seconds: float) -> X:
    return value


def _raised(error: Exception) -> NoReturn:
    raise error
