"""What a peer holds of the run's state in memory, under which name, and how a later life of it goes on from it."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.protocol.actions import Apply, Resume
from swarmflow.core.protocol.messages import Commit, Granted, Held, state_name
from swarmflow.core.protocol.types import Snapshot


@dataclass(slots=True)
class Memory:
    """The state of a stage, over the lives of one process.

    held: what an earlier life has left, until this one serves a stage. name: of the state that is served now,
    empty: not known. commit: the one that made it, where it is known: should all trainers die, the peers are the only
    ones who can tell what the step's result was. update: the name and the commit of the next one, while it is made.
    """

    held: Held | None = None
    name: str = ""
    commit: Commit | None = None
    update: tuple[str, Commit] | None = None
    version: int = -1  # that `name` names

    def granted(self, message: Granted) -> Resume | None:
        """Serve a stage from memory if it is held. None: it has to be loaded, and what was held is dropped."""
        held, commit = self.held, message.commit
        if commit is not None and commit.epoch.step != message.version - 1:
            commit = None
        self.name, self.commit, self.update = message.name, commit, None
        self.version = message.version
        if held is not None and message.name and held.stage == message.stage:
            if (held.version, held.name) == (message.version, message.name):
                self.commit = held.commit or commit
                return Resume(message.stage, message.version)
            reduced = (held.version, held.upcoming) == (message.version - 1, message.name)
            if reduced and commit is not None:
                return Resume(message.stage, message.version, Apply(commit.epoch, commit.scale, commit.learning_rate))
        self.held = None
        return None

    def loaded(self, version: int) -> None:
        """Record that a version is served. The name of a later one than was granted is not known here."""
        self.held = None
        if version != self.version:
            self.name, self.commit = "", None

    def committed(self, epoch_view: EpochView, commit: Commit) -> None:
        """Record that an update is to be applied."""
        self.update = _name(epoch_view, commit.ballot), commit

    def applied(self) -> None:
        """Record that the update was applied."""
        if self.update is not None:
            (self.name, self.commit), self.update = self.update, None

    def kept(
        self,
        stage: int,
        version: int,
        epoch_view: EpochView | None,
        sealed: int | None,
        root: str = "",
        certified: Snapshot | None = None,
    ) -> Held | None:
        """What is left for the next life, which ends the update that is under way. None: it is of no known history.

        sealed: the ballot whose gradient is reduced here, and that may have been committed. root: of the state at the
        version, where it is known. certified: the version, where its certificate is here.
        """
        if self.update is not None:
            name, commit = self.update
            return Held(stage, commit.epoch.step + 1, name, "", commit)
        upcoming = _name(epoch_view, sealed) if epoch_view is not None and sealed is not None else ""
        known = self.name or upcoming
        return Held(stage, version, self.name, root, self.commit, upcoming, certified) if known else None


def _name(epoch_view: EpochView, ballot: int) -> str:
    return state_name(epoch_view.opened.lineage, epoch_view.epoch, ballot)
