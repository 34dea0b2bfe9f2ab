"""What the owner of a run grants and revokes: invites with certificates, and the policy that no longer admits them."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from swarmflow.authority.certificates import CERTIFICATE_ID_BYTES
from swarmflow.authority.owner import Owner
from swarmflow.authority.policy import AccessPolicy
from swarmflow.authority.policy_file import PolicyFile
from swarmflow.config import load
from swarmflow.errors import AuthorityError, ConfigError, NetworkError
from swarmflow.runtime.transport.invite import Invite

_DURATION = re.compile(r"([1-9]\d{0,6})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CERTIFICATE = re.compile(rf"[0-9a-f]{{{2 * CERTIFICATE_ID_BYTES}}}")


@dataclass(frozen=True)
class Granting:
    """The owner of a run, as its output shows it."""

    owner: Owner
    invite: Invite  # that the leading trainer has left in the output
    policy: AccessPolicy
    _file: PolicyFile

    @classmethod
    def of(cls, run_toml: Path) -> Granting:
        """Read the output of RUN.toml. Raises ConfigError, NetworkError."""
        output = load(run_toml).run.output
        state = output / "state"
        owner = Owner.load(state / "owner.key")
        if owner is None:
            raise AuthorityError(
                f"{state / 'owner.key'} is not there: the owner of a run has it where `swarmflow trainer` began the run"
            )
        file = PolicyFile(state / "policy")
        policy = file.read(owner.run_id)
        try:
            invite = Invite.parse((state / "invite").read_text(encoding="utf-8"))
        except OSError as error:
            raise NetworkError(
                f"no invite lies in {state} ({error.strerror}): start the run's trainer there, and ask again"
            ) from None
        if policy is None or invite.run_id != owner.run_id:
            raise AuthorityError(f"{output} holds another run than that of its owner.key: start its trainer first")
        return cls(owner, invite, policy, file)

    def print_invite(self, role: str | None, expires: str | None) -> int:
        """Print an invite on the standard output, and what it allows beside; return the exit code.

        role: trainer or peer, with a certificate of its own; None: the usual one, for peers. expires: such as 30d;
        None: never. Raises ConfigError.
        """
        if role is None and expires is not None:
            raise ConfigError("--expires goes with --trainer or --peer: the run's usual invite does not expire")
        expires_s = 0 if expires is None else int(time.time()) + _seconds(expires)
        usual = replace(self.invite, peer=self.owner.shared_key(self.policy.revoked))
        if role == "trainer":
            made = replace(usual, trainer=self.owner.certify("trainer", expires_s))
        elif role == "peer":
            made = replace(usual, peer=self.owner.certify("peer", expires_s))
        else:
            made = replace(usual, peer=None) if self.policy.peers == "anyone" else usual
        key = made.key
        print(made)
        if key is None:
            print("anyone may serve this run: the invite holds no secret", file=sys.stderr)
        else:
            until = f" until {time.strftime('%Y-%m-%d %H:%M', time.localtime(expires_s))}" if expires_s else ""
            what = f"lets its bearer take part as a {key.certificate.role}{until}"
            print(f"this invite {what}; its certificate, to revoke it, is {key.certificate.id}", file=sys.stderr)
        return 0

    def revoke(self, what: str) -> int:
        """Revoke a certificate, given by its id or an invite that holds it; return the exit code.

        Trainers of the output notice within a second, and pass it on. Raises ConfigError, AuthorityError.
        """
        text = what.strip()
        if _CERTIFICATE.fullmatch(text):
            revoked = text
        else:
            key = Invite.parse(text).key
            if key is None or key.certificate.run_id != self.owner.run_id:
                raise ConfigError("this invite holds no certificate of the run: there is nothing to revoke")
            revoked = key.certificate.id
        if revoked in self.policy.revoked:
            raise ConfigError(f"certificate {revoked} is revoked already")
        now = self.policy
        changed = self.owner.policy(now.number + 1, now.manifest, now.peers, (*now.revoked, revoked))
        try:
            self._file.write(changed)
        except OSError as error:
            raise AuthorityError(f"{self._file.path} cannot be written: {error.strerror}; nothing is revoked") from None
        print(f"certificate {revoked} is revoked, by policy {changed.number} of the run")
        if revoked == self.owner.shared_key(now.revoked).certificate.id:
            print("it was that of the run's usual invite: `swarmflow invite RUN.toml` prints the new one")
        return 0


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--expires {text}: a number and a unit, such as 90m, 12h or 30d")
    return int(found[1]) * _UNITS_S[found[2]]
