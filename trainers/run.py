"""The part of a trainer that outlives its incarnations; opened and checked without loading torch."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from swarmflow.activity import doing
from swarmflow.compute.checkpoint import newest_known
from swarmflow.config import RunConfig, fingerprint, first_difference, load
from swarmflow.errors import ConfigError, DataError, ModelError
from swarmflow.manifest import Manifest
from swarmflow.ownership import check_file
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.operations.folders import shared_folder
from swarmflow.runtime.transport.invite import Invite, is_invite
from swarmflow.view.timeline import Timeline
from trainers.authority import TrainerAuthority
from trainers.found import check_joins, earlier_manifest, has_begun, newest_version
from trainers.lock import FolderLock
from trainers.options import TrainerOptions
from trainers.state import StateFolder
from trainers.steplog import StepLog
from trainers.training_data import TrainingData, open_data

log = logging.getLogger("swarmflow")

CUT_KEYS = frozenset(("model.cut", "model.stages"))  # of RUN.toml: a run may go on with others


@dataclass
class Run:
    """One trainer's part in a run."""

    options: TrainerOptions
    config: RunConfig
    corpus: TrainingData
    folder: StateFolder
    authority: TrainerAuthority
    metrics: Metrics
    steplog: StepLog | None
    timeline: Timeline = field(default_factory=lambda: Timeline(token_hex(8)))  # of the run, while this trainer leads
    lock: FolderLock | None = None  # held while this trainer leads from this output
    _claiming: threading.RLock = field(default_factory=threading.RLock, init=False)

    @classmethod
    def open(cls, stack: ExitStack, options: TrainerOptions) -> Run:
        """Read RUN.toml and the data, and take a state folder; closing the stack releases everything.

        Raises ConfigError, ModelError, DataError, CheckpointError, NetworkError, ForeignFileError.
        """
        config = load(options.run_toml)
        if options.invite_file is not None:
            check_file(options.invite_file, "--invite-file", is_invite)
        vocabulary = _declared_vocabulary(config)
        with doing("taking the state folder, unless another trainer uses it"):
            folder = StateFolder.open(stack, options.state_dir, config.run.output)
        with doing("reading the data and its tokenizer"):
            corpus = open_data(config, vocabulary, config.run.output / "state" / "cache")
        log.info("data: %s", corpus.summary)
        steplog = StepLog(options.json_file) if options.json_file else None
        if steplog is not None:
            stack.callback(steplog.close)
        metrics = Metrics()
        stack.callback(metrics.close)
        if options.metrics_port is not None:
            port = metrics.serve(options.metrics_port, options.metrics_host, options.metrics_token)
            log.info("metrics: http://%s:%d/metrics", options.metrics_host, port)
        authority = TrainerAuthority(config.run.output / "state", folder.path, options.invite)
        run = cls(options, config, corpus, folder, authority, metrics, steplog)
        stack.callback(run.yield_output)
        return run

    @property
    def output(self) -> Path:
        """The folder of results."""
        return self.config.run.output

    @property
    def invite_path(self) -> Path:
        """The file in which the trainer that leads from this output leaves its invite for the others."""
        return self.output / "state" / "invite"

    def try_to_lead(self, again: bool = False) -> bool:
        """Take the right to begin or resume the run, unless a trainer on this machine has it or it began elsewhere.

        again: the run that began elsewhere has no leader; it goes on here if this disk knows a version.
        """
        if self.options.invite is None or (again and self.may_go_on_alone):
            self.claim()
            if self.lock is not None:
                self.invite_path.unlink(missing_ok=True)  # the former leader's: no process should wait for that one
        return self.lock is not None

    @property
    def may_go_on_alone(self) -> bool:
        """Whether this trainer has trained in the run before, and knows a version that was written."""
        manifest = self.folder.manifest()
        if manifest is None:
            return False
        # It may have been killed between writing its first version and recording it.
        return self.folder.newest_seen > 0 or newest_known(self.folder.checkpoints, manifest.fingerprint) > 0

    def claim(self) -> None:
        """Keep others of this output from leading too, unless one leads. Takes seconds where one of them may be alive.

        Raises CheckpointError, NetworkError.
        """
        with self._claiming:
            if self.lock is None:
                shared_folder(self.output / "state", held=True)
                self.lock = FolderLock.acquire(self.output / "state" / "leader.lock")

    def yield_output(self) -> None:
        """Release the claim, as another trainer leads."""
        with self._claiming:
            if self.lock is not None:
                self.lock.release()
                self.lock = None

    def stay_in_charge(self) -> None:
        """Keep the right to lead, also where the output was deleted. Takes seconds where another one may be alive.

        Raises TakenError, and CheckpointError and NetworkError where the disk refuses.
        """
        with self._claiming:
            if self.lock is not None:
                self.lock.check()
                if self.lock.is_there:
                    return
                self.yield_output()
            self.claim()

    def earlier(self) -> Manifest | None:
        """Return the manifest that the run was started with, or last cut with, if it was.

        None where RUN.toml or the data have changed before the first commit. Raises ConfigError or DataError when
        anything but the cut has changed later.
        """
        manifest = earlier_manifest(self.folder, self.output)
        if manifest is None:
            return None
        begun = has_begun(self.folder, self.output)
        try:
            self.check_same(manifest, f"the run in {self.output}", but=CUT_KEYS if begun else frozenset())
        except (ConfigError, DataError):
            if begun:
                raise
            return None
        return manifest

    def is_cut_otherwise(self, manifest: Manifest) -> bool:
        """Whether RUN.toml asks for another cut than the run's."""
        if self.config.model.numbered_cut is not None:
            return self.config.model.numbered_cut != manifest.cut
        now = fingerprint(self.config)
        return any(manifest.config.get(key) != now.get(key) for key in CUT_KEYS)

    def former(self) -> Manifest | None:
        """Return the manifest of this folder's run before RUN.toml or the data were changed; None: there was none."""
        return earlier_manifest(self.folder, self.output)

    def is_finished(self, manifest: Manifest) -> bool:
        """Whether all steps are done and the model is written."""
        version = newest_version(self.folder, self.output, manifest.fingerprint).version
        return version >= self.config.train.steps and (self.output / "final").is_dir()

    def may_join(self, invite: Invite) -> Invite:
        """Return the invite. Raises ConfigError where this folder, or one beside it, has another run that has begun."""
        check_joins(self.folder, self.output, invite.run_id)
        return invite

    def check_joins(self, manifest: Manifest) -> None:
        """Raise ConfigError or DataError where the run of others is not that of RUN.toml, the data and this folder."""
        self.check_same(manifest, f"the run {manifest.name}")
        check_joins(self.folder, self.output, manifest.run_id, manifest.fingerprint)

    def check_same(self, manifest: Manifest, whose: str, but: frozenset[str] = frozenset()) -> None:
        """Raise ConfigError or DataError with the differences between RUN.toml or the data and the run.

        whose: the owner of the run, for the message. but: keys that may differ.
        """
        but = but if self.is_cut_otherwise(manifest) else CUT_KEYS
        known, asked = (
            {key: value for key, value in each.items() if key not in but}
            for each in (manifest.config, fingerprint(self.config))
        )
        key = first_difference(known, asked)
        if key is not None:
            before, now = known.get(key), asked.get(key)
            how = "set it back, or give another [run] output"
            if key in CUT_KEYS:
                how = f"set model.cut = {list(manifest.cut)}, or end all its trainers before it is cut anew"
            raise ConfigError(f"{key} = {now!r}, but {whose} has {key} = {before!r}: {how}")
        if manifest.corpus != self.corpus.digest:
            raise DataError(f"the data is not that of {whose} (another digest): bring it back, or give another output")


def _declared_vocabulary(config: RunConfig) -> int | None:
    """Return the vocab_size of the model's configuration; None where it leaves it to its family's default.

    Raises ModelError where there is no configuration.
    """
    values: object = config.model.config
    if config.model.path is not None:
        try:
            values = json.loads((config.model.path / "config.json").read_bytes())
        except OSError as error:
            raise ModelError(
                f"model.path = {config.model.path}: its config.json cannot be read ({error.strerror}); "
                "give a Hugging Face folder"
            ) from None
        except ValueError as error:
            raise ModelError(f"model.path = {config.model.path}: its config.json is no JSON ({error})") from None
    size = values.get("vocab_size") if isinstance(values, dict) else None
    return size if isinstance(size, int) else None
