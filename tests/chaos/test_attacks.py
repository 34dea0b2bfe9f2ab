"""The parts of `swarmflow chaos --attack` that need no swarm."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from swarmflow.chaos.attacks import forging, switch
from swarmflow.chaos.attacks.contest import AttackResult
from swarmflow.chaos.attacks.kinds import ALL, KINDS, NAMES, chosen
from swarmflow.chaos.attacks.member import LIES
from swarmflow.chaos.attacks.outsider import ATTACKS
from swarmflow.chaos.attacks.table import show, write
from swarmflow.core.protocol.messages import HopHandover, Message
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Member, Plan, ProcessId, Roster
from swarmflow.errors import ConfigError

PLAN = Plan(2, 8)
EPOCH = Epoch(0, 5)
ME = Member(ProcessId("me", 1), 0)
HANDOVERS = (HopHandover(ProcessId("trainer", 1), 0, FIRST_ATTEMPT, b"", b"signed"),)
FORGED: list[Message] = [
    forging.done(EPOCH, 1, 0),
    forging.ready(1, 5, 0),
    forging.overflow(EPOCH, 1),
    forging.not_finite(EPOCH, 1),
    forging.suspect(ME.process),
    forging.adopt(EPOCH, 1, 1, HANDOVERS),
    forging.forward(EPOCH, 1, 1, HANDOVERS),
    forging.relayed(ME.process, EPOCH, 1, 1),
    forging.commit(1, EPOCH, 2, 8),
    forging.member_failed(1, EPOCH, ME.process),
    forging.evicted(),
    forging.finished(5),
    forging.open_step(2, EPOCH, Roster(((ME,), ()), (Member(ProcessId("trainer", 1), -1),))),
    forging.elect(2, ME),
]


def result(**changes: object) -> AttackResult:
    found = AttackResult(KINDS[0], {"Done": 1}, step_s={"before": 1.0, "during": 1.2, "after": 1.1})
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_every_kind_has_an_attacker() -> None:
    assert LIES.keys() == {kind.name for kind in KINDS if kind.by == "member"}
    assert ATTACKS.keys() == {kind.name for kind in KINDS if kind.by != "member"}
    assert len(set(NAMES)) == len(KINDS)


def test_kinds_are_chosen_once_each_and_in_their_own_order() -> None:
    assert [kind.name for kind in chosen(("norms", "done", "norms"))] == ["done", "norms"]
    assert chosen((ALL, "done")) == KINDS
    with pytest.raises(ConfigError, match="--attack nothing: give done, "):
        chosen(("done", "nothing"))


@pytest.mark.parametrize("message", FORGED, ids=lambda message: type(message).__name__)
def test_forged_messages_are_wrong_by_their_sender_alone(message: Message) -> None:
    """Else they would be refused for their form, and no attack would try what is behind that check."""
    assert checks_of(PLAN).wrong(message, role="trainer") is None


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, None),
        ({"sent": {}}, "the attacker sent nothing, so nothing was tried"),
        ({"ended": ["peer-1"]}, "peer-1 ended"),
        ({"rejoined": ["peer-1", "peer-1"]}, "peer-1 had to join again"),
        ({"step_s": {"before": 1.0, "during": 1.7, "after": 1.0}}, "a step took 1.7 times as long"),
        ({"step_s": {"before": 1.0, "during": 1.7, "after": 1.4}}, None),
        ({"step_s": {"before": 1.0, "during": 1.0, "after": 1.6}}, "a step took 1.6 times as long afterwards"),
        ({"failure": "no step for 45 s", "step_s": {}}, "no step for 45 s"),
    ],
)
def test_a_broken_promise_is_one_line(changes: dict[str, object], broken: str | None) -> None:
    found = result(**changes)
    found.judge()
    assert found.failure == broken


def test_a_restart_of_the_trainers_costs_what_it_costs_and_no_more() -> None:
    [restart] = [kind for kind in KINDS if kind.restarts]
    found = result(kind=restart, rejoined=["peer-0"], step_s={"before": 1.0, "during": 9.0, "after": 1.0})
    found.judge()
    assert found.failure is None
    found.ended = ["peer-0"]
    found.judge()
    assert found.failure == "peer-0 ended"


def test_an_attacker_is_switched_on_and_off_by_files(tmp_path: Path) -> None:
    folder = tmp_path / "peer-4"
    assert (switch.current(folder), switch.sent(folder)) == ("", {})
    switch.begin(folder, "norms")
    switch.report(folder, {"Prepared altered": 3})
    assert (switch.current(folder), switch.sent(folder)) == ("norms", {"Prepared altered": 3})
    switch.end(folder)
    assert switch.current(folder) == ""


def test_the_table_and_the_figures_have_a_row_for_each_attack(tmp_path: Path) -> None:
    found = [
        result(sent={"Done": 30}, counted={"put_out": 1}, same=True),
        AttackResult(KINDS[1], failure="waited 60 s in vain for all to serve"),
    ]
    screen = io.StringIO()
    show(found, Console(width=120, file=screen))
    text = screen.getvalue()
    assert "30 Done" in text
    assert "1 put_out" in text
    assert "x1.09" in text, "against the slower of the two calm windows"
    write(found, {"microbatches": 8}, tmp_path / "figures.json")
    first, second = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["attacks"]
    assert (first["kind"], first["sent"], first["same"], first["failure"]) == ("done", {"Done": 30}, True, None)
    assert (second["kind"], second["same"]) == ("ready", None)
    assert second["failure"].startswith("waited 60 s")
