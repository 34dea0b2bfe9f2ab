"""Carries out the steps of the CPU image without docker, and tries what they give: `make image-check`.

The instructions are read from docker/Dockerfile: COPY and RUN of the stages that install the package, into a fresh
folder. Left out: what needs root or another system (apt-get, useradd). TORCH_INDEX: the index that torch is installed
from; without it, those of pip's own configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
STAGES = ("sources", "build-cpu")
COMPILERS = ("gcc", "cc", "g++", "clang", "nvcc", "ld", "make")
METRICS_PORT = 19400
WAIT_S = 300.0


def instructions(dockerfile: str, stage: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage: (name, the rest of the line)."""
    joined = re.sub(r"\\\n\s*", " ", dockerfile)
    [body] = re.findall(rf"^FROM \S+ AS {stage}\n(.*?)(?=^FROM |\Z)", joined, re.MULTILINE | re.DOTALL)
    lines = [line for line in body.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


class Image:
    """A folder in which the steps of the image are carried out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "src"
        self.source.mkdir()
        self.environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    @property
    def program(self) -> Path:
        """Return the command that the image's entry point runs."""
        return self.root / "opt" / "swarmflow" / "bin" / "swarmflow"

    def build(self, dockerfile: str) -> None:
        """Carry out the steps that install the package."""
        for stage in STAGES:
            for name, rest in instructions(dockerfile, stage):
                if name == "COPY":
                    self._copy(rest.split())
                elif name == "RUN":
                    self.run(rest)
                elif name not in ("WORKDIR", "ARG"):
                    raise SystemExit(f"image-check: cannot carry out {name} of the stage {stage}")

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        for source in sources:
            to = self.source / (Path(source).name if target == "./" else target)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, to)

    def run(self, command: str) -> None:
        """Run a shell command as the image would, with its paths in this folder."""
        if not self.environment.get("TORCH_INDEX"):
            command = command.replace('--extra-index-url "${TORCH_INDEX}"', "")
        local = command.replace("/opt/swarmflow", str(self.root / "opt" / "swarmflow"))
        print(f"$ {command}", flush=True)
        path = f"{Path(sys.executable).parent}:{self.environment['PATH']}"
        subprocess.run(
            ["sh", "-c", local], cwd=self.source, env={**self.environment, "PATH": path}, check=True, timeout=1800
        )

    def check_content(self) -> None:
        """Fail where a compiler came along, or a command of pyproject.toml is missing."""
        found = [path.name for path in (self.root / "opt").rglob("*") if path.name in COMPILERS and path.is_file()]
        if found:
            raise SystemExit(f"image-check: compilers in the image: {found}")
        size = sum(path.lstat().st_size for path in (self.root / "opt").rglob("*") if not path.is_dir())
        print(f"/opt/swarmflow: {size / 1e6:.0f} MB, no compiler")

    def check_swarm(self) -> None:
        """Train the run of compose.yaml for some steps, with its health check, and stop its processes as it does."""
        run_file, invite = self.root / "run.toml", self.root / "invite"
        text = (DOCKER / "run.toml").read_text(encoding="utf-8")
        text = text.replace("/run-output", str(self.root / "out")).replace("steps = 2000", "steps = 4")
        code = self.source / "trainers" / "*.py"
        run_file.write_text(re.sub(r"^path = .*$", f'path = "{code}"', text, flags=re.MULTILINE), encoding="utf-8")
        listen = ("--listen", "127.0.0.1:0")
        trainer = self._start(
            "trainer", str(run_file), *listen, f"--invite-file={invite}", f"--metrics-port={METRICS_PORT}"
        )
        self._until(invite.exists, trainer)
        peers = [
            self._start("peer", "--join", invite.read_text().strip(), *listen, f"--metrics-port={METRICS_PORT + k}")
            for k in (1, 2)
        ]
        self._until(lambda: self.healthy(METRICS_PORT) and self.healthy(METRICS_PORT + 1), trainer)
        for process in (trainer, *peers):
            if process.wait(WAIT_S) != 0:
                raise SystemExit(f"image-check: {process.args!r} ended with {process.returncode}")
        if self.healthy(METRICS_PORT):
            raise SystemExit("image-check: a peer that has ended is healthy")
        if not (self.root / "out" / "final" / "config.json").is_file():
            raise SystemExit("image-check: the run has left no model")

    def healthy(self, port: int) -> bool:
        """Return whether the image's health check finds the process healthy."""
        command = [str(self.program), "health", "--metrics-port", str(port)]
        return subprocess.run(command, env=self.environment, capture_output=True, timeout=60).returncode == 0

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {**self.environment, "OMP_NUM_THREADS": "1", "HOME": str(self.root)}
        return subprocess.Popen([str(self.program), *arguments], env=environment, cwd=self.root)

    def _until(self, ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit("image-check: the trainer has ended, or took too long")
            time.sleep(0.2)


def main() -> None:
    """Build, look, and train."""
    with TemporaryDirectory(prefix="swarmflow-image-") as folder:
        began_s = time.monotonic()
        image = Image(Path(folder))
        image.build((DOCKER / "Dockerfile").read_text(encoding="utf-8"))
        print(f"installed in {time.monotonic() - began_s:.0f} s")
        image.check_content()
        image.check_swarm()
    print("image-check: the steps of the CPU image give a swarm that trains")


if __name__ == "__main__":
    main()
