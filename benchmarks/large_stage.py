"""A stage of 0.7 billion parameters with its state in the host's memory: `python -m benchmarks.large_stage`.

Two processes, connected by libp2p. This one has the weights in a folder, as a trainer does. The other one is a peer: it
loads the stage from here, computes two steps in bf16, with the sums of an all-reduce beside the state, and gives its
state. This one asks for it piece by piece, compares each piece with its hash and their hashes with the root, and keeps
none. Prints the peer's highest resident memory after each phase; exits 1 where that is above the limit. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
import uvloop
from safetensors.torch import save_file

from benchmarks.memory import PeakMemory
from peers.building import build
from peers.fitting import MemoryBudget
from swarmflow.authority.access import AccessControl
from swarmflow.authority.owner import Owner
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.families import model_config
from swarmflow.compute.layout import OWN, StageLayout, layout_in_run
from swarmflow.compute.state_root import LEAF_BYTES, Span, leaf_of, root_of
from swarmflow.compute.weights import LayoutReader
from swarmflow.core.commit import reduce
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.errors import NetworkError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.heap import heap_environment
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.piece_donor import LEAVES, TOPIC, serve_pieces
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.state_transfer import Listing, first_donor, serve_state
from swarmflow.runtime.transport.node import Node
from tests.runtime.manifests import manifest

STAGE, CUT = 1, (1, 7)  # the middle one of three
STEPS, MICROBATCHES, TOKENS = 2, 2, 32
ASKED_AT_A_TIME = 16
LIMIT_GIB = 18.0
GIB = 1 << 30


def run_of(hidden: int) -> Manifest:
    """Return the run: a llama whose six blocks on the middle stage have 0.71 billion parameters at a width of 3072."""
    model = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden * 17 // 6,
        "num_hidden_layers": 8,
        "num_attention_heads": 24,
        "num_key_value_heads": 24,
        "vocab_size": 1024,
        "max_position_embeddings": TOKENS,
        "tie_word_embeddings": False,
    }
    sizes = {"microbatches": MICROBATCHES, "microbatch_sequences": 1, "seq_len": TOKENS}
    how = {"precision": "bf16", "accumulate": "fp32", "reduce_codec": "none", "codec": "blockwise8", "tied": False}
    return manifest(model=model_config(model), cut=CUT, hidden_size=hidden, vocab_size=1024, **sizes, **how)


@asynccontextmanager
async def opened(folder: Path, name: str, *known: str) -> AsyncIterator[Session]:
    """A process of the run, connected with those at these addresses."""
    owner = Owner.load(folder / "owner.pem") or Owner.make(folder / "owner.pem")
    node = await Node.start(identity_path=folder / f"{name}.key", bootstrap=known)
    session = Session(node, AccessControl(owner.run_id, owner.certify("trainer")), Metrics())
    session.open({}, lambda body: bytes)
    await session.links.start()
    try:
        yield session
    finally:
        await session.close(0.0)
        await node.stop()


# --- the peer ---------------------------------------------------------------------------------------------------------


async def give(folder: Path, hidden: int, donor: ProcessId, address: str) -> None:
    """Load the stage, train it, and give its state until this process is ended."""
    run = run_of(hidden)
    async with opened(folder, "peer", address) as session:
        session.links.set_addresses(donor, [address])
        budget = MemoryBudget(torch.device("cpu"), state="host")
        served, _ = await asyncio.to_thread(build, run, budget, STAGE)
        state = served.state_of(0)
        await first_donor(session.requests, [Member(donor, -1)], STAGE, 0, state.elements(), state.write)
        for runner in served.runners:
            runner.weights_written()
        served.version = 0
        report(session, served, "loaded")
        for step in range(STEPS):
            await asyncio.to_thread(train, served, step, hidden)
            report(session, served, f"step {step} made")
        await asyncio.to_thread(served.hash, STEPS)
        serve_pieces(session.requests, lambda stage: served, lambda updates: None, damaged)
        report(session, served, "hashed")
        await asyncio.Event().wait()


def train(served: Served, step: int, hidden: int) -> None:
    """Compute the microbatches of a step, sum them with nothing, piece by piece as an all-reduce does, and apply it."""
    runner, stage = served.runner(step), served.stage
    runner.begin(EXPONENT)
    drawn = torch.Generator().manual_seed(step)
    for index in range(MICROBATCHES):
        x = torch.randn(1, TOKENS, hidden, generator=drawn)
        runner.forward(index, x)
        runner.backward(index, x / TOKENS, step * MICROBATCHES + index)
    for name, group in stage.groups.items():
        total = group.sums.empty()
        for start in range(0, total.elements, reduce.PIECE_ELEMENTS):
            total.total(start, min(start + reduce.PIECE_ELEMENTS, total.elements), [group.sums])
        served.reduced[name] = total
    assert served.update(step, 1.0 / (MICROBATCHES * TOKENS), 1e-4), "nothing is damaged"


def damaged() -> None:
    """End a measurement that is of no use."""
    raise SystemExit("the state is damaged in memory")


def report(session: Session, served: Served, phase: str) -> None:
    """Print how far this process is, for the other one."""
    me, root = session.me, served.roots.get(STEPS, "")
    where = list(session.node.addresses())
    print(json.dumps({"phase": phase, "me": [me.name, me.incarnation], "at": where, "root": root}), flush=True)


# --- the other process ------------------------------------------------------------------------------------------------


def write_weights(layout: StageLayout, folder: Path) -> None:
    """Write the stage's weights as a Hugging Face folder, in bf16, drawn anyhow; a file for each block."""
    drawn, where = torch.Generator().manual_seed(0), {}
    files: dict[str, dict[str, torch.Tensor]] = {}
    for number, slot in enumerate(layout.groups[OWN]):
        file = f"model-{slot.name.split('.')[2]}.safetensors"
        values = torch.empty(slot.shape, dtype=torch.bfloat16).normal_(0.0, 0.02, generator=drawn)
        files.setdefault(file, {})[slot.name] = values if len(slot.shape) > 1 else torch.ones_like(values)
        where[slot.name] = file
        last = number + 1 == len(layout.groups[OWN]) or layout.groups[OWN][number + 1].name.split(".")[2] not in file
        if last:
            save_file(files.pop(file), folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}), encoding="utf-8")


