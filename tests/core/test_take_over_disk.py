"""A leader that takes over with a version on its disk that may be of another history of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.durability.doubts import fallback
from swarmflow.core.durability.versions import Durability
from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading.opening import try_open
from swarmflow.core.protocol.events import DiskChanged
from swarmflow.core.protocol.messages import Drain, Evicted, Granted, Released, ReportRoot, StateRoot
from swarmflow.core.protocol.types import Plan, Roster, Snapshot
from tests.core.samples import member, messages
from tests.core.taken_over import OPENED, PEERS, ROOT, SETTINGS, TRAINERS, A, B, Bench, C, peers, report

VERSION = 5  # of the run, whose step is taken over


def leader_has_written(safe: Durability, version: int) -> None:
    safe.durable, safe.roots, safe.doubtful = version, ("later",), None


@pytest.mark.parametrize(("roots", "durable"), [(("former",), 0), ((ROOT,), VERSION)])
def test_what_is_on_disk_counts_if_the_run_agrees_on_its_roots(roots: tuple[str, ...], durable: int) -> None:
    """The run may have gone back while this trainer was away, and have made the version anew."""
    bench = Bench([replace(told, root="") for told in peers()], on_disk=VERSION, roots=roots)
    assert [to for to, _ in messages(bench.began, ReportRoot)] == [A, B, C]
    assert bench.leader.safe.durable == 0
    for peer in (A, B, C):
        assert not messages(bench.hear(peer, StateRoot(0, VERSION, ROOT)), Evicted)
    assert bench.leader.certified == Snapshot(VERSION, (ROOT,))
    assert bench.leader.safe.durable == durable


@pytest.mark.parametrize(("on_disk", "roots"), [(4, ("earlier",)), (8, ("former",))])
def test_the_last_peer_of_a_stage_is_saved_whatever_later_version_is_on_disk(
    on_disk: int, roots: tuple[str, ...]
) -> None:
    alone = replace(OPENED, roster=Roster((PEERS[:1],), TRAINERS))
    told = [replace(report(who, alone), indices=()) for who in (TRAINERS[2], PEERS[0])]
    own = replace(report(TRAINERS[1], alone), indices=())
    saving = replace(SETTINGS, checkpoint_every=1, steps=20)
    bench = Bench(told, own, saving, on_disk=on_disk, roots=roots)
    assert bench.leader.safe.due(VERSION + 1)
    bench.hear(A, Drain())
    bench.leader.start_over()
    bench.leader.gather()
    assert not messages(try_open(bench.leader, bench.now), Released)
    assert (bench.leader.phase, bench.leader.version) == ("saving", VERSION)


def test_a_lost_stage_brings_all_stages_back_to_what_is_on_disk() -> None:
    """That version is whole, of whatever history; a stage of it beside one of the run's would be of none."""
    stages = ((member("a"), member("b")), (member("c", 1),))
    opened = replace(OPENED, roster=Roster(stages, TRAINERS))
    tried = Candidacy(TRAINERS[1], 4, EpochView(opened), 100.0)
    plan = Plan(2, 3)
    for who in (TRAINERS[1], TRAINERS[2], *stages[0]):
        told = replace(report(who, opened), root="")
        tried.report(who.process, told)
    estate = takeover_of(tried, plan, SETTINGS.learning_rate, 0.0, 100.0)
    disk = Snapshot(VERSION, ("former 0", "former 1"))
    leader = Leader(TRAINERS[1], plan, SETTINGS, 4, VERSION, disk.version, disk.roots)
    began = leader.take_over(estate, 100.0)
    granted = [(to, message.stage, message.certified) for to, message in messages(began, Granted)]
    assert granted == [(A, 0, disk), (B, 0, disk)]
    assert leader.lineage.name == "new"


def test_what_lies_beside_a_version_that_is_lost_is_doubted_again() -> None:
    """On the disk are versions of the history that was given up, with higher numbers."""
    bench = Bench([replace(told, root="") for told in peers()], on_disk=8, roots=("former",))
    safe = bench.leader.safe
    assert (safe.durable, fallback(safe)) == (0, 8)
    leader_has_written(safe, 6)
    bench.leader.handle(DiskChanged(8, "version 6 is gone", ("former",)), bench.now)
    doubted: Snapshot | None = safe.doubtful
    assert doubted == Snapshot(8, ("former",))
    assert (safe.durable, fallback(safe)) == (0, 8)
