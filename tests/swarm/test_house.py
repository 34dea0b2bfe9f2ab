"""A peer that nobody can connect to trains all the same, and is there where Prometheus asks for the whole swarm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.namespaces import ALLOWED, REASON, ROOT, WITHIN


@pytest.mark.swarm
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.exhaustive
@pytest.mark.skipif(not ALLOWED, reason=REASON)
def test_a_peer_in_a_home_network_trains_and_is_in_the_metrics_of_the_swarm(tmp_path: Path) -> None:
    command = [*WITHIN, "--mount", sys.executable, "-m", "tests.swarm.house", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    metrics = re.findall(r"^swarmflow_swarm_(\w+)(?:\{(.*)\})? (\S+)$", done.stdout, re.MULTILINE)
    found = {(name, labels): float(value) for name, labels, value in metrics}
    assert found, done.stderr
    assert found["reporting_peers", 'stage="0"'] == 1
    assert found["reach_peers", 'reach="unknown"'] == 1, "nobody could connect to it"
    [tokens] = [value for (name, _), value in found.items() if name == "peer_tokens_total"]
    assert tokens > 0
