"""What a peer computes for its machine: with integers no order and no member shows, and a replay undoes to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from swarmflow.compute.codec import codec_named
from swarmflow.compute.layout import TIED
from swarmflow.compute.sums import TensorSums, digest_of_pieces
from swarmflow.core.commit.reduce import PIECE_ELEMENTS, Reduction
from swarmflow.core.protocol.actions import (
    Action,
    Apply,
    Discard,
    HashState,
    Release,
    Reset,
    RunBackward,
    RunForward,
    RunLoss,
    RunReplay,
    Seal,
    Send,
    StorePiece,
    SumPiece,
)
from swarmflow.core.protocol.events import (
    Applied,
    BackwardComputed,
    ComputeFailed,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Overflowed,
    PieceFailed,
    PieceReduced,
    Replayed,
    Sealed,
    StateHashed,
)
from swarmflow.core.protocol.messages import ReducePart, ReduceSum
from swarmflow.core.protocol.types import Epoch, Group, Microbatch, ProcessId, Ref, Slice
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution import stage_host
from tests.runtime.manifests import SHAPE, SUMS, manifest
from tests.runtime.nodes import DEADLINE_S
from tests.runtime.stage_peers import EPOCH, GROUPS, Peer, peers

pytestmark = pytest.mark.asyncio


async def reduce(members: Sequence[Peer], gives: Sequence[bool], helpers: Sequence[Peer] = ()) -> list[Sealed]:
    """The all-reduce of these members, by the core's own machine and the bytes that it has sent.

    gives: which of them have accumulated something. helpers: who sums for them, without being one of them.
    """
    by_id = {peer.me: peer for peer in (*members, *helpers)}
    flats = {name: _elements(members[0], name) for name in GROUPS}
    ids, owners = tuple(peer.me for peer in members), tuple(peer.me for peer in helpers)
    groups = tuple(Group(name, ids, owners, flats[name], 1) for name in GROUPS)
    giving = dict(zip(ids, gives, strict=True))
    machines = {me: Reduction(me, EPOCH, 1, flats, members[0].of.piece) for me in by_id}
    begun = [(me, machine.begin(groups, giving.get(me, False))) for me, machine in machines.items()]
    todo = [(by_id[me], action) for me, actions in begun for action in actions]
    sealed: dict[ProcessId, list[tuple[str, float, str]]] = {me: [] for me in ids}
    while todo:
        peer, action = todo.pop(0)
        machine = machines[peer.me]
        follows: list[Action] = []
        match action:
            case Send(to, ReducePart() as message, ()):
                todo += [(by_id[to], each) for each in machines[to].part(peer.me, message, None)]
            case Send(to, ReducePart() | ReduceSum() as message, (Ref() | Slice() as body,)):
                data = peer.driver.store.get(body) if isinstance(body, Ref) else peer.host.end.read(body)()
                ref, other = by_id[to].keep(bytes(data)), machines[to]
                assert other.fits(message, ref)
                answer: Callable[..., list[Action]] = other.part if isinstance(message, ReducePart) else other.summed
                todo += [(by_id[to], each) for each in answer(peer.me, message, ref)]
            case SumPiece() | StorePiece():
                event = await peer.ask(action)
                assert isinstance(event, PieceReduced)
                follows = machine.reduced(1, event.group, event.piece, event.digest, event.sum)
            case Release():
                peer.driver.perform([action])
            case Seal():
                event = await peer.ask(action)
                assert isinstance(event, Sealed)
                if peer in members:
                    sealed[peer.me] += event.results
        todo += [(peer, each) for each in follows]
    assert not any(len(helper.driver.store) for helper in helpers), "a sum was kept after it was sent"
    return [Sealed(EPOCH, 1, tuple(sorted(results))) for results in sealed.values()]


def _elements(peer: Peer, group: str) -> int:
    assert peer.host.served is not None
    return peer.host.served.stage.groups[TIED if group == "tied" else "own"].params.numel()


def _digests(peer: Peer) -> tuple[str, ...]:
    """Of the reduced gradients; a group with one member has a norm alone in its Sealed."""
    served = peer.host.served
    assert served is not None
    groups = sorted(served.groups(EPOCH.step).items())
    sums = [served.reduced.get(name, group.sums) for name, group in groups]
    return tuple(digest_of_pieces(each, PIECE_ELEMENTS)[0] for each in sums)


async def step(
    of: Manifest, shares: Sequence[Sequence[int]], helpers: int = 0
) -> set[tuple[tuple[tuple[str, float], ...], tuple[str, ...], str]]:
    """What each member has after a step: norms and digests of the gradients, root of the state.

    shares: the microbatches of each member, in the order in which it computes them. helpers: how many others sum.
    """
    async with peers(of, len(shares) + helpers) as all_peers:
        members, others = all_peers[: len(shares)], all_peers[len(shares) :]
        for peer, share in zip(members, shares, strict=True):
            for index in share:
                assert isinstance(await peer.loss(index), LossComputed)
        if len(members) == 1:
            sealed = [await members[0].ask(Seal(EPOCH, 1, GROUPS, GROUPS))]
        else:
            sealed = list(await reduce(members, [bool(share) for share in shares], others))
        digests = [_digests(peer) for peer in members]
        applied = [await peer.ask(Apply(EPOCH, scale=0.01, learning_rate=0.1)) for peer in members]
        found, reported = set(), set()
        assert applied == [Applied(EPOCH)] * len(members)
        for seal, peer, gradients in zip(sealed, members, digests, strict=True):
            assert isinstance(seal, Sealed)
            assert peer.host.served is not None
            reported.add(tuple(sorted(seal.results)))
            norms = tuple((name, norm) for name, norm, _ in sorted(seal.results))
            found.add((norms, gradients, peer.host.served.hash(peer.host.served.version)))
        assert len(reported) == 1, "the members of one step agree, whatever sums they have"
        return found


@pytest.mark.parametrize(
    ("optimizer", "codec"),
    [
        ("adamw", "blockwise8"),
        pytest.param("sgd", "none", marks=pytest.mark.exhaustive),
        pytest.param("adamw", "none", marks=pytest.mark.exhaustive),
        pytest.param("lamb", "blockwise8", marks=pytest.mark.exhaustive),
        pytest.param("lamb", "none", marks=pytest.mark.exhaustive),
        pytest.param("sgd", "blockwise8", marks=pytest.mark.exhaustive),
    ],
)
async def test_a_step_has_the_same_bits_whoever_computed_what_and_when(optimizer: str, codec: str) -> None:
    shares = [[[0, 1, 2, 3]], [[3, 1, 0, 2]], [[2, 0], [1, 3]], [[1], [3, 2], [0]], [[0, 1, 2, 3], []]]

    async def outcomes(sums: str) -> list[Any]:
        of = manifest(optimizer=optimizer, codec=codec, **SUMS[sums])
        found = [await step(of, share) for share in shares]
        found += [await step(of, shares[3], helpers=2), await step(of, shares[4], helpers=1)]
        assert all(len(members) == 1 for members in found), "the members of one step agree in either mode"
        return [members.pop() for members in found]

    exact, blockwise, floats = [await outcomes(sums) for sums in ("exact", "blockwise16", "fp32")]
    assert len(set(exact)) == 1
    assert len(set(blockwise)) == 1
    assert len(set(floats)) > 1, "this test could not tell integers from floats"
    squared = dict(floats[0][0])
    assert dict(exact[0][0]) == pytest.approx(squared, rel=1e-5)
    assert dict(blockwise[0][0]) == pytest.approx(squared, rel=1e-3)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("changes", [{}, {"dropout": True}, {"precision": "bf16"}, {"codec": "fp16"}], ids=str)
async def test_a_replay_takes_away_and_adds_what_a_hop_added(stage: int, changes: dict[str, Any]) -> None:
    async def hop(peer: Peer, index: int) -> None:
        if stage == 1:
            await peer.loss(index)
            return
        microbatch = Microbatch(EPOCH, index)
        assert isinstance(
            await peer.ask(RunForward(microbatch, peer.tokens(index), peer.tokens(index))), ForwardComputed
        )
        assert isinstance(await peer.ask(RunBackward(microbatch, peer.hidden(index))), BackwardComputed)

    def again(peer: Peer, index: int, weight: int) -> RunReplay:
        entered = peer.hidden(index) if stage == 1 else peer.tokens(index)
        gradient = None if stage == 1 else peer.hidden(index)
        return RunReplay(Microbatch(EPOCH, index), entered, peer.tokens(index), gradient, weight)

    async with peers(manifest(**changes), stage=stage) as (peer,):
        groups = (f"stage-{stage}", "tied")
        seals = []
        await hop(peer, 0)
        seals.append(await peer.ask(Seal(EPOCH, 1, groups, groups)))
        await hop(peer, 1)
        seals.append(await peer.ask(Seal(EPOCH, 1, groups, groups)))
        for weight in (-1, 1):
            replayed = await peer.ask(again(peer, 1, weight))
            assert isinstance(replayed, Replayed)
            assert replayed.weight == weight
            seals.append(await peer.ask(Seal(EPOCH, 1, groups, groups)))
        assert seals[2] == seals[0] != seals[1] == seals[3]


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("changes", [{}, {"dropout": True}, {"precision": "bf16"}, {"accumulate": "fp32"}], ids=str)
async def test_without_a_graph_the_same_bits_come_out(stage: int, changes: dict[str, Any]) -> None:
    """One peer keeps the graph, the other one does the forward pass twice; both have the same weights."""
    microbatch, group = Microbatch(EPOCH, 0), f"stage-{stage}"

    async def hop(peer: Peer, keep: bool) -> tuple[list[bytes], Sealed]:
        entered = peer.hidden(0) if stage > 0 else peer.tokens(0)
        forward = await peer.ask(RunForward(microbatch, entered, peer.tokens(0), keep))
        assert isinstance(forward, ForwardComputed)
        assert peer.host.served is not None
        assert peer.host.served.runner(EPOCH.step).held == keep
        back = RunReplay(microbatch, entered, peer.tokens(0), peer.hidden(1), 1)
        backward = await peer.ask(RunBackward(microbatch, peer.hidden(1)) if keep else back)
        assert isinstance(backward, BackwardComputed | Replayed)
        refs = [ref for ref in (forward.output, backward.gradient) if ref is not None]
        sealed = await peer.ask(Seal(EPOCH, 1, (group,), (group,)))
        assert isinstance(sealed, Sealed)
        return [bytes(peer.driver.store.get(ref)) for ref in refs], sealed

    async with peers(manifest(**{"cut": (1, 2)} | changes), count=2, stage=stage) as (one, other):
        kept, lean = await hop(one, True), await hop(other, False)
        assert kept == lean
        assert len(kept[0]) == 1 + (stage > 0)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("changes", [{}, {"dropout": True}, {"precision": "bf16"}, {"accumulate": "fp32"}], ids=str)
async def test_with_weight_0_the_same_bytes_come_out_and_nothing_is_accumulated(
    stage: int, changes: dict[str, Any]
) -> None:
    """What one peer computes for a repair is what another one has sent at first; both have the same weights."""
    microbatch = Microbatch(EPOCH, 0)

    def entered(peer: Peer) -> Ref:
        return peer.hidden(0) if stage > 0 else peer.tokens(0)

    async def at_first(peer: Peer) -> list[bytes]:
        if stage == 2:
            ended = await peer.ask(RunLoss(microbatch, entered(peer), peer.tokens(0)))
            assert isinstance(ended, LossComputed)
            return [held(peer, ended.gradient)]
        forward = await peer.ask(RunForward(microbatch, entered(peer), peer.tokens(0)))
        assert isinstance(forward, ForwardComputed)
        backward = await peer.ask(RunBackward(microbatch, peer.hidden(1)))
        assert isinstance(backward, BackwardComputed)
        return [held(peer, forward.output), *([held(peer, backward.gradient)] if stage else [])]

    async def again(peer: Peer) -> list[bytes]:
        found = []
        if stage < 2:
            forward = await peer.ask(RunForward(microbatch, entered(peer), peer.tokens(0), keep=False, again=True))
            assert isinstance(forward, ForwardComputed)
            found.append(held(peer, forward.output))
        if stage > 0:
            gradient = peer.hidden(1) if stage < 2 else None
            event = await peer.ask(RunReplay(microbatch, entered(peer), peer.tokens(0), gradient, 0))
            assert isinstance(event, Replayed)
            assert event.weight == 0
            found.append(held(peer, event.gradient))
        return found

    def held(peer: Peer, ref: Ref | None) -> bytes:
        assert ref is not None
        return bytes(peer.driver.store.get(ref))

    async with peers(manifest(**{"cut": (1, 2)} | changes), count=2, stage=stage) as (one, other):
        empty = await other.ask(Seal(EPOCH, 1, (f"stage-{stage}",), (f"stage-{stage}",)))
        assert await at_first(one) == await again(other)
        assert await other.ask(Seal(EPOCH, 1, (f"stage-{stage}",), (f"stage-{stage}",))) == empty
        assert other.host.served is not None
        assert other.host.served.runner(EPOCH.step).held == 0, "no graph is kept"


async def test_what_does_not_fit_is_told_and_the_next_try_may_have_another_exponent() -> None:
    async with peers(manifest(codec="none")) as (peer,):
        peer.driver.perform([Reset(exponent=60)])
        assert await peer.loss(0) == Overflowed(Microbatch(EPOCH, 0))
        peer.driver.perform([Reset(exponent=44)])
        assert isinstance(await peer.loss(0), LossComputed)
        broken = codec_named("none").encode(torch.full(SHAPE, torch.nan))
        action = RunLoss(Microbatch(EPOCH, 1), peer.keep(broken), peer.tokens(1))
        assert isinstance(await peer.ask(action), ComputeFailed), "who sent it is to be asked"


async def test_the_exponent_of_a_step_does_not_show_in_its_gradient_but_for_its_last_digits() -> None:
    async with peers(manifest()) as (peer,):
        norms = []
        for exponent in (36, 44):
            peer.driver.perform([Reset(exponent)])
            await peer.loss(0)
            sealed = await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS))
            assert isinstance(sealed, Sealed)
            norms.append([norm for _, norm, _ in sealed.results])
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        assert norms[0] != norms[1]


async def test_a_replay_of_bytes_that_do_not_decode_is_refused() -> None:
    async with peers(manifest()) as (peer,):
        action = RunReplay(Microbatch(EPOCH, 0), peer.keep(b"short"), peer.tokens(0), None, 1)
        event = await peer.ask(action)
        assert isinstance(event, ComputeFailed)
        assert "5 bytes" in event.reason


async def test_each_piece_that_does_not_decode_is_named_and_those_that_do_are_summed_later() -> None:
    async with peers(manifest(**SUMS["blockwise16"])) as (peer,):
        await peer.loss(0)
        assert peer.host.served is not None
        sums = peer.host.served.stage.groups["own"].sums
        good = bytes(sums.pack(0, sums.elements))
        bad = good[:-1] + b"\xff"  # a width that no block has
        where = (EPOCH, 1, "stage-1", 0, 0, sums.elements)
        part, *wrong = (peer.keep(data) for data in (good, bad, bad))
        for apart in (False, True):
            failed = await peer.ask(SumPiece(*where, (part, *wrong), apart))
            assert failed == PieceFailed(EPOCH, 1, "stage-1", 0, tuple(wrong))
        assert isinstance(await peer.ask(SumPiece(*where, (None, part))), PieceReduced)
        peer.driver.store.release((part, *wrong))
        kept = len(peer.driver.store)
        assert await peer.ask(StorePiece(*where, peer.keep(bad))) == PieceFailed(EPOCH, 1, "stage-1", 0)
        assert len(peer.driver.store) == kept


async def test_bytes_that_do_not_decode_are_nothing_to_the_hop_that_comes_after_a_discarded_one() -> None:
    async with peers(manifest()) as (peer,):
        peer.driver.perform([RunLoss(Microbatch(EPOCH, 0), peer.keep(b"short"), peer.tokens(0))])
        peer.driver.perform([Discard(Microbatch(EPOCH, 0))])
        assert isinstance(await peer.loss(0), LossComputed)


async def test_what_was_discarded_is_remembered_for_two_steps_alone() -> None:
    async with peers(manifest()) as (peer,):
        for step in range(4):
            peer.driver.perform([Discard(Microbatch(Epoch(0, step), 0))])
        assert [discarded.epoch.step for discarded in peer.host._discards] == [2, 3]


async def test_a_stage_that_is_given_up_amid_its_work_leaves_nothing_behind() -> None:
    """What its threads still had to do is neither an error nor an answer, and counts as computed in vain."""
    async with peers(manifest()) as [peer]:
        served = peer.host.served
        for index in range(4):
            peer.driver.perform([RunLoss(Microbatch(EPOCH, index), peer.hidden(index), peer.tokens(index))])
        peer.host.unload()
        await peer.host.warm_up()  # done in the thread that has what was queued before
        peer.host.served = served
        peer.driver.perform([Reset()])
        event = await peer.loss(0)
        assert isinstance(event, LossComputed)
        await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS))
        await peer.ask(Apply(EPOCH, scale=0.01, learning_rate=0.1, hashed=True))
        assert isinstance(await peer.next(), StateHashed)
        assert peer.recorded.events.empty()
        counted = peer.driver.metrics.registry.get_sample_value
        computed = counted("swarmflow_compute_seconds_total", {"direction": "loss"})
        settled = [counted("swarmflow_settled_seconds_total", {"outcome": kind}) for kind in ("used", "unused")]
        assert sum(value or 0.0 for value in settled) == pytest.approx(computed)
        passes = counted("swarmflow_pass_seconds_count", {"direction": "loss"})
        assert passes == counted("swarmflow_microbatches_total", {"stage": "1", "direction": "loss"})
        forms = [{"tensor": "gradient", "form": form} for form in ("plain", "encoded")]
        plain, encoded = (counted("swarmflow_codec_bytes_total", labels) for labels in forms)
        one = torch.zeros(SHAPE)
        assert plain == one.nbytes, "only one answer was computed for somebody"
        assert encoded == len(codec_named(peer.host.manifest.codec).encode(one)) < one.nbytes
        assert counted("swarmflow_update_seconds_count") == 1.0
        assert (counted("swarmflow_update_seconds_sum") or 0.0) > 0.0


async def test_a_ballot_that_is_void_before_it_is_sealed_does_no_harm() -> None:
    """Its members' buffers are not those of the next one, in which this peer is alone."""
    async with peers(manifest()) as (peer,):
        await peer.loss(0)
        alone = await peer.ask(Seal(EPOCH, 1, GROUPS, GROUPS))
        free, served = threading.Event(), peer.host.served
        assert served is not None
        for name, group in served.stage.groups.items():
            served.reduced[name] = TensorSums(group.summed * 2)  # as a ballot with another peer has left them
        peer.compute.submit((0.0,), lambda: free.wait(DEADLINE_S), lambda _: None)
        peer.driver.perform([Seal(EPOCH, 2, GROUPS, ()), Seal(EPOCH, 3, GROUPS, GROUPS)])
        free.set()
        void, last = await peer.next(), await peer.next()
        assert isinstance(alone, Sealed)
        assert isinstance(void, Sealed)
        assert isinstance(last, Sealed)
        assert (void.ballot, last.ballot) == (2, 3)
        assert last.results == alone.results != void.results


