"""A stage is loaded from several donors at a time while they make updates; whoever fails costs what it owed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.piece_donor import TOPIC, _give, serve_pieces
from swarmflow.runtime.execution.piece_requests import PieceGiver
from swarmflow.runtime.execution.piece_table import STEAL_S
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.transport.requests import Arguments
from tests.runtime.nodes import damage_next
from tests.runtime.piece_loads import FIRST_VERSION, LOADED_S, donors_of, here, ignored, load_of, members, never, of
from tests.runtime.test_copy_keeper import Process, processes
from tests.runtime.test_followed_pieces import bring, stage_of, step

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("delay", [0, 1])
async def test_pieces_come_from_all_donors_and_follow_the_updates_made_meanwhile(delay: int, tmp_path: Path) -> None:
    run = of(delay=delay)
    first, second, loader = *donors_of(run, 2), stage_of(run)
    asked: dict[ProcessId, int] = {}
    async with processes(tmp_path, 3) as (reader, one, two):

        def counting(process: Process, served: Served) -> Callable[[int], Served]:
            def serving(stage: int) -> Served:
                asked[process.session.me] = asked.get(process.session.me, 0) + 1
                if sum(asked.values()) in (6, 12):  # the donors go on while pieces of the version before are here
                    for each in (first, second):
                        step(each, each.version, reduced=True)
                return served

            return serving

        serve_pieces(one.session.requests, counting(one, first), ignored, never)
        serve_pieces(two.session.requests, counting(two, second), ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(one, two), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.version == first.version == FIRST_VERSION + 2
        assert loader.state.digest() == first.state.digest()
        assert min(asked.values()) >= 3, "both gave something"
        for each in (first, second):
            step(each, each.version, reduced=True)
        load.set_donors(members(one, two), first.version)
        loader.version = await load.run()
        assert loader.state.digest() == first.state.digest(), "and it goes on from there"
        assert load.received_bytes < 0.3 * sum(map(loader.pieces.state_bytes, loader.pieces.all())), (
            "by the update alone"
        )


@pytest.mark.parametrize("leaves", [False, True])
async def test_donors_of_the_same_host_are_asked_alone_as_long_as_there_is_one(leaves: bool, tmp_path: Path) -> None:
    first, second, loader = *donors_of(of(), 2), stage_of(of())
    asked: Counter[str] = Counter()
    async with processes(tmp_path, 3) as (reader, near, far):

        def counting(process: Process, served: Served) -> Callable[[int], Served]:
            def serving(stage: int) -> Served:
                asked[process.session.me.name] += 1
                if leaves and process is near and asked[process.session.me.name] > 3:
                    raise NetworkError("stage 0 is not here any more")
                return served

            return serving

        serve_pieces(near.session.requests, counting(near, first), ignored, never)
        serve_pieces(far.session.requests, counting(far, second), ignored, never)
        load = load_of(reader, loader)
        load.near = lambda: frozenset({near.session.me.name, reader.session.me.name})
        load.set_donors(members(far), FIRST_VERSION)  # of an earlier grant
        load.set_donors(members(far, near), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.state.digest() == first.state.digest()
        assert (asked[far.session.me.name] > 0) == leaves
        assert asked[near.session.me.name] > 3


async def test_a_piece_that_is_damaged_on_the_way_comes_from_another_donor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, loader = *donors_of(of(), 2), stage_of(of())
    async with processes(tmp_path, 3) as (reader, one, two):
        damage_next(one.session.node, monkeypatch, least_bytes=10_000)
        serve_pieces(one.session.requests, here(first), ignored, never)
        serve_pieces(two.session.requests, here(second), ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(one, two), FIRST_VERSION)
        assert await load.run() == FIRST_VERSION
        assert loader.state.digest() == first.state.digest()
        assert {failure.partition(":")[0] for failure in load.failures} == {str(one.session.me)}
        damaged = reader.session.metrics.frames_refused.at("damaged_body")
        assert damaged._value.get() == 1


async def test_a_donor_that_dies_costs_what_it_was_asked_for(tmp_path: Path) -> None:
    run = of()
    first, second, loader = *donors_of(run, 2), stage_of(run)
    answers = 0
    async with processes(tmp_path, 3) as (reader, dying, alive):

        def dies(stage: int) -> Served:
            nonlocal answers
            answers += 1
            if answers == 4:
                dying.session.links.forget(reader.session.me)
            return first

        serve_pieces(dying.session.requests, dies, ignored, never)
        serve_pieces(alive.session.requests, here(second), ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(dying, alive), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.state.digest() == second.state.digest()
        state_bytes = sum(map(loader.pieces.state_bytes, loader.pieces.all()))
        assert load.received_bytes <= state_bytes + 8 * loader.pieces.state_bytes(loader.pieces.all()[0])


async def test_a_grant_that_names_a_later_version_as_the_last_piece_is_written_is_followed(tmp_path: Path) -> None:
    """All pieces are at the version that the donor has told, which is not enough any more."""
    [donor], loader = donors_of(of(), 1), stage_of(of())
    async with processes(tmp_path, 2) as (reader, giver):
        serve_pieces(giver.session.requests, here(donor), ignored, never)
        load = load_of(reader, loader)
        written = 0

        async def compute(work: Callable[[], None]) -> None:
            nonlocal written
            work()
            written += 1
            if written == len(loader.pieces.all()):
                step(donor, donor.version, reduced=True)
                load.set_donors(members(giver), donor.version)

        load.compute = compute
        load.set_donors(members(giver), FIRST_VERSION)
        async with asyncio.timeout(LOADED_S):
            assert await load.run() == FIRST_VERSION + 1
        assert loader.state.digest() == donor.state.digest()


async def test_a_load_without_donors_keeps_what_it_has_for_the_next_ones(tmp_path: Path) -> None:
    run = of()
    first, second, loader = *donors_of(run, 2), stage_of(run)
    async with processes(tmp_path, 3) as (reader, leaving, other):

        def leaves(stage: int) -> Served:
            if load.received_bytes:
                raise NetworkError("it serves another stage now")
            return first

        serve_pieces(leaving.session.requests, leaves, ignored, never)
        serve_pieces(other.session.requests, here(second), ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(leaving), FIRST_VERSION)
        with pytest.raises(NetworkError, match="another stage now"):
            await load.run()
        had_bytes = load.received_bytes
        load.set_donors(members(other), FIRST_VERSION)
        loader.version = await load.run()
        assert loader.state.digest() == second.state.digest()
        state_bytes = sum(map(loader.pieces.state_bytes, loader.pieces.all()))
        assert load.received_bytes <= state_bytes - had_bytes + loader.pieces.state_bytes(loader.pieces.all()[0])


async def test_what_is_verified_stays_as_it_is_while_the_donors_go_on(tmp_path: Path) -> None:
    [served], loader = donors_of(of(), 1), stage_of(of())
    verified = served.state.digest()
    async with processes(tmp_path, 2) as (reader, donor):
        serve_pieces(donor.session.requests, here(served), ignored, never)
        load = load_of(reader, loader)
        load.expect(FIRST_VERSION - 1, "")  # the next root may come at any moment: it waits for that
        load.set_donors(members(donor), FIRST_VERSION)
        loading = asyncio.create_task(load.run())
        async with asyncio.timeout(60.0):
            while not load._verifying:
                await asyncio.sleep(0.01)
            step(served, FIRST_VERSION, reduced=True)
            loader.version = await loading
    assert loader.version == FIRST_VERSION
    assert loader.state.digest() == verified


async def test_a_donor_that_answers_too_late_leaves_no_piece_behind(tmp_path: Path) -> None:
    run = of()
    first, second, loader = *donors_of(run, 2), stage_of(run)
    release = asyncio.Event()
    async with processes(tmp_path, 3) as (reader, slow, quick):
        serve_pieces(slow.session.requests, here(first), ignored, never)
        serve_pieces(quick.session.requests, here(second), ignored, never)
        load = load_of(reader, loader)
        load.set_donors(members(slow, quick), FIRST_VERSION)
        loader.version = await load.run()
        give = slow.session.requests._handlers[TOPIC]

        async def give_late(sender: ProcessId, arguments: Arguments) -> Sequence[bytes | memoryview]:
            if arguments["have"] == FIRST_VERSION:  # the other one is asked for the same meanwhile
                await release.wait()
            return await give(sender, arguments)

        slow.session.requests.serve(TOPIC, give_late, lane="background")
        async with asyncio.timeout(30.0):
            for version in (FIRST_VERSION + 1, FIRST_VERSION + 2):
                for each in (first, second):
                    step(each, each.version, reduced=True)
                load.set_donors(members(slow, quick), version)
                loader.version = await load.run()
                assert loader.state.digest() == first.state.digest()
        release.set()


async def test_an_update_that_two_donors_give_at_the_same_time_is_made_once(tmp_path: Path) -> None:
    run = of()
    [sound], loader = donors_of(run, 1), stage_of(run)
    async with processes(tmp_path, 3) as (reader, *donors):
        load = load_of(reader, loader)
        for span in loader.pieces.all():
            bring(sound, loader, span, have=-1)
        load.set_version(FIRST_VERSION)
        sound.log.want()
        step(sound, FIRST_VERSION, reduced=True)
        slow, quick = (PieceGiver(member) for member in members(*donors))
        owed = iter(partial(load._table.next, slow, sound.version, 0.0), None)
        stolen = iter(partial(load._table.next, quick, sound.version, 2 * STEAL_S), None)
        taken = []
        for request in (*owed, *stolen):
            given = _give(sound, load._table.span_of(request), request.have)
            assert given is not None
            taken.append(load._take(request, given[0], memoryview(given[1])))
        await asyncio.gather(*taken)
        assert load.whole_at(sound.version)
        loader.version = sound.version
        assert loader.state.digest() == sound.state.digest()
