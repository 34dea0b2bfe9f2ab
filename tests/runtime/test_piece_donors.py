"""Donors of a stage that give what is wrong, claim what is not, or give nothing: the others bring it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from swarmflow.compute.state_root import PIECE_ELEMENTS, Span
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.piece_donor import TOPIC, PieceAnswer, PieceUpdate, serve_pieces
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.transport.requests import BUSY, Arguments, Requests
from tests.runtime.manifests import SUMS, manifest
from tests.runtime.piece_loads import FIRST_VERSION, LOADED_S, donors_of, here, ignored, load_of, members, never, of
from tests.runtime.test_copy_keeper import processes
from tests.runtime.test_followed_pieces import stage_of, step

pytestmark = pytest.mark.asyncio
IMPOSSIBLE: list[list[bytes]] = [
    [b"{}", b""],
    [b'{"version":-4,"stop":16384}', b""],
    [b'{"version":1,"stop":16384}', bytes(4)],
    [b'{"version":9,"stop":16384}', bytes(4)],
    [b'{"version":9,"stop":16384}', b""],
    [b'{"version":9,"stop":16384}', b"\xff" * 1_000_000],
    [b'{"version":9,"stop":0,"updates":[{"step":7,"scale":1,"learning_rate":1,"ratios":[],"size_bytes":0}]}', b""],
    [b'{"version":2,"stop":0}'],
    [b'{"version":2,"stop":5}', bytes(4)],
    [b'{"version":9,"stop":16384,"more":' + b"[" * 5000 + b"]" * 5000 + b"}", b""],
    [],
]


async def test_what_cannot_be_is_refused_and_comes_from_another_donor(tmp_path: Path) -> None:
    run = of()
    [sound] = donors_of(run, 1)
    async with processes(tmp_path, 3) as (reader, lying, honest):
        told = 0

        async def lie(*_: object) -> list[bytes]:
            nonlocal told
            told += 1
            return bodies

        lying.session.requests.serve(TOPIC, lie)
        serve_pieces(honest.session.requests, here(sound), ignored, never)
        for number, bodies in enumerate(IMPOSSIBLE):  # which the lying donor sends
            loader = stage_of(run)
            load = load_of(reader, loader)
            load.set_donors(members(lying), FIRST_VERSION)
            with pytest.raises(NetworkError):
                async with asyncio.timeout(LOADED_S):
                    await load.run()
            assert told > number
            load.set_donors(members(honest), FIRST_VERSION)
            loader.version = await load.run()
            assert (loader.version, loader.state.digest()) == (FIRST_VERSION, sound.state.digest()), bodies


async def test_a_piece_that_is_missing_follows_no_updates(tmp_path: Path) -> None:
    """AdamW would divide by zero in the step before the first one."""
    loader = stage_of(manifest(**SUMS["fp32"]))
    async with processes(tmp_path, 2) as (reader, lying):

        async def lie(sender: ProcessId, arguments: Arguments) -> list[bytes]:
            have, size = arguments["have"], loader.pieces.update_bytes(loader.pieces.all()[0])
            assert isinstance(have, int)
            updates = tuple(PieceUpdate(step, 1.0, 0.1, (), size) for step in range(have, FIRST_VERSION))
            return [msgspec.json.encode(PieceAnswer(FIRST_VERSION, 0, updates)), bytes(size * len(updates))]

        lying.session.requests.serve(TOPIC, lie)
        load = load_of(reader, loader)
        load.set_donors(members(lying), FIRST_VERSION)
        with pytest.raises(NetworkError, match=r"what cannot be: version 2, stop 0, updates \[-1, 0, 1\]"):
            async with asyncio.timeout(LOADED_S):
                await load.run()


async def test_a_donor_whose_answer_fails_in_an_unforeseen_way_is_asked_for_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [sound], loader = donors_of(of(), 1), stage_of(of())
    async with processes(tmp_path, 2) as (reader, donor):
        serve_pieces(donor.session.requests, here(sound), ignored, never)
        load = load_of(reader, loader)

        async def compute(work: Callable[[], None]) -> None:
            raise RuntimeError("the device has failed")

        load.compute, works = compute, load.compute
        load.set_donors(members(donor), FIRST_VERSION)
        with pytest.raises(NetworkError, match="the device has failed"):
            async with asyncio.timeout(LOADED_S):
                await load.run()
        assert f"what {donor.session.me} gave of stage 0 could not be used" in caplog.text
        load.compute = works
        load.set_donors(members(donor), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.state.digest() == sound.state.digest()


@pytest.mark.parametrize("tells", [False, True], ids=["from the first", "once it has told a later version"])
async def test_a_donor_that_is_busy_for_good_holds_nobody_up(
    tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("BUSY_S", "AHEAD_S"):
        monkeypatch.setattr(f"swarmflow.runtime.execution.piece_loading.{constant}", 0.3)
    run = of()
    [sound] = donors_of(run, 1)
    async with processes(tmp_path, 3) as (reader, busy, honest):
        told = not tells

        async def answer(sender: ProcessId, arguments: Arguments) -> list[bytes]:
            nonlocal told
            if told:
                raise NetworkError(BUSY)
            told, start = True, arguments["start"]
            assert isinstance(start, int)
            span = Span(str(arguments["group"]), start, start + PIECE_ELEMENTS)
            state = sound.read(span, sound.version)
            assert state is not None
            return [msgspec.json.encode({"version": FIRST_VERSION + 7, "stop": span.stop}), bytes(state)]

        busy.session.requests.serve(TOPIC, answer)
        serve_pieces(honest.session.requests, here(sound), ignored, never)
        loader = stage_of(run)
        load = load_of(reader, loader)
        load.set_donors(members(busy, honest), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.state.digest() == sound.state.digest()


def claiming(version: int, served: Served, arguments: Arguments) -> list[bytes]:
    """The answer with a piece, as if it were at another version."""
    asked = arguments["group"], arguments["start"]
    span = next(each for each in served.pieces.all() if (each.group, each.start) == asked)
    return [
        msgspec.json.encode({"version": version, "stop": span.stop}),
        bytes(served.pieces.read(span, FIRST_VERSION)),
    ]


@pytest.mark.parametrize("alone", [False, True], ids=["beside another donor", "beside a certificate"])
async def test_a_donor_that_claims_a_version_which_does_not_exist_is_not_believed(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmflow.runtime.execution.piece_loading.AHEAD_S", 0.3)
    run, claimed = of(), FIRST_VERSION + 2
    [sound], loader = donors_of(run, 1), stage_of(run)
    root = sound.hash(FIRST_VERSION)
    async with processes(tmp_path, 3) as (reader, lying, honest):
        given = 0

        async def lie(sender: ProcessId, arguments: Arguments) -> list[bytes]:
            nonlocal given
            given += 1
            return claiming(claimed, sound, arguments)

        lying.session.requests.serve(TOPIC, lie)
        serve_pieces(honest.session.requests, here(sound), ignored, never)
        load = load_of(reader, loader)
        if alone:
            load.expect(FIRST_VERSION, root)
            load.set_donors(members(lying), FIRST_VERSION)
            with pytest.raises(NetworkError, match=f"claims version {claimed}"):
                await load.run()
            load.set_donors(members(lying), FIRST_VERSION)
            with pytest.raises(NetworkError, match="nobody was named"):
                await load.run()
        load.set_donors(members(lying, honest), FIRST_VERSION)
        async with asyncio.timeout(LOADED_S):
            loader.version = await load.run()
        assert given
        assert (loader.version, loader.state.digest()) == (FIRST_VERSION, sound.state.digest())
        load.set_donors(members(lying), claimed - 1)
        assert lying.session.me in load._donors, "the run has come near to it meanwhile"


async def test_pieces_of_a_donor_that_was_gone_before_others_told_their_version_are_fetched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmflow.runtime.execution.piece_loading.AHEAD_S", 0.3)
    run = of()
    [sound], loader = donors_of(run, 1), stage_of(run)
    gone = asyncio.Event()
    async with processes(tmp_path, 3) as (reader, lying, honest):

        async def lie(sender: ProcessId, arguments: Arguments) -> list[bytes]:
            if load.received_bytes:
                gone.set()
                raise NetworkError("it serves another stage now")
            return claiming(FIRST_VERSION + 5, sound, arguments)

        lying.session.requests.serve(TOPIC, lie)
        serve_pieces(honest.session.requests, here(sound), ignored, never)
        give = honest.session.requests._handlers[TOPIC]

        async def give_later(sender: ProcessId, arguments: Arguments) -> Sequence[bytes | memoryview]:
            await gone.wait()
            return await give(sender, arguments)

        honest.session.requests.serve(TOPIC, give_later, lane="background")
        load = load_of(reader, loader)
        load.set_donors(members(lying, honest), FIRST_VERSION)
        async with asyncio.timeout(LOADED_S):
            loader.version = await load.run()
        assert loader.state.digest() == sound.state.digest()


async def test_requests_of_pieces_that_are_not_there_are_refused(tmp_path: Path) -> None:
    [served] = donors_of(of(), 1)
    async with processes(tmp_path, 2) as (reader, donor):
        serve_pieces(donor.session.requests, here(served), ignored, never)
        asking: Requests = reader.session.requests
        for start, stop, have in ((0, 1 << 40, -1), (1, 16384, -1), (-1, 16384, -1), (0, 0, -1), (0, 16384, -2)):
            where: Arguments = {"stage": 0, "group": "own", "start": start, "stop": stop, "have": have}
            with pytest.raises(NetworkError):
                await asking.ask(donor.session.me, TOPIC, where)
        body = await asking.ask(
            donor.session.me, TOPIC, {"stage": 0, "group": "own", "start": 0, "stop": 16384, "have": 99}
        )
        assert len(body[1]) == served.pieces.state_bytes(served.pieces.all()[0]), (
            "a later version is of no history here"
        )


async def test_a_wrong_piece_is_fetched_anew_and_its_donor_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = of()
    first, second, loader = *donors_of(run, 2), stage_of(run)
    with ThreadPoolExecutor(1) as threads:
        roots = {served.begin_hash(threads).result() for served in (first, second)}
        [root] = roots
        assert root is not None
        spans = first.pieces.all()
        wrong = bytearray(first.pieces.read(spans[3], FIRST_VERSION))
        wrong[-1] ^= 1  # a bit of an optimizer's state: no digest of parameters would tell
        first.pieces.write(spans[3], FIRST_VERSION, wrong)
        first._checksums = -1, {}  # it compares nothing that it gives
        async with processes(tmp_path, 3) as (reader, spoilt, sound):
            serve_pieces(spoilt.session.requests, here(first), ignored, never)
            serve_pieces(sound.session.requests, here(second), ignored, never)
            load = load_of(reader, loader)
            load.set_donors(members(spoilt), FIRST_VERSION)
            assert await load.run() == FIRST_VERSION, "without a root the donor is believed"
            load.expect(FIRST_VERSION, root)
            load.set_donors(members(spoilt, sound), FIRST_VERSION)
            loader.version = await load.run()
            assert loader.state.digest() == second.state.digest()
            assert load.received_bytes <= loader.pieces.state_bytes(spans[3]), "nothing else was fetched anew"
            load.set_donors(members(spoilt), FIRST_VERSION)
            with pytest.raises(NetworkError, match="nobody was named"):
                await load.run()  # not if it is named again, either
    assert f"{spoilt.session.me} gave a wrong piece of stage 0" in caplog.text


async def test_a_donor_gives_nothing_of_a_state_that_is_damaged_in_its_memory(tmp_path: Path) -> None:
    first, second, loader = *donors_of(of(), 2), stage_of(of())
    first.groups(FIRST_VERSION)["own"].params.view(torch.int32)[0] ^= 1
    found: list[bool] = []
    async with processes(tmp_path, 3) as (reader, damaged, sound):
        serve_pieces(damaged.session.requests, here(first), ignored, lambda: found.append(True))
        serve_pieces(sound.session.requests, here(second), ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(damaged, sound), FIRST_VERSION)
        assert await load.run() == FIRST_VERSION
        assert loader.state.digest() == second.state.digest()
    assert found, "it was asked, and has looked"


async def test_hashes_that_do_not_belong_to_the_root_are_not_believed(tmp_path: Path) -> None:
    run = of()
    first, second, loader = *donors_of(run, 2), stage_of(run)
    with ThreadPoolExecutor(1) as threads:
        root = second.begin_hash(threads).result()
        assert root is not None
        first.leaves = {FIRST_VERSION: bytes(len(second.leaves[FIRST_VERSION]))}
        async with processes(tmp_path, 3) as (reader, lying, honest):
            serve_pieces(lying.session.requests, here(first), ignored, never)
            serve_pieces(honest.session.requests, here(second), ignored, never)
            load = load_of(reader, loader)
            load.set_donors(members(lying, honest), FIRST_VERSION)
            found = await load._leaves(FIRST_VERSION, root)
            assert found is not None
            assert b"".join(found) == second.leaves[FIRST_VERSION]
            assert [donor.process for donor in members(honest)] == list(load._donors)


async def test_an_answer_from_before_a_later_grant_is_none_that_cannot_be(tmp_path: Path) -> None:
    run = of()
    [served], loader = donors_of(run, 1), stage_of(run)
    async with processes(tmp_path, 2) as (reader, donor):

        def granting(stage: int) -> Served:
            if load.least == FIRST_VERSION and load.received_bytes:
                step(served, FIRST_VERSION, reduced=True)
                load.set_donors(members(donor), FIRST_VERSION + 1)  # answers of the version before are on their way
            return served

        serve_pieces(donor.session.requests, granting, ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(donor), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.version == FIRST_VERSION + 1
        assert loader.state.digest() == served.state.digest()
