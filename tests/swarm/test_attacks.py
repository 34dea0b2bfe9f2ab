"""`swarmflow chaos --attack`: liars beside a swarm of real processes, which learns what it would learn without them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swarmflow.chaos.attacks.kinds import NAMES
from tests.swarm.commands import started, swarmflow

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

FINISH_S = 240.0
SLOWER = "a step took "
SMALL = ("--stages", "2", "--peers", "4", "--trainers", "1")


def attacked(folder: Path, kinds: Sequence[str], finish_s: float) -> dict[str, dict[str, Any]]:
    """The figures of swarms under these attacks, by kind. Other tests run beside this one: no time is judged."""
    figures = folder / "figures.json"
    options = [option for kind in kinds for option in ("--attack", kind)]
    where = ("--folder", str(folder / "swarms"), "--json", str(figures))
    with started(folder / "chaos.log", "chaos", *options, *SMALL, *where) as chaos:
        assert chaos.process.wait(finish_s) in (0, 1), chaos.tail()
        attacks = json.loads(figures.read_text(encoding="utf-8"))["attacks"]
        broken = [attack for attack in attacks if not (attack["failure"] or SLOWER).startswith(SLOWER)]
        assert not broken, chaos.tail()
    return {attack["kind"]: attack for attack in attacks}


@pytest.mark.extended
@pytest.mark.exhaustive
def test_a_swarm_learns_the_same_beside_a_liar_an_accuser_of_others_and_a_stranger(tmp_path: Path) -> None:
    found = attacked(tmp_path, ("norms", "ready", "replay"), FINISH_S)
    assert [attack["same"] for attack in found.values()] == [True] * 3
    norms, ready, replay = found["norms"], found["ready"], found["replay"]
    assert norms["sent"]["Prepared altered"] > 0
    assert norms["counted"]["steps_restarted"] > 0
    assert ready["sent"]["Ready"] > 0
    assert replay["sent"]["hellos refused"] > 0
    assert "hellos welcome" not in replay["sent"]
    assert replay["counted"]["frames_refused:hello"] >= replay["sent"]["hellos refused"]


@pytest.mark.extended
@pytest.mark.exhaustive
def test_a_swarm_keeps_its_promises_under_every_attack(tmp_path: Path) -> None:
    found = attacked(tmp_path, NAMES, len(NAMES) * FINISH_S)
    assert list(found) == list(NAMES)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--attack", "don"], "--attack don: give done, "),
        (["--attack", "done", "--codec", "blockwise8"], "--attack needs --codec none"),
        (["--attack", "done", "--stages", "1"], "two --stages or more"),
    ],
)
def test_what_cannot_be_run_is_one_line(options: list[str], expected: str) -> None:
    assert expected in swarmflow("chaos", *options).complaint
