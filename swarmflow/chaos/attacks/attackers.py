"""Starts the attackers of a swarm, switches them on and off, and reads what they have sent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from swarmflow.chaos.attacks import switch
from swarmflow.chaos.attacks.kinds import AttackKind
from swarmflow.chaos.attacks.member import OUTSIDE
from swarmflow.chaos.cast import Cast
from swarmflow.chaos.watch import Seen
from swarmflow.local.swarm import LocalProcess, LocalSwarm
from swarmflow.runtime.transport.identity import load_identity
from swarmflow.runtime.transport.invite import Invite


@dataclass
class Attackers:
    """The attackers of one swarm; at most one member of it lies at a time."""

    swarm: LocalSwarm
    cast: Cast
    stage: int  # that the member serves
    member: LocalProcess | None = None
    _outside: LocalProcess | None = None
    _folder: Path = field(default_factory=Path)  # of the last one that attacked
    _lives: set[str] = field(default_factory=set)  # of the member, as the leader has seen them during an attack

    def prepare(self, kind: AttackKind) -> None:
        """Start the member that this attack needs, which is honest until it begins."""
        if kind.by == "member" and self.member is None:
            self._choose_identity(self.swarm.state_folder(f"peer-{len(self.swarm.peers)}"))
            self.member = self.swarm.start_peer(stage=self.stage)
            self.member.expendable = True

    def serves(self, seen: Seen | None) -> bool:
        """Return whether the member serves, if there is one."""
        sight = None if self.member is None else self.cast.sight(seen, self.member)
        return self.member is None or (sight is not None and sight.phase == "serving")

    def begin(self, kind: AttackKind) -> None:
        """Begin an attack."""
        self._lives = set()
        if kind.by == "member":
            assert self.member is not None, "it was started before"
            self._folder = self.swarm.state_folder(self.member.name)
            switch.begin(self._folder, kind.name)
            return
        self._folder = self.swarm.state_folder(kind.name)
        given = (OUTSIDE, kind.name, self._invite(kind), str(self._folder))
        self._outside = self.swarm.start_other(kind.name, *given)
        self._outside.expendable = True

    def look(self, seen: Seen | None) -> None:
        """Notice each life of the member."""
        sight = None if self.member is None else self.cast.sight(seen, self.member)
        if sight is not None:
            self._lives.add(sight.id)

    def has_sent(self) -> bool:
        """Return whether the attack has begun in earnest; a member may have to wait for what it lies about."""
        return bool(switch.sent(self._folder))

    def end(self, kind: AttackKind) -> dict[str, int]:
        """End an attack, and return what was sent, by name; `put out` is how often the member had to join again."""
        if kind.by == "member":
            assert self.member is not None, "it was started before"
            switch.end(self._folder)
            return switch.sent(self._folder) | ({"put out": len(self._lives) - 1} if len(self._lives) > 1 else {})
        assert self._outside is not None, "it was started before"
        self._outside.kill()
        return switch.sent(self._folder)

    def dismiss(self) -> None:
        """End the member: its name is known for what it has done."""
        if self.member is not None:
            self.member.kill()
            self.member = None

    def _choose_identity(self, folder: Path) -> None:
        """Make identities until one comes before those of the living: the first member of a group owns its first piece.

        A small model has no other piece.
        """
        alive = [peer for peer in self.swarm.peers if peer.exit_code is None]
        others = [name for peer in alive if (name := self.cast.libp2p_name(peer.name))]
        path = folder / "identity.key"
        folder.mkdir(parents=True, exist_ok=True)
        while load_identity(path).name >= min(others):
            path.unlink()

    def _invite(self, kind: AttackKind) -> str:
        usual = Invite.parse(self.swarm.invite)
        if kind.by != "revoked":
            return str(replace(usual, trainer=None))
        printed = self.swarm.command("invite", str(self.swarm.run_file), "--trainer").strip()
        self.swarm.command("invite", str(self.swarm.run_file), "--revoke", printed)
        return printed
