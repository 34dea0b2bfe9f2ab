"""Compares what two states of the code decide, name by name: `make same BEFORE=COMMIT`. Not a test.

Every event that a machine handles and every action that it returns, in 300 fuzz seeds, is written in a form without
names: a class is the number of its first appearance, a field is its position, an enum member is its place among the
members, the name of a message is its place in the protocol. Two commits that differ in names and places only write the
same digests, and lists of names whose pairs are the mapping from the old names to the new ones. Other texts (reasons,
log lines, metrics) are compared as they are. The rows of every experiment's reduced version are compared too, but for
the metrics that measure the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.messages import Message
from swarmflow.simulator.fuzz import play

ROOT = Path(__file__).parents[2]
SEEDS = 300
PROCESSES = 2
MESSAGES = {kind.__name__: f"message {place}" for place, kind in enumerate(get_args(Message))}
ROWS = Path("out/experiments-quick")
OF_THE_MACHINE = re.compile(r"CPU|memory|decision \(ms\)|of a core|over 5 ms|calls of functions")  # metrics that vary


@dataclass(slots=True)
class Recorder:
    """Digests values in a form without names.

    names: of the classes, in the order of their first appearance. values: how many events and actions were digested.
    """

    names: list[str] = field(default_factory=list)
    values: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _writers: dict[type, Callable[[Any], str]] = field(default_factory=dict)

    def add(self, value: object) -> None:
        """Digest an event, an action or a moment."""
        self.values += 1
        self._digest.update(self.text(value).encode())

    def digest(self) -> str:
        """Of everything so far, in hex."""
        return str(self._digest.hexdigest())

    def text(self, value: object) -> str:
        """A value in full, without names of ours."""
        kind = type(value)
        writer = self._writers.get(kind)
        if writer is None:
            writer = self._writers[kind] = self._writer(kind)
        return writer(value)

    def _writer(self, kind: type) -> Callable[[Any], str]:
        if kind is str:
            return lambda value: MESSAGES.get(value) or repr(value)
        if kind in (int, float, bytes, bool, type(None)):
            return repr
        if issubclass(kind, set | frozenset):
            return lambda value: f"{{{','.join(sorted(map(self.text, value)))}}}"
        if issubclass(kind, dict):
            return lambda value: f"{{{','.join(f'{self.text(k)}:{self.text(v)}' for k, v in value.items())}}}"
        if kind in (tuple, list):
            return lambda value: f"[{','.join(map(self.text, value))}]"
        return self._named_writer(kind)

    def _named_writer(self, kind: type) -> Callable[[Any], str]:
        """For a class of our own."""
        number = len(self.names)
        self.names.append(f"{kind.__module__}.{kind.__qualname__}")
        if issubclass(kind, Enum):
            places = {member: place for place, member in enumerate(kind)}
            return lambda value: f"{number}.{places[value]}"
        if issubclass(kind, tuple):
            self.names[-1] += f"({', '.join(getattr(kind, '_fields', ()))})"
            return lambda value: f"{number}[{','.join(map(self.text, value))}]"
        if is_dataclass(kind):
            self.names[-1] += f"({', '.join(each.name for each in fields(kind))})"
            read = [attrgetter(each.name) for each in fields(kind)]
            return lambda value: f"{number}({','.join([self.text(get(value)) for get in read])})"
        return lambda value: str(number)


def record(seed: int) -> dict[str, Any]:
    """What the machines of one fuzz seed decide, and how the seed ends."""
    recorder = Recorder()
    with _recording(recorder):
        try:
            play(seed)
            end = "holds"
        except Exception as error:  # a seed that fails has to fail in the same way
            end = f"{type(error).__name__}: {error}"
    return {"seed": seed, "digest": recorder.digest(), "values": recorder.values, "end": end, "names": recorder.names}


@contextmanager
def _recording(recorder: Recorder) -> Iterator[None]:
    """Within the block, the recorder is given all that machines handle and return."""
    own = {kind: kind.handle for kind in (PeerMachine, TrainerMachine)}

    def recorded(handle: Callable[..., Any]) -> Callable[..., Any]:
        def handle_and_record(machine: object, event: object, now: float) -> list[Any]:
            recorder.add(now)
            recorder.add(event)
            actions: list[Any] = handle(machine, event, now)
            for action in actions:
                recorder.add(action)
            return actions

        return handle_and_record

    for kind, handle in own.items():
        kind.handle = recorded(handle)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, handle in own.items():
            kind.handle = handle  # type: ignore[method-assign]


# --- two states of the code -------------------------------------------------------------------------------------------


def record_tree(tree: Path, first: int, seeds: int) -> list[dict[str, Any]]:
    """The records of seeds by the code of a checkout. Raises CalledProcessError."""
    # Pretended signatures are hashes (simulator/proofs.py): the same ones in every process.
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

    def share(number: int) -> list[dict[str, Any]]:
        mine = [str(seed) for seed in range(first + number, first + seeds, PROCESSES)]
        command = [sys.executable, "-m", "tests.simulation.traces", "record", *mine]
        done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(PROCESSES) as pool:
        records = [each for part in pool.map(share, range(PROCESSES)) for each in part]
    return sorted(records, key=lambda each: int(each["seed"]))


def differences(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Seeds that do not decide alike, a line each; and the names that have changed, old to new."""
    wrong, mapping = [], dict[str, str]()
    for old, new in zip(before, after, strict=True):
        if (old["digest"], old["end"]) != (new["digest"], new["end"]):
            ends = f"{old['values']} values, {old['end']}; then {new['values']} values, {new['end']}"
            wrong.append(f"seed {old['seed']}: {ends}")
            continue
        for name, renamed in zip(old["names"], new["names"], strict=True):
            if mapping.setdefault(name, renamed) != renamed:
                wrong.append(f"seed {old['seed']}: {name} is now {mapping[name]} and {renamed}")
    if len(set(mapping.values())) < len(mapping):
        wrong.append("two classes of before are one now")
    return wrong, {old: new for old, new in sorted(mapping.items()) if old != new}