def serve_weights(session: Session, reader: LayoutReader) -> None:
    """Give the weights of version 0, as a trainer does."""

    def listing(stage: int, version: int, root: str) -> Listing:
        return Listing({f"{OWN}.params": reader.layout.elements(OWN)})

    def read(stage: int, version: int, root: str, tensor: str, start: int, stop: int) -> bytes:
        return reader.read(OWN, start, stop)

    serve_state(session.requests, listing, read)


async def take(session: Session, giver: ProcessId, layout: StageLayout, root: str) -> int:
    """Ask for every piece of the state and compare it with its hash; return the bytes. Raises NetworkError."""
    where: dict[str, int | str] = {"stage": STAGE, "version": STEPS}
    [data] = await session.requests.ask(giver, LEAVES, where, timeout_s=60.0)
    leaves = [bytes(data[at : at + LEAF_BYTES]) for at in range(0, len(data), LEAF_BYTES)]
    pieces = Span(OWN, 0, layout.elements(OWN)).pieces()
    if root_of(leaves) != root or len(leaves) != len(pieces):
        raise NetworkError("the hashes of the pieces are not those of the root")
    received, left = 0, iter(zip(pieces, leaves, strict=True))

    async def ask(left: Iterator[tuple[Span, bytes]]) -> None:
        nonlocal received
        for piece, leaf in left:
            what: dict[str, int | str] = {"stage": STAGE, "group": OWN, "start": piece.start, "stop": piece.stop}
            _, state = await session.requests.ask(giver, TOPIC, what | {"have": -1}, timeout_s=60.0)
            if leaf_of([state]) != leaf:
                raise NetworkError(f"{piece} is not what its hash says")
            received += len(state)

    await asyncio.gather(*(ask(left) for _ in range(ASKED_AT_A_TIME)))
    return received


async def measure(folder: Path, hidden: int, threads: int) -> float:
    """Run both processes; print what the peer takes, and return its highest resident memory in GiB."""
    layout, peak = layout_in_run(run_of(hidden), STAGE), PeakMemory()
    print(f"{layout.parameters:,} parameters on the stage; load average {os.getloadavg()[0]:.1f}", flush=True)
    await asyncio.to_thread(write_weights, layout, folder)
    async with opened(folder, "trainer") as session:
        with LayoutReader(layout, folder) as reader:
            serve_weights(session, reader)
            [address, *_] = session.node.addresses()
            me = session.me
            which = [str(folder), str(hidden), me.name, str(me.incarnation), address]
            peer = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.large_stage", "--peer", *which),
                stdout=asyncio.subprocess.PIPE,
                env=os.environ | heap_environment() | {"OMP_NUM_THREADS": str(threads)},
            )
            try:
                return await follow(session, peer, layout, peak)
            finally:
                if peer.returncode is None:
                    peer.kill()
                    await peer.wait()


async def follow(session: Session, peer: asyncio.subprocess.Process, layout: StageLayout, peak: PeakMemory) -> float:
    """Print the phases of the peer; take its state once it can give it. Return its highest resident memory in GiB."""
    began_s = time.monotonic()

    def show(phase: str) -> float:
        peak.sample([("peer", peer.pid)])
        found = peak.own_bytes["peer"] / GIB
        print(f"{time.monotonic() - began_s:7.1f} s  {phase:<24} peak {found:5.2f} GiB", flush=True)
        return found

    assert peer.stdout is not None
    async for line in peer.stdout:
        reported: dict[str, Any] = json.loads(line)
        show(reported["phase"])
        if reported["root"]:
            giver = ProcessId(*reported["me"])
            session.links.set_addresses(giver, reported["at"])
            received = await take(session, giver, layout, reported["root"])
            return show(f"{received / GIB:.2f} GiB given")
    raise NetworkError("the peer has ended")


def main() -> int:
    """Run the measurement, or the peer of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=3072, help="width of the model, a multiple of 48")
    parser.add_argument("--threads", type=int, default=2, help="of the peer")
    parser.add_argument("--limit-gib", type=float, default=LIMIT_GIB)
    parser.add_argument("--peer", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer is not None:
        folder, hidden, name, incarnation, address = given.peer
        uvloop.run(give(Path(folder), int(hidden), ProcessId(name, int(incarnation)), address))
        return 0
    with tempfile.TemporaryDirectory(prefix="swarmflow-large-stage-") as scratch:
        peak_gib: float = uvloop.run(measure(Path(scratch), given.hidden, given.threads))
    print(f"the peer took {peak_gib:.2f} GiB at most; allowed: {given.limit_gib:.0f}")
    return 0 if peak_gib <= given.limit_gib else 1


if __name__ == "__main__":
    sys.exit(main())
