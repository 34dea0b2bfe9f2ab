"""The hunt for faults divides its seeds among processes, and says how to hunt again."""

from __future__ import annotations

import pytest

from tests.simulation.hunt import main, shares


def test_each_seed_is_tried_by_one_process() -> None:
    for seeds in range(1, 8):
        tried = [seed for first, share in shares(5, seeds, 3) for seed in range(first, first + share)]
        assert tried == list(range(5, 5 + seeds))
    assert shares(0, 1, 2) == [(0, 1)]


def test_a_hunt_without_a_fault_ends_well_and_can_be_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["2", "--first", "13"]) == 0
    printed = capfd.readouterr().out
    assert "make fuzz SEEDS=2 FIRST=13" in printed
    assert "1 seeds from 13 on" in printed
    assert "1 seeds from 14 on" in printed
    assert "seeds a minute" in printed


def test_a_hunt_with_partitions_alone_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["2", "--first", "10", "--partitions"]) == 0
    printed = capfd.readouterr().out
    assert "make fuzz SEEDS=2 FIRST=10 PARTITIONS=1" in printed
    assert "1 had partitions aimed at phases" in printed


def test_a_process_that_fails_ends_the_hunt_badly(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert main(["4"]) == 1
    assert "4 seeds from " in capfd.readouterr().out


def test_no_seeds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["0"])
    assert ended.value.code == 2
    assert "must be at least 1" in capsys.readouterr().err
