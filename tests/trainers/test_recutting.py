"""What a trainer does with a run whose cut has changed in RUN.toml: it goes on with the same state, or says why not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.boundary import Boundary
from swarmflow.compute.checkpoint import newest_complete
from swarmflow.compute.families import model_config
from swarmflow.compute.state_root import GRID
from swarmflow.core.durability.memories import NOTHING, Former
from swarmflow.errors import AuthorityError, ConfigError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.folders import checkpoints_folder
from tests.compute.finetuned import save_base
from tests.runtime.test_copy_keeper import written
from tests.trainers.test_before_begun import RUN, begun, opened
from trainers.authority import TrainerAuthority
from trainers.found import newest_version
from trainers.plan import new_manifest
from trainers.recutting import go_on_with_another_cut
from trainers.run import Run

VERSION = 4
RUN_OF_ADAPTERS = """
[run]
output = "out"
[model]
path = "{path}"
cut = [1]
[finetune]
lora = {{ rank = 2, alpha = 4 }}
[data]
path = "text"
seq_len = 16
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Run, Manifest]]:
    """A run of two stages at version 4, which RUN.toml wants in one stage from now on."""
    before = begun(tmp_path)
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        written(before, run.folder.checkpoints, VERSION)
        run.folder.keep_former(Former(VERSION, frozenset(("a",))))
        run.folder.keep_begun()
        run.config = replace(run.config, model=replace(run.config.model, stages=1, cut=()))
        yield run, before


def numbers_of(run: Run, of: Manifest) -> dict[tuple[int, str], bytes]:
    """The tensors of a cut's newest version, without the grids, whose blocks have gone through another cut."""
    checkpoint = newest_complete(checkpoints_folder(run.folder.path, of), of.fingerprint)
    assert checkpoint is not None
    found: dict[tuple[int, str], bytes] = {}
    for stage in range(of.stages):
        with checkpoint.state(stage) as state:
            names = [name for name in state.elements if not name.endswith(GRID)]
            found |= {(stage, name): state.read(name, 0, state.elements[name]) for name in names}
    return found


def test_it_goes_on_from_its_newest_version_with_the_new_cut(run: tuple[Run, Manifest]) -> None:
    own, before = run
    assert own.earlier() == before
    assert own.is_cut_otherwise(before)
    after = go_on_with_another_cut(own, before)
    assert (after.run_id, after.cut, after.cuts) == (before.run_id, (), 1)
    assert own.earlier() == own.folder.manifest() == after
    assert not own.is_cut_otherwise(after)
    found = newest_version(own.folder, own.output, after.fingerprint)
    assert found.newest is not None
    assert (found.version, found.newest.stages, found.former) == (VERSION, 1, NOTHING)
    assert numbers_of(own, before), "the former files stay"


def test_a_second_cut_and_one_after_an_attempt_that_was_cut_short(run: tuple[Run, Manifest]) -> None:
    own, before = run
    for name in ("stage-0.safetensors", "version-00000004/manifest.json"):
        left = checkpoints_folder(own.folder.path, replace(before, cuts=1)) / name
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_text("{")
    first = go_on_with_another_cut(own, before)
    own.config = replace(own.config, model=replace(own.config.model, stages=2, cut=(1,)))
    second = go_on_with_another_cut(own, first)
    assert (second.cut, second.cuts) == ((1,), 2)
    assert numbers_of(own, second) == numbers_of(own, before), "the bits are those of before"


def test_another_trainer_of_the_output_takes_up_the_last_cut(run: tuple[Run, Manifest], tmp_path: Path) -> None:
    own, before = run
    with ExitStack() as stack:
        beside = opened(stack, tmp_path, state="beside")
        beside.folder.keep_manifest(before)
        beside.folder.keep_begun()
        beside.config = own.config
        after = go_on_with_another_cut(own, before)
        assert beside.earlier() == after


def test_adapters_stay_beside_the_weights_that_they_were_trained_beside(tmp_path: Path) -> None:
    config = model_config(tomllib.loads(RUN.format(seed=0))["model"]["config"])
    path = save_base(config, tmp_path / "base") / "model.safetensors"
    run_toml = RUN_OF_ADAPTERS.format(path=path.parent)
    with ExitStack() as stack:
        run = opened(stack, tmp_path, run_toml=run_toml)
        before = new_manifest(run.config, run.corpus, run.authority.own_run())
        assert len(before.base) == 2
        run.folder.keep_manifest(before)
        written(before, run.folder.checkpoints, VERSION)
        run.folder.keep_begun()
        run.config = replace(run.config, model=replace(run.config.model, stages=1, cut=()))
        weights = path.read_bytes()
        path.write_bytes(weights[:-1] + b"\x01")
        with pytest.raises(ConfigError, match=r"other weights than those that the run began with.*model\.cut = \[1\]"):
            go_on_with_another_cut(run, before)
        path.write_bytes(weights)
        after = go_on_with_another_cut(run, before)
        assert len(after.base) == 1
        assert numbers_of(run, after)


def test_the_cut_that_was_measured_may_be_written_down(run: tuple[Run, Manifest]) -> None:
    own, before = run
    measured = replace(before, config={**before.config, "model.cut": None, "model.stages": 2})
    own.folder.keep_manifest(measured)
    own.config = replace(own.config, model=replace(own.config.model, stages=2, cut=(1,)))
    assert own.earlier() == measured
    assert not own.is_cut_otherwise(measured)
    own.check_joins(measured)


def test_a_trainer_that_finds_a_leader_with_another_cut_says_what_to_do(run: tuple[Run, Manifest]) -> None:
    own, before = run
    with pytest.raises(ConfigError, match=r"set model\.cut = \[1\], or end all its trainers before it is cut anew"):
        own.check_joins(before)


@pytest.mark.parametrize("lacks", ["a version", "the owner's key", "no delay", "no boundary"])
def test_what_cannot_be_cut_anew_is_left_as_it_was(run: tuple[Run, Manifest], lacks: str) -> None:
    own, before = run
    kind: type[SwarmflowError] = ConfigError
    if lacks == "a version":
        own.folder.keep_former(Former(VERSION + 3, frozenset(("a",))))
        reason = r"has come to version 7, and the newest one on this disk is 4: start"
    elif lacks == "the owner's key":
        for path in own.output.rglob("owner.key"):
            path.unlink()
        own.authority = TrainerAuthority(own.output / "state", own.folder.path, None)
        kind, reason = AuthorityError, r"bring back .*owner\.key"
    elif lacks == "no boundary":
        before = replace(before, boundary=Boundary("maxout", 2))
        reason = r'model\.boundary = "maxout:2" cannot be cut anew.*set model\.cut = \[1\]'
    else:
        before = replace(before, delay=1)
        reason = r"cannot be cut anew.*set model\.cut = \[1\]"
    kept = own.folder.manifest()
    with pytest.raises(kind, match=reason):
        go_on_with_another_cut(own, before)
    assert own.folder.manifest() == kept
    assert not checkpoints_folder(own.folder.path, replace(before, cuts=1)).exists()
