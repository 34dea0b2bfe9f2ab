"""`swarmflow plan --join`: what a leader tells of its links, and what is planned of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarmflow.core.machines.leader import Leader
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import Join, LinkRateReport, Ready
from swarmflow.core.protocol.types import Member
from swarmflow.errors import ConfigError, NetworkError
from swarmflow.plans.run import PlanFiles, main
from swarmflow.plans.running import of_run
from swarmflow.view.links import links_of
from tests.core.samples import process
from tests.core.test_leader import ME, SETTINGS
from tests.core.test_planning import FAST, PLAN, SLOW, four

ANSWER: dict[str, Any] = links_of(four().leader)


def read(**changed: Any) -> bytes:  # noqa: ANN401
    return msgspec.json.encode({**ANSWER, **changed})


def test_a_leader_tells_of_all_links_and_of_the_stages_as_they_are() -> None:
    fleet = of_run(read(), None)
    assert fleet.names == ("a", "b", "c", "d")
    assert (fleet.problem.pipelines, fleet.problem.stages) == (2, 2)
    assert list(fleet.problem.gradient_bytes) == [4_000_000, 4_000_000]
    assert fleet.problem.activation_bytes == PLAN.microbatches / 2 * PLAN.boundary_bytes
    assert fleet.problem.bytes_per_s[2][:2] == [FAST, SLOW]
    assert fleet.notes[0].startswith("7 of 12 directions of links are measured")
    assert fleet.notes[1].endswith("if 0 peers move")


def test_of_a_run_that_is_not_planned_the_links_in_use_are_known() -> None:
    leader = Leader(ME, PLAN, SETTINGS, 1, 0, 0)
    leader.start(0.0)
    for name, stage in (("a", 0), ("b", 1)):
        peer = process(name)
        leader.handle(Received(peer, Join("peer", "1.0", "run", Member(peer, stage))), 0.0)
        leader.handle(Received(peer, Ready(stage, 0, "root", 4)), 0.0)
    with pytest.raises(ConfigError, match=r'placement = "planned"'):
        of_run(msgspec.json.encode(links_of(leader)), None)
    leader.handle(Received(process("a"), LinkRateReport((), ((process("b"), 7e6),))), 0.0)
    fleet = of_run(msgspec.json.encode(links_of(leader)), 1.0)
    assert fleet.problem.bytes_per_s[0][1] == 7e6
    assert fleet.problem.pinned == {0: 0, 1: 1}, "they asked for these stages"
    assert fleet.problem.activation_bytes == PLAN.boundary_bytes


def test_who_is_fixed_beside_enough_others_is_in_no_pipeline() -> None:
    peers = [{"name": name, "stage": stage, "fixed": True} for name, stage in zip("abcd", (0, 0, 0, 1), strict=True)]
    fleet = of_run(read(peers=peers), None)
    assert (fleet.names, fleet.spare, fleet.problem.pipelines) == (("a", "d"), ("b", "c"), 1)


def test_names_of_peers_are_shown_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("\x1b[2Jx", "[/b]", "[red]y", ":smile:\u202e")
    peers = [{"name": name, "stage": stage, "fixed": True} for name, stage in zip(names, (0, 0, 0, 1), strict=True)]
    main(of_run(read(peers=peers), None), "megatron", False, PlanFiles())
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert all(shown in out for shown in ("\\x1b[2Jx", "[/b]", "[red]y", ":smile:\\u202e"))


def test_what_is_no_answer_is_said_to_be_none() -> None:
    for broken in (
        b"{}",
        read(stages=0),
        read(gradient_bytes=[1]),
        read(links=[[0, 4, 0.1, 1e6]]),
        read(links=[[1, 1, 0.1, 1e6]]),
        read(links=[[0, 1, -0.1, 1e6]]),
        read(links=[[0, 1, 0.1, 0.0]]),
        read(peers=[{"name": "a", "stage": 2, "fixed": False}] * 4),
    ):
        with pytest.raises(NetworkError, match="cannot be read"):
            of_run(broken, None)
    few = read(peers=[{"name": "a", "stage": 0, "fixed": True}] * 2, links=[[0, 1, 0.1, 1e6]])
    with pytest.raises(ConfigError, match="the 2 peers of the run cannot serve its 2 stages"):
        of_run(few, None)
