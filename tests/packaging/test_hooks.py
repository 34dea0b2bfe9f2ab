"""What git and GitHub run of this repository exists in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_every_hook_is_a_target_of_the_makefile() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert hooks
    for hook in hooks:
        tool, *targets = hook["entry"].split()
        assert tool == "make"
        assert targets
        done = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    scripts = [step["run"] for step in steps if "run" in step]
    assert scripts == [".ci/run", ".ci/extended"]
    assert all(os.access(ROOT / script, os.X_OK) for script in scripts)
