"""All attacks of a `swarmflow chaos --attack`: one after another on a swarm, on another one after a broken promise."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from swarmflow.chaos.attacks.contest import AttackResult, Contest
from swarmflow.chaos.attacks.kinds import AttackKind, chosen
from swarmflow.chaos.attacks.reference import Reference
from swarmflow.chaos.attacks.table import is_attack_report, show, write
from swarmflow.chaos.campaign import claim
from swarmflow.chaos.cast import ChaosError
from swarmflow.chaos.plain import Recipe, write_model
from swarmflow.chaos.setup import CORPUS_BYTES, OPTIMIZER, SEQ_LEN, SEQUENCES, Setup
from swarmflow.demo.corpus import write_corpus
from swarmflow.errors import SwarmflowError
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, environment, terminable

MICROBATCHES = 8  # fewer than under faults: an attack needs many steps more than long ones
WIDTH = 130  # of the table, in characters, where it goes into a file
STEPS = 100_000  # the run goes on until its last attack is over


def run_attacks(setup: Setup) -> int:
    """Run all attacks, and return the exit code 0.

    Raises SwarmflowError, after the report, when a promise was broken.
    """
    folder = Path(tempfile.mkdtemp(prefix="swarmflow-attack-")) if setup.folder is None else setup.folder.absolute()
    claim(folder, setup, is_attack_report)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with terminable(), ForkServer(environment(threads=1), "swarmflow.chaos.attacks.member") as forks:
        results = AttackCampaign(setup, folder, forks).results(list(chosen(setup.attacks)))
    show(results, Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH))
    if setup.json_file is not None:
        sizes = {"stages": setup.stages, "peers": setup.peers, "trainers": setup.trainers}
        write(results, {**sizes, "microbatches": MICROBATCHES}, setup.json_file)
    failures = [f"{result.kind.name}: {result.failure}" for result in results if result.failure is not None]
    if failures:
        raise ChaosError(
            f"{len(failures)} of {len(results)} attacks broke a promise; {'; '.join(failures)}; "
            f"all logs are in {folder}"
        )
    if setup.folder is None:
        shutil.rmtree(folder)
    return 0


class AttackCampaign:
    """The swarms, one after another, under one folder."""

    def __init__(self, setup: Setup, folder: Path, forks: ForkServer) -> None:
        self._setup, self._folder, self._forks = setup, folder, forks
        self._console = Console(highlight=False)
        self._model, self._corpus = folder / "model", folder / "corpus.txt"
        write_corpus(self._corpus, CORPUS_BYTES)
        write_model(transformers.AutoConfig.for_model(**setup.model_config()), self._model)

    def results(self, kinds: list[AttackKind]) -> list[AttackResult]:
        """Return the results of all attacks, in this order."""
        found: list[AttackResult] = []
        while len(found) < len(kinds):
            found += self._swarm(kinds[len(found) :])
        return found

    def _swarm(self, kinds: list[AttackKind]) -> list[AttackResult]:
        """Return the results of the first of these attacks, up to one that breaks a promise, or needs a fresh swarm."""
        found: list[AttackResult] = []
        try:
            with (
                LocalSwarm(self._folder / f"from-{kinds[0].name}", self._run_settings(), forks=self._forks) as swarm,
                Contest(swarm, self._setup) as contest,
            ):
                while len(found) < len(kinds):
                    kind = kinds[len(found)]
                    if found and (found[-1].failure or kind.fresh):
                        break
                    self._say(f"{kind.name}: {kind.does}")
                    found.append(contest.attack(kind))
        except SwarmflowError as error:  # of a process that does not start
            found.append(AttackResult(kinds[len(found)], failure=str(error)))
        return self._compared(found)

    def _compared(self, results: list[AttackResult]) -> list[AttackResult]:
        """Compare what was learnt, and return the results up to the first attack after which it is something else.

        The swarm has ended: it would be slow beside the plain loop, and the plain loop would have more steps to do.
        """
        recipe = Recipe(STEPS, SEQ_LEN, MICROBATCHES, SEQUENCES, OPTIMIZER)
        reference, found = Reference(self._model, self._corpus, recipe), list[AttackResult]()
        for result in results:
            found.append(result)
            if result.export is not None:
                comparison = reference.compare(result.export)
                result.same = comparison.holds
                if not comparison.holds:
                    result.failure = f"the run {comparison}"
            if result.failure is not None:
                break
        for result in found:
            self._say(f"{result.kind.name}: {result.failure or 'promises kept'}", "bold red" if result.failure else "")
        return found

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def _run_settings(self) -> dict[str, dict[str, Any]]:
        settings = self._setup.run_settings(self._model, self._corpus)
        settings["run"] |= {"name": "attacked", "keep_exports": 0}
        settings["train"] |= {"steps": STEPS, "microbatches": MICROBATCHES}
        return settings
