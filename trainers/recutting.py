"""A run that goes on with another cut: its newest version is cut anew before a trainer leads it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from swarmflow.activity import doing
from swarmflow.compute.base_weights import base_roots
from swarmflow.compute.checkpoint import Checkpoint, remove_all_but
from swarmflow.compute.graphs.description import is_graph
from swarmflow.compute.layout import StageLayout, layout_in_run
from swarmflow.compute.recutting import cut_anew
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.durability.memories import NOTHING
from swarmflow.errors import CheckpointError, ConfigError
from swarmflow.files import require_room
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from swarmflow.runtime.operations.folders import checkpoints_folder
from trainers.found import newest_version
from trainers.plan import new_manifest
from trainers.run import Run

log = logging.getLogger("swarmflow")


def go_on_with_another_cut(run: Run, before: Manifest) -> Manifest:
    """Return the manifest of a run whose newest version has been cut as RUN.toml says, in this trainer's folder.

    before: as the run was cut until now, which has no leader. The files of that cut stay where they are, and an attempt
    that is cut short changes nothing. Takes as long as the disk does. Raises ConfigError where the run cannot be cut
    anew, AuthorityError without the owner's key, and what `new_manifest` and the disk raise.
    """
    if before.boundary is not None:
        raise ConfigError(
            f'a run with model.boundary = "{before.boundary}" cannot be cut anew, since the layers of its boundaries '
            f"belong to its cut: set model.cut = {list(before.cut)}"
        )
    if before.delay:
        raise ConfigError(
            f"a run with train.delay = {before.delay} cannot be cut anew, since what it has summed up waits for the "
            f"next step: set model.cut = {list(before.cut)}"
        )
    run.authority.require_owner()
    source = _newest(run, before)
    _check_frozen(before, run.config.model.path)
    made = new_manifest(run.config, run.corpus, before.run_id)
    if is_graph(before.model) and made.model != before.model:
        raise ConfigError(
            "the run's module is not the one that it began with: install the versions of then, or begin another run"
        )
    after = replace(
        before,
        cut=made.cut,
        costs=made.costs,
        parameters=made.parameters,
        tied=made.tied,
        shared=made.shared,
        computed_parameters=made.computed_parameters,
        hidden_size=made.hidden_size,
        base=made.base,
        config=made.config,
        cuts=before.cuts + 1,
    )
    cuts = f"cut before the blocks {list(before.cut)} until now and before {list(after.cut)} from now on"
    if source is not None:
        _write(run, before, after, source)
        log.warning("version %d is %s; the former files stay in %s", source.version, cuts, source.path.parent)
    else:
        log.warning("the run is %s", cuts)
    # No peer holds the version in memory as it is cut now.
    run.folder.keep_former(replace(NOTHING, generation=run.folder.former.generation))
    run.folder.keep_begun()
    run.folder.keep_newest_seen(source.version if source is not None else 0)
    run.folder.keep_manifest(after)
    return after


def _check_frozen(before: Manifest, folder: Path | None) -> None:
    """Raises ConfigError where a folder has other frozen weights than those that a run has trained adapters beside."""
    if not before.base:
        return
    try:
        with doing(f"hashing the weights in {folder}"):
            found = base_roots(before, folder) if folder is not None else ()
    except CheckpointError:
        found = ()
    if found != before.base:
        raise ConfigError(
            f"model.path = {str(folder)!r} has other weights than those that the run began with: name a folder that "
            f"has them, or set model.cut = {list(before.cut)}"
        )


def _newest(run: Run, before: Manifest) -> Checkpoint | None:
    """Return the newest version of the run; None: it is its first one. Raises ConfigError where it is not on disk."""
    found = newest_version(run.folder, run.output, before.fingerprint)
    known = max(found.former.version, found.newest_seen)
    if known > found.version:
        raise ConfigError(
            f"the run has come to version {known}, and the newest one on this disk is {found.version}: start this "
            f"trainer with model.cut = {list(before.cut)}, let its peers come back, and end it with Ctrl-C, which "
            "writes the newest version; then change the cut"
        )
    return found.newest


def _write(run: Run, before: Manifest, after: Manifest, source: Checkpoint) -> None:
    """Write the version by the new cut. What an attempt has left that was cut short is removed."""
    folder = checkpoints_folder(run.folder.path, after)
    elements = [state_tensor_lengths(after, stage) for stage in range(after.stages)]
    try:
        remove_all_but(folder, ())
    except OSError as error:
        raise CheckpointError(f"{folder} is in the way and cannot be removed: {error.strerror or error}") from error
    require_room(f"version {source.version} with another cut", run.folder.path, sum(map(file_bytes, elements)))
    target = Checkpoint.begin(folder, source.version, after.fingerprint, after.stages)
    cut_anew(_layouts(before), _layouts(after), elements.__getitem__, source, target)


def _layouts(manifest: Manifest) -> Sequence[StageLayout]:
    return [layout_in_run(manifest, stage) for stage in range(manifest.stages)]
