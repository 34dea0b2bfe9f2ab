"""All runs of a `swarmflow chaos`: the undisturbed one, those under faults, what each has learnt, and the report."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
import transformers
from rich.console import Console
from torch import Tensor

from swarmflow.chaos.cast import ChaosError
from swarmflow.chaos.compare import Comparison, compare_bits, compare_within, first_other_loss, order_limits
from swarmflow.chaos.plain import Recipe, load_model, parameters, train, write_model
from swarmflow.chaos.report import Result, is_report, show, write
from swarmflow.chaos.run import ChaosOutcome, ChaosRun
from swarmflow.chaos.schedule import Schedule
from swarmflow.chaos.setup import CORPUS_BYTES, MICROBATCHES, OPTIMIZER, SEQ_LEN, SEQUENCES, Setup
from swarmflow.demo.corpus import write_corpus
from swarmflow.demo.screen import Screen
from swarmflow.errors import ConfigError, ForeignFileError, SwarmflowError
from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import LocalSwarm, environment, terminable
from swarmflow.ownership import check_file


@dataclass(frozen=True)
class Yardstick:
    """What a run should learn."""

    wanted: Mapping[str, Tensor]  # the final parameters
    limits: Mapping[str, float] | None  # how far each tensor may be off; None: every bit has to be the same
    losses: Mapping[int, float]  # by step
    against: str  # what it is compared with, in words

    def compare(self, found: Mapping[str, Tensor]) -> Comparison:
        """Compare it with the final parameters of a run."""
        if self.limits is None:
            return compare_bits(found, self.wanted, self.against)
        return compare_within(found, self.wanted, self.limits, self.against)


def run_all(setup: Setup) -> int:
    """Run everything, and return the exit code 0.

    Raises SwarmflowError, after the report, when a run failed or has learnt wrongly.
    """
    folder = Path(tempfile.mkdtemp(prefix="swarmflow-chaos-")) if setup.folder is None else setup.folder.absolute()
    claim(folder, setup, is_report)
    with terminable(), ForkServer(environment(threads=1), "swarmflow.chaos.sabotage") as forks:
        results = Campaign(setup, folder, forks).results()
    show(results, setup, Console(highlight=False))
    if setup.json_file is not None:
        write(results, setup, setup.json_file)
    failures = [f"{result.name}: {result.failure}" for result in results if result.failure is not None]
    if failures:
        raise ChaosError(
            f"{len(failures)} of {len(results)} runs failed; {'; '.join(failures)}; all logs are in {folder}"
        )
    if setup.folder is None:
        shutil.rmtree(folder)
    return 0


def claim(folder: Path, setup: Setup, is_own: Callable[[IO[bytes]], bool]) -> None:
    """Make the folder of a campaign.

    is_own: whether a file is a report, which may be replaced. Raises ForeignFileError for another one, and for a folder
    that is not empty: the runs of an earlier campaign would be resumed.
    """
    if setup.json_file is not None:
        check_file(setup.json_file, "--json", is_own)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ForeignFileError(f"--folder {folder} is not empty: give another one")
    except OSError as error:
        raise ConfigError(f"--folder {folder} cannot be made: {error.strerror}") from None


class Campaign:
    """The runs, one after another, under one folder."""

    def __init__(self, setup: Setup, folder: Path, forks: ForkServer) -> None:
        torch.set_num_threads(1)
        transformers.utils.logging.disable_progress_bar()
        self._setup, self._folder, self._forks = setup, folder, forks
        self._model, self._corpus = folder / "model", folder / "corpus.txt"
        write_corpus(self._corpus, CORPUS_BYTES)
        write_model(transformers.AutoConfig.for_model(**setup.model_config()), self._model)

    def results(self) -> list[Result]:
        """Return the results of all runs; exact ones are not made where the undisturbed one fails, their reference."""
        setup, found = self._setup, list[Result]()
        yardstick = self._plain() if setup.codec == "none" else None
        if setup.undisturbed:
            result = self._run(None, 0.0, yardstick)
            found.append(result)
            if setup.accumulate == "exact":
                if result.ended is None:
                    return found
                wanted = parameters(load_model(result.ended.final))
                yardstick = Yardstick(wanted, None, result.ended.losses, "the undisturbed swarm")
        found += [self._run(seed, rate, yardstick) for seed, rate in setup.disturbed]
        return found

    def _plain(self) -> Yardstick:
        recipe = Recipe(self._setup.steps, SEQ_LEN, MICROBATCHES, SEQUENCES, OPTIMIZER)
        wanted, losses = train(self._model, self._corpus, recipe)
        reordered, _ = train(self._model, self._corpus, recipe, reverse=True)
        return Yardstick(wanted, order_limits(wanted, reordered), dict(enumerate(losses)), "one plain process")

    def _run(self, seed: int | None, rate: float, yardstick: Yardstick | None) -> Result:
        name = "undisturbed" if seed is None else f"seed-{seed}-rate-{rate:g}"
        setup, folder = self._setup, self._folder / name
        schedule = Schedule(seed or 0, rate, setup.hit_trainers, setup.lose_stage)
        with Screen(setup.steps) as screen:
            screen.say(f"{name}: {setup.steps} steps", style="bold")
            try:
                with LocalSwarm(folder, setup.run_settings(self._model, self._corpus), forks=self._forks) as swarm:
                    ended = ChaosRun(swarm, setup, schedule, screen).complete()
            except SwarmflowError as error:
                for line in (str(error), *getattr(error, "__notes__", ())):
                    screen.say(line, style="bold red")
                return Result(seed, rate, None, None, str(error))
            comparison = None if yardstick is None else yardstick.compare(parameters(load_model(ended.final)))
            failure = _failure(ended, comparison, yardstick)
            screen.say(
                f"{name}: {comparison or 'nothing to compare with'}", style="bold" if failure is None else "bold red"
            )
        return Result(seed, rate, ended, comparison, failure)


def _failure(ended: ChaosOutcome, comparison: Comparison | None, yardstick: Yardstick | None) -> str | None:
    if comparison is None or yardstick is None or comparison.holds:
        return None
    step = first_other_loss(ended.losses, yardstick.losses, exactly=yardstick.limits is None)
    return f"it {comparison}{'' if step is None else f'; the first step with another loss is {step}'}"