def other_rows(before: Path, after: Path) -> list[str]:
    """Figures of experiments that are not the same in two folders, a line each, but for those of the machine."""
    wrong = []
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    for name in names:
        one, other = (json.loads((folder / name).read_text(encoding="utf-8")) for folder in (before, after))
        if len(one) != len(other):
            wrong.append(f"{name}: {len(one)} rows, then {len(other)}")
        for old, new in zip(one, other, strict=False):
            figures = [each for each in ("mean", "std", "n", "paper") if old[each] != new[each]]
            if figures and not OF_THE_MACHINE.search(old["metric"]):
                what = f"{old['setting']}, {old['policy']}, {old['metric']}"
                wrong.append(f"{name}: {what}: {[(old[each], new[each]) for each in figures]}")
    return wrong


def _rows_of(tree: Path) -> Path:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run([sys.executable, "-m", "experiments.common.quick"], cwd=tree, env=environment, check=True)
    return tree / ROWS


def main(arguments: list[str] | None = None) -> int:
    """0 when both states of the code decide alike."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.traces", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="print a record a seed, as a line of JSON")
    recording.add_argument("seeds", type=int, nargs="+")
    comparing = commands.add_parser("same", help="compare two commits")
    comparing.add_argument("before", help="the earlier commit")
    comparing.add_argument("after", nargs="?", default="HEAD", help="the later one")
    comparing.add_argument("--first", type=int, default=0)
    comparing.add_argument("--seeds", type=int, default=SEEDS)
    comparing.add_argument("--names", type=Path, help="write the names that have changed here, as JSON")
    comparing.add_argument("--no-experiments", action="store_true", help="only the fuzz seeds")
    chosen = parser.parse_args(arguments)
    if chosen.command == "record":
        for seed in chosen.seeds:
            print(json.dumps(record(seed)), flush=True)
        return 0
    return _same(chosen)


def _same(chosen: argparse.Namespace) -> int:
    with _checkout(chosen.before) as before, _checkout(chosen.after) as after:
        records = [record_tree(tree, chosen.first, chosen.seeds) for tree in (before, after)]
        wrong, mapping = differences(*records)
        if not chosen.no_experiments:
            wrong += other_rows(_rows_of(before), _rows_of(after))
    for line in wrong:
        print(line)
    if chosen.names is not None:
        chosen.names.write_text(json.dumps(mapping, indent=1) + "\n", encoding="utf-8")
    values = sum(int(each["values"]) for each in records[1])
    print(f"{chosen.seeds} seeds, {values:,} events, actions and moments: {len(wrong) or 'no'} differences")
    print(f"{len(mapping)} classes have other names or fields")
    return int(bool(wrong))


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A commit in a folder of its own. Raises SystemExit where it has no traces."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            if not (tree / "tests/simulation/traces.py").is_file():
                raise SystemExit(f"{commit} is from before `make same`: name a later commit")
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
