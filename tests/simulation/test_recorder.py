"""The recording of a simulated run: what a viewer sees, at no cost to what is simulated."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from swarmflow.core.protocol.messages import PeerSummary
from swarmflow.errors import ConfigError
from swarmflow.forecast.frames import RecordedFrames
from swarmflow.forecast.recorder import Recorder
from swarmflow.forecast.simulation import Simulation
from swarmflow.view.run_view import summary_of
from tests.simulation.samples import CHURN, PIPELINE, scenario

Recorded = tuple[dict[str, Any], dict[str, object], list[str]]  # the recording of a scenario, the report, the trace


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Of peers that come and go."""
    return recorded(tmp_path_factory.mktemp("churn"), CHURN)


def recorded(folder: Path, text: str, frames: RecordedFrames | None = None) -> Recorded:
    lines: list[str] = []
    simulation = Simulation(scenario(folder, text), 5, "swarmflow", lines.append)
    recorder = Recorder(simulation) if frames is None else Recorder(simulation, frames)
    report = simulation.run()
    return _read(b"".join(recorder.recording(report))), report.as_json(), lines


def _read(text: bytes) -> dict[str, Any]:
    """JSON as browsers read it, which know no NaN."""
    found: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the recording"))
    return found


def test_the_simulation_is_the_same_and_so_is_the_recording(tmp_path: Path, churn: Recorded) -> None:
    lines: list[str] = []
    alone = Simulation(scenario(tmp_path, CHURN), 5, "swarmflow", lines.append).run()
    assert churn[1:] == (alone.as_json(), lines)
    assert recorded(tmp_path, PIPELINE) == recorded(tmp_path, PIPELINE)


def test_it_has_the_views_events_and_steps_of_the_whole_run(churn: Recorded) -> None:
    recording, report, trace = churn
    assert recording["duration_s"] == report["virtual_s"]
    times = [frame["t"] for frame in recording["frames"]]
    assert times == sorted(times)
    assert (times[0] < 0.1, times[-1]) == (True, recording["duration_s"])
    views = [frame["view"] for frame in recording["frames"]]
    assert [view["step"] for view in views] == sorted(view["step"] for view in views)
    assert (views[0]["phase"], views[-1]["phase"], views[-1]["step"]) == ("gathering", "finished", 9)
    assert [step["step"] for step in recording["steps"]] == list(range(9))
    rows: Any = report["iterations"]
    for step, row in zip(recording["steps"], rows, strict=True):
        assert (step["sent_bytes"], step["microbatches"]) == (row["wire_bytes"], 12)
        assert 0 < step["utilisation"] <= 1
        assert "loss" not in step
    kinds = {event["kind"] for event in recording["events"]}
    assert {"waiting", "serving", "died", "repaired", "finished"} <= kinds
    gone = {line.split()[1].partition(".")[0] for line in trace if line.endswith(" dies")}
    assert {event["peer"].partition(".")[0] for event in recording["events"] if event["kind"] == "died"} <= gone


def test_microbatches_are_seen_on_every_stage_and_peers_with_what_they_have_done(tmp_path: Path) -> None:
    recording, report, _ = recorded(tmp_path, PIPELINE)
    assert report["outcome"] == "finished"
    views = [frame["view"] for frame in recording["frames"]]
    hops = {(stage, state) for view in views for _, stage, _, state in view["hops"]}
    assert hops == {(stage, state) for stage in range(3) for state in ("forward", "done")}
    assert any(len(view["links"]) == 3 for view in views)
    ends = [peer for stage in views[-1]["stages"] for peer in stage["peers"]]
    for peer in ends:
        summary = peer["summary"]
        assert summary["microbatches"] == 4 * 4  # of each step, with the warm-up
        assert summary["compute_s"] == pytest.approx(4 * 4 * 3.0)
        assert (summary["used_s"], summary["wasted_s"]) == (pytest.approx(summary["compute_s"]), 0.0)
        assert summary["sent_bytes"] > 0
        assert summary["memory_bytes"] is None
        assert summary.keys() == summary_of(PeerSummary()).keys()
    assert views[0]["stages"][0]["peers"] == [] or views[0]["stages"][0]["peers"][0]["summary"] is None


def test_a_long_run_is_recorded_more_coarsely(tmp_path: Path) -> None:
    few, small = RecordedFrames(frames_max=20), RecordedFrames(bytes_max=100_000)
    for frames in (few, small):
        recording = recorded(tmp_path, PIPELINE, frames)[0]
        times = [frame["t"] for frame in recording["frames"][:-1]]
        assert len(times) > 5
        gaps = [late - early for early, late in itertools.pairwise(times)]
        assert max(gaps) < 2 * frames.every_s + 1.0  # a second may pass in which nothing happens
        assert times[0] < frames.every_s
        assert times[-1] > recording["duration_s"] - 2 * frames.every_s - 1.0
    assert 8 <= len(few.kept) <= 21
    assert sum(len(frame.text) for frame in small.kept[:-1]) <= 100_000


def test_a_view_that_is_larger_than_all_together_may_be_stays_the_only_one() -> None:
    frames = RecordedFrames(bytes_max=1)
    for second in range(100):
        frames.add(float(second), {"number": second})
    assert len(frames.kept) == 1
    assert frames.size_bytes == len(frames.kept[0].text)


def test_a_baseline_has_no_view(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the policy gpipe has no view: only swarmflow's own"):
        Recorder(Simulation(scenario(tmp_path, PIPELINE), 0, "gpipe"))