async def test_of_each_kind_of_pass_what_came_first_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its number; and what is left of passes whose input's gradient is there is finished in this order too."""
    monkeypatch.setattr(stage_host, "SPLIT_MIN_S", 0.0)  # every pass is in two parts
    order = (5, 2, 7, 0, 6, 1, 4, 3)
    async with peers(manifest()) as [peer]:
        free = threading.Event()
        peer.compute.submit((0.0,), lambda: free.wait(DEADLINE_S), lambda _: None)
        for index in order:
            peer.driver.perform([RunLoss(Microbatch(EPOCH, index), peer.hidden(index), peer.tokens(index))])
        await peer.host.warm_up()  # done in the thread that decodes what was queued before
        free.set()
        events = [await peer.next() for _ in range(2 * len(order))]
        given = [event.microbatch.index for event in events if isinstance(event, InputGradientComputed)]
        finished = [event.microbatch.index for event in events if isinstance(event, LossComputed)]
        assert given == finished == list(order)


async def test_a_hash_that_ends_late_says_nothing_of_the_stage_that_is_served_by_then() -> None:
    async with peers(manifest(), count=2) as (peer, other):
        assert other.host.served is not None
        other.host.served.version += 1
        go = threading.Event()
        peer.host.end._hashers.submit(go.wait, DEADLINE_S)
        peer.driver.perform([HashState(EPOCH.step)])
        peer.host.served = other.host.served
        peer.driver.perform([HashState(EPOCH.step + 1)])
        go.set()
        event = await peer.next()
        assert isinstance(event, StateHashed)
        assert event.version == EPOCH.step + 1
        assert peer.recorded.events.empty()


async def test_an_error_of_a_hash_is_reported() -> None:
    async with peers(manifest()) as (peer,):
        assert peer.host.served is not None
        peer.host.served.pieces = None  # type: ignore[assignment]  # nothing can be hashed
        with pytest.raises(AttributeError):
            await peer.ask(HashState(EPOCH.step))
