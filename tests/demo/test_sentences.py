"""What the demonstration says of each event."""

from __future__ import annotations

from typing import Any

import pytest

from swarmflow.demo.sentences import marks_of, sentence_of

NAMES = {"aaaaaa": "peer-1", "bbbbbb": "peer-4", "cccccc": "trainer-1"}


def event(kind: str, text: str, peer: str = "", stage: int = -1, level: str = "info") -> dict[str, Any]:
    return {"seq": 1, "time": 7.0, "kind": kind, "level": level, "text": text, "peer": peer, "stage": stage, "step": 40}


def view(*peers: str, hops: tuple[tuple[int, int, str, str], ...] = (), step: int = 40) -> dict[str, Any]:
    stages = [[], [{"id": name} for name in peers], []]
    return {
        "step": step,
        "microbatches": 8,
        "stages": [{"stage": number, "peers": those} for number, those in enumerate(stages)],
        "hops": hops,
    }


DIED = event("died", "aaaaaa.0001 is gone: its connection broke", "aaaaaa.0001", 1)
HOPS = ((0, 1, "aaaaaa.0001", "done"), (1, 1, "aaaaaa.0001", "done"), (2, 1, "bbbbbb.0002", "done"))


def test_of_a_death_it_says_what_was_held_and_who_has_the_same() -> None:
    said = sentence_of(DIED, view("aaaaaa.0001", "bbbbbb.0002", hops=HOPS), NAMES)
    assert said.text.startswith("peer-1 is gone: its connection broke. With it went its gradients of 2 microbatches")
    assert "peer-4 has the same weights" in said.text
    assert "red" in said.style


def test_of_a_death_after_an_older_view_it_counts_no_gradients() -> None:
    said = sentence_of(DIED, view("aaaaaa.0001", "bbbbbb.0002", hops=HOPS, step=39), NAMES).text
    assert "With it went whatever it was computing." in said
    assert "peer-4 has the same weights" in said


def test_of_the_last_peer_of_a_stage_it_does_not_say_that_another_has_its_weights() -> None:
    said = sentence_of(DIED, view("aaaaaa.0001"), NAMES).text
    assert "No other peer has its stage" in said
    assert "the same weights" not in said


@pytest.mark.parametrize(("kind", "stage"), [("died", 1), ("repaired", -1)])
def test_an_event_before_the_first_view_has_a_sentence_too(kind: str, stage: int) -> None:
    assert sentence_of(event(kind, "aaaaaa.0001 is gone", "aaaaaa.0001", stage), None, NAMES).text.endswith(".")


def test_of_a_repair_it_says_that_the_step_is_whole() -> None:
    text = "5 microbatches were done again on stage 1 for aaaaaa.0001: 5 by bbbbbb.0002"
    said = sentence_of(event("repaired", text, stage=1), view(), NAMES).text
    assert said.startswith("5 microbatches were done again on stage 1 for peer-1: 5 by peer-4. Step 41 has all 8")


def test_names_and_reasons_are_harmless_and_unknown_processes_keep_their_ids() -> None:
    said = sentence_of(event("other", "peer zzzzzz.0009 says \x1b[31mred"), None, NAMES).text
    assert said == "Peer zzzzzz.0009 says \\x1b[31mred."


def test_a_finished_repair_and_a_newcomer_are_in_the_picture() -> None:
    text = "1 microbatch was done again on stage 1 for aaaaaa.0001: 1 by bbbbbb.0002"
    [repaired] = marks_of(event("repaired", text, stage=1), NAMES)
    [joined] = marks_of(event("serving", "peer bbbbbb.0002 has loaded stage 1", "bbbbbb.0002", 1), NAMES)
    assert (repaired.time, repaired.kind) == (7.0, "repaired")
    assert repaired.label == "1 microbatch was done again on stage 1 for peer-1: 1 by peer-4"
    assert (joined.kind, joined.label) == ("joined", "peer-4 joins stage 1")
    assert marks_of(event("repaired", "bbbbbb.0002 takes over", "bbbbbb.0002", 1), NAMES) == []
