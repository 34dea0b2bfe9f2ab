"""What a trainer finds when it starts, in its own state folder and those beside it: the run and its newest version."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swarmflow.compute.checkpoint import Checkpoint, checkpoints, newest_complete, newest_known, readable
from swarmflow.core.durability.memories import NOTHING, Former
from swarmflow.core.protocol.types import Holding, Snapshot
from swarmflow.errors import CheckpointError, ConfigError, IncompatibleError
from swarmflow.files import read_sealed
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.folders import kept_manifest
from trainers.state import StateFolder, as_former, as_number


@dataclass(frozen=True)
class OnDisk:
    """The versions on disk from which a trainer may go on."""

    newest: Checkpoint | None  # the newest version that is whole and correct
    newest_seen: int  # the newest version that was ever on a disk, by the files of the folders
    former: Former = NOTHING  # how far the run had come, with which peers: they may hold that version in memory
    parts: tuple[Holding, ...] = ()  # stages of later versions in the own folder, none of which is whole there

    @property
    def version(self) -> int:
        """The newest whole version, else 0."""
        return self.newest.version if self.newest is not None else 0

    @property
    def roots(self) -> tuple[str, ...]:
        """The roots of its files."""
        return self.newest.roots if self.newest is not None else ()

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """The stages on disk, as they are announced to other processes."""
        if self.newest is None:
            return self.parts
        return (Holding(Snapshot(self.version, self.roots), tuple(range(self.newest.stages))), *self.parts)


def newest_version(folder: StateFolder, output: Path, run: str) -> OnDisk:
    """Return the newest complete version of a run in this folder and in those of the trainers beside it.

    Corrupt versions are logged and left out, and set aside in this trainer's own folder.
    """
    found: list[Checkpoint] = []
    others = _other_folders(folder, output)
    seen = max(folder.newest_seen, *map(_newest_seen, others), 0)
    roots = [folder.checkpoints, *(root for path in others for root in sorted(path.glob("checkpoints*")))]
    for root in dict.fromkeys(path.absolute() for path in roots):
        try:
            checkpoint = newest_complete(root, run, mend=root == folder.checkpoints.absolute())
        except CheckpointError:
            checkpoint = None  # each was logged; others may have copies
        with suppress(CheckpointError):  # the folder cannot be listed
            seen = max(seen, newest_known(root, run))
        if checkpoint is not None:
            found.append(checkpoint)
    known = (folder.former, *map(_former, others))
    former = max(known, key=lambda each: each.version)
    former = replace(former, generation=max(each.generation for each in known))
    newest = max(found, key=lambda checkpoint: checkpoint.version, default=None)
    left = parts(folder.checkpoints, run, newest.version if newest is not None else 0)
    return OnDisk(newest, seen, former, left)


def parts(root: Path, run: str, after: int) -> tuple[Holding, ...]:
    """Return the stages in a folder of versions after this one, none of which is whole there."""
    later = [found for found in readable(root, run) if found.version > after and found.roots and found.stages_held]
    return tuple(Holding(Snapshot(found.version, found.roots), found.stages_held) for found in later)


def earlier_manifest(folder: StateFolder, output: Path) -> Manifest | None:
    """Return the manifest of the run in this folder or one beside it; one that has begun, and its last cut, come first.

    Raises CheckpointError where the own one is corrupt and there is no other.
    """
    found: list[tuple[bool, Manifest]] = []
    failure: CheckpointError | None = None
    try:
        own = folder.manifest()
        found += [(_has_begun(folder.path), own)] if own is not None else []
    except CheckpointError as error:
        failure = error
    for place in _other_folders(folder, output):
        manifest = _manifest_in(place)
        found += [(_has_begun(place), manifest)] if manifest is not None else []
    if not found and failure is not None:
        raise failure
    return max(found, key=lambda entry: (entry[0], entry[1].cuts), default=(False, None))[1]


def has_begun(folder: StateFolder, output: Path) -> bool:
    """Whether a step of the run was committed, by the files of this folder and those of the trainers beside it."""
    return any(_has_begun(place) for place in (folder.path, *_other_folders(folder, output)))


def check_joins(folder: StateFolder, output: Path, run_id: str, run: str | None = None) -> None:
    """Raise ConfigError where the own folder, or one beside it, holds another run than the one to join.

    A run that has not begun does not count. run: the fingerprint of the one to join, where it is known already.
    """
    own = folder.manifest()
    if own is None or own.run_id != run_id:
        known = own is not None or run is not None
        foreign = known and any(found.run != run for found in checkpoints(folder.checkpoints))
        if foreign or (own is not None and _has_begun(folder.path)):
            raise _another_run(folder.path, own, run_id)
    for place in _other_folders(folder, output):
        held = _manifest_in(place)
        if held is not None and held.run_id != run_id and _has_begun(place):
            raise _another_run(place, held, run_id)


def _another_run(place: Path, held: Manifest | None, run_id: str) -> ConfigError:
    whose = f"the run {held.name} ({held.run_id})" if held is not None else "versions of another run"
    return ConfigError(
        f"{place} holds {whose}, which the invite's ({run_id}) would take the place of: join with another [run] "
        "output, and another --state-dir where one is given"
    )


def _other_folders(folder: StateFolder, output: Path) -> list[Path]:
    """Return the folders of the other trainers of an output."""
    own = folder.path.resolve()
    return [path for path in sorted(output.glob("state/*")) if path.is_dir() and path.resolve() != own]


def _has_begun(place: Path) -> bool:
    return (place / "begun").exists() or _newest_seen(place) > 0


def _former(place: Path) -> Former:
    return as_former(_of_another(place / "former"))


def _newest_seen(place: Path) -> int:
    return as_number(_of_another(place / "known"))


def _manifest_in(place: Path) -> Manifest | None:
    try:
        return kept_manifest(place)
    except IncompatibleError as error:
        raise CheckpointError(str(error)) from None


def _of_another(path: Path) -> bytes | None:
    """Read a file that another trainer repairs: an unreadable one counts as missing."""
    try:
        return read_sealed(path, set_aside_corrupt=False)
    except OSError:
        return None
