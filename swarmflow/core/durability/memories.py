"""What peers that have outlived every leader still hold in memory: the newest version of it that is whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from swarmflow.core.protocol.messages import Commit, Held
from swarmflow.core.protocol.types import Member, ProcessId, Snapshot

NAME_CHARACTERS = 32
ROOT_CHARACTERS_MAX = 128


@dataclass(frozen=True, slots=True)
class Former:
    """What a trainer that starts knows of the run before."""

    version: int = 0  # it had come as far as this, or a little farther
    peers: frozenset[str] = frozenset()  # names of those that took part then; they may hold the version in memory
    generation: int = -1  # of the last epoch; -1: there was none


NOTHING = Former()


@dataclass(frozen=True, slots=True)
class Remembered:
    """A version whose every stage some living peer holds, or has reduced the gradient of."""

    version: int
    name: str  # of its states
    commit: Commit | None  # that made it
    holders: tuple[tuple[ProcessId, ...], ...]  # of each stage
    certified: Snapshot | None = None  # where anybody has the certificate of the version


@dataclass(slots=True)
class Memories:
    """What processes that joined hold, until they are granted something."""

    stages: int  # of the run
    steps: int = 1 << 40  # of the run
    given_up: int = 0  # the newest version that was waited for in vain
    _held: dict[ProcessId, tuple[Member, Held]] = field(default_factory=dict)

    def record(self, member: Member, held: Held | None) -> None:
        """Record what a process holds; what cannot be true is left out."""
        self._held.pop(member.process, None)
        if held is not None and self.possible(held):
            self._held[member.process] = member, held

    def leave(self, process: ProcessId) -> None:
        """Forget a process that is gone, or holds something else by now."""
        self._held.pop(process, None)

    def of(self, process: ProcessId) -> Held | None:
        """Return what a process holds."""
        return self._held[process][1] if process in self._held else None

    def newest(self) -> int:
        """Return the newest version of which any process holds a stage; 0: none."""
        return max((held.version for _, held in self._held.values() if held.name), default=0)

    def later(self, version: int) -> bool:
        """Return whether a process holds a later version than this one that was not waited for in vain."""
        return self.newest() > max(version, self.given_up)

    def newest_whole(self) -> Remembered | None:
        """Return the newest version whose every stage is held; of two histories the one that more peers hold."""
        whole = [found for found in self._versions() if all(found.holders)]
        return max(whole, key=lambda found: (found.version, sum(map(len, found.holders)), found.name), default=None)

    def donors(self, stage: int, name: str, but: ProcessId) -> tuple[Member, ...]:
        """Return the holders of a stage's state of this name, with or without its commit, in the order of their ids."""
        here = [self._held[p] for p in sorted(self._held) if p != but and self._held[p][1].stage == stage]
        return tuple(member for member, held in here if name in (held.name, held.upcoming))

    def _versions(self) -> Iterator[Remembered]:
        commits = {held.name: held.commit for _, held in self._held.values() if held.commit is not None}
        for version, name in {(held.version, held.name) for _, held in self._held.values() if held.name}:
            found = Remembered(version, name, commits.get(name), (), self._certified(version, name))
            yield replace(found, holders=tuple(self._holders(found, stage) for stage in range(self.stages)))

    def _certified(self, version: int, name: str) -> Snapshot | None:
        """Return the certificate of a version, where its holders with a vote do not report other roots.

        Another history may have had a version of the same number, whose certificate anybody may have kept. Who has no
        vote is as many as it likes.
        """
        here = [each for each in self._held.values() if (each[1].version, each[1].name) == (version, name)]
        made = [held for _, held in here]
        reported = [(held.stage, held.root) for member, held in here if held.root and member.votes]

        def agreeing(snapshot: Snapshot) -> int:
            return sum(snapshot.roots[stage] == root for stage, root in reported)

        shown = {held.certified for held in made if held.certified is not None}
        best = max(sorted(shown), key=agreeing, default=None)
        return best if best is not None and 2 * agreeing(best) >= len(reported) else None

    def _holders(self, of: Remembered, stage: int) -> tuple[ProcessId, ...]:
        """Return the holders of a stage of a version, and those that lack only the commit that makes it."""
        version, name, commit = of.version, of.name, of.commit
        here = {p: held for p, (_, held) in self._held.items() if held.stage == stage}
        made = {p: held.root for p, held in here.items() if (held.version, held.name) == (version, name)}
        usual = Counter(root for root in made.values() if root)
        most = max(sorted(usual), key=usual.__getitem__, default="")
        right = most if of.certified is None else of.certified.roots[stage]
        reduced = [p for p, held in here.items() if commit is not None and completes(held, version, name)]
        return tuple(sorted([*(p for p, root in made.items() if root in ("", right)), *reduced]))

    def possible(self, held: Held) -> bool:
        """Return whether a report can be true."""
        made = held.commit is None or held.commit.epoch.step == held.version - 1
        made &= held.certified is None or self._fits(held.certified, held.version)
        names = {len(held.name), len(held.upcoming)} <= {0, NAME_CHARACTERS} and (held.name or held.upcoming)
        placed = 0 <= held.stage < self.stages and (1 if held.name else 0) <= held.version <= self.steps
        return made and bool(names) and placed and len(held.root) <= ROOT_CHARACTERS_MAX

    def _fits(self, certified: Snapshot, version: int) -> bool:
        return certified.version == version and len(certified.roots) == self.stages


def completes(held: Held, version: int, name: str) -> bool:
    """Whether what is held becomes the state of this version and name by the commit that made it elsewhere."""
    return held.version == version - 1 and held.upcoming == name


def holds(held: Held, version: int, name: str) -> bool:
    """Whether what is held is the state of this version and name (empty: not known), or lacks the commit alone."""
    return bool(name) and ((held.version, held.name) == (version, name) or completes(held, version, name))
