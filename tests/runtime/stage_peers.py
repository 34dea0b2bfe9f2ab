"""Peers of one stage in the hands of real drivers and real threads, with machines that decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch

from swarmflow.compute.blocks import alignment
from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.codec import encode_tokens
from swarmflow.compute.device_layer import DeviceLayer, HostLayer
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.topk import codec_of
from swarmflow.compute.weights import init_stage
from swarmflow.core.protocol.actions import Action, Reset, RunLoss
from swarmflow.core.protocol.events import Event, Tick
from swarmflow.core.protocol.messages.checks import MessageChecks, checks_of
from swarmflow.core.protocol.types import RUN_ELEMENTS, Epoch, Microbatch, Plan, ProcessId, Ref
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.stage_host import StageHost
from swarmflow.runtime.execution.store import Store
from swarmflow.runtime.execution.worker import Worker
from tests.compute.models import VOCAB
from tests.runtime.manifests import SHAPE
from tests.runtime.nodes import DEADLINE_S

EPOCH = Epoch(0, 3)
GROUPS = ("stage-1", "tied")


@dataclass
class RecordedEvents:
    """The machine in a driver's hands: it decides nothing and keeps what it is told."""

    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    checks: MessageChecks = field(default_factory=lambda: checks_of(Plan(stages=3, microbatches=4)))

    def handle(self, event: Event, now: float) -> list[Action]:
        if not isinstance(event, Tick):
            self.events.put_nowait(event)
        return []

    def next_deadline(self) -> float:
        return asyncio.get_running_loop().time() + 10 * DEADLINE_S


@dataclass
class Peer:
    """A stage in the hands of a real driver and real threads."""

    me: ProcessId
    of: Manifest
    host: StageHost
    driver: Driver
    recorded: RecordedEvents
    failures: asyncio.Queue[BaseException]
    compute: Worker

    async def next(self) -> Event:
        """What the machine is told next; an error of a thread is raised."""
        event, failure = asyncio.ensure_future(self.recorded.events.get()), asyncio.ensure_future(self.failures.get())
        try:
            await asyncio.wait({event, failure}, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                raise failure.result()
            assert event.done(), "the machine is told nothing"
            return event.result()
        finally:
            event.cancel()
            failure.cancel()

    async def ask(self, action: Action) -> Event:
        """Does the action; the event that answers."""
        self.driver.perform([action])
        return await self.next()

    def keep(self, data: bytes | memoryview) -> Ref:
        """As bytes from the network are kept: a part of a frame, at any address."""
        return self.driver.store.add(memoryview(bytearray(b"\0" + bytes(data)))[1:])

    def hidden(self, index: int) -> Ref:
        """The activation, or gradient, that the microbatch brings."""
        values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(index))
        dtype = torch.bfloat16 if self.of.precision == "bf16" else torch.float32
        return self.keep(codec_of(self.of.codec, RUN_ELEMENTS).encode(values.to(dtype)))

    def tokens(self, index: int) -> Ref:
        values = torch.randint(VOCAB, SHAPE[:2], generator=torch.Generator().manual_seed(index))
        return self.keep(encode_tokens(values.int().numpy()))

    async def loss(self, index: int) -> Event:
        return await self.ask(RunLoss(Microbatch(EPOCH, index), self.hidden(index), self.tokens(index)))


@asynccontextmanager
async def peers(
    of: Manifest, count: int = 1, stage: int = 1, layer: DeviceLayer | None = None, worker: type[Worker] = Worker
) -> AsyncIterator[list[Peer]]:
    """`count` peers of one stage at one version. layer: of its device. worker: their threads."""
    made = [_peer(ProcessId(f"p{number}", 1), of, stage, layer or HostLayer(), worker) for number in range(count)]
    try:
        yield [peer for peer, _ in made]
        assert all(peer.failures.empty() for peer, _ in made)
    finally:
        for peer, workers in made:
            peer.driver.halt()
            for each in workers:
                each.stop()


def _peer(
    me: ProcessId, of: Manifest, number: int, layer: DeviceLayer, worker: type[Worker]
) -> tuple[Peer, list[Worker]]:
    failures: asyncio.Queue[BaseException] = asyncio.Queue()
    workers = [worker(name, failures.put_nowait) for name in ("compute", "codec")]
    driver = Driver(me, Store(), Metrics(), {}, failures.put_nowait, lambda body: None)
    host = StageHost(of, driver, workers[0], workers[1], layer)
    driver.add_effects(host.effects())
    recorded = RecordedEvents()
    driver.run(recorded, [])
    rounding = rounding_of(of.accumulate, of.reduce_codec, of.microbatches)
    align = alignment(of.state_bits)
    stage = build_stage(
        of.model, of.cut, number, device=layer.device, dropout=of.dropout, rounding=rounding, align=align
    )
    init_stage(stage, of.seed)
    optimizer = make_optimizer(OptimizerSettings.of(of))
    for group in stage.groups.values():
        group.allocate(optimizer.state_names())
        if isinstance(group.sums, BlockwiseSums):  # a grid as of an earlier step, with which some blocks are wide
            group.sums.grid.follow(torch.full_like(group.sums.peaks, 1e-2), 0)
    host.served = Served((StageRunner(stage, of.precision),), optimizer, EPOCH.step)
    driver.perform([Reset()])
    return Peer(me, of, host, driver, recorded, failures, workers[0]), workers
