"""A trainer's authority in its run: the owner's key where that is here, its own certificate, and the run's policy."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from swarmflow.authority.access import AccessControl
from swarmflow.authority.certificates import CertifiedKey
from swarmflow.authority.owner import Owner
from swarmflow.authority.policy import AccessPolicy
from swarmflow.authority.policy_file import PolicyFile
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import AuthorityError
from swarmflow.files import read_sealed, write_sealed, write_whole
from swarmflow.runtime.transport.invite import Invite

log = logging.getLogger("swarmflow")


class Keys(msgspec.Struct, frozen=True, array_like=True):
    """What a trainer keeps of the invite by which it came."""

    trainer: CertifiedKey  # its own
    peer: CertifiedKey | None  # for the invites that it gives


class TrainerAuthority:
    """What proves that a process is a trainer of its run, over all incarnations of the process.

    In the folder `state` of the output, shared by its trainers: owner.key; policy. In the trainer's own state folder:
    certificate, with its key; policy.
    """

    def __init__(self, shared: Path, own: Path, invite: Invite | None) -> None:
        """shared: the folder `state` of the output. own: the trainer's. invite: that it was given."""
        self._owner_file = shared / "owner.key"
        self._keys_file = own / "certificate"
        self._policies = PolicyFile(shared / "policy"), PolicyFile(own / "policy")
        self._invite = invite
        self._owner: Owner | None = None
        self._keys: Keys | None = None

    @property
    def owner(self) -> Owner | None:
        """The owner, whose key makes certificates; None: the key is not here. Raises AuthorityError."""
        if self._owner is None:
            self._owner = Owner.load(self._owner_file)
        return self._owner

    def own_run(self) -> str:
        """Return the id of the run of this output's owner, whose key is made where there is none.

        Raises AuthorityError.
        """
        if self.owner is None:
            self._owner = Owner.make(self._owner_file)
            log.info("the key of the run's owner is in %s: who has it, has the run", self._owner_file)
        assert self._owner is not None
        return self._owner.run_id

    def access(self, run_id: str) -> AccessControl:
        """Return the access control of a process that trains in this run, by the policy that was kept.

        Raises AuthorityError where nothing here makes it a trainer of the run.
        """
        access = AccessControl(run_id, self.keys(run_id).trainer)
        for policy in filter(None, [file.read(run_id) for file in self._policies]):
            access.adopt(policy)
        return access

    def keys(self, run_id: str) -> Keys:
        """Return the keys for a run: those of the invite, those that were kept, or new ones made by the owner's key.

        Raises AuthorityError.
        """
        if self._keys is not None and self._keys.trainer.certificate.run_id == run_id:
            return self._keys
        invite, kept = self._invite, self._kept_keys(run_id)
        if invite is not None and invite.run_id == run_id and invite.trainer is not None:
            found = Keys(invite.trainer, invite.peer)
        elif kept is not None:
            found = kept
        elif self.owner is not None and self.owner.run_id == run_id:
            found = Keys(self.owner.certify("trainer"), None)
        else:
            raise AuthorityError(
                f"this trainer has no certificate for run {run_id}: join with an invite that the run's owner makes by "
                "`swarmflow invite RUN.toml --trainer`"
            )
        self._keys = found
        if found != kept:
            try:
                write_sealed(self._keys_file, msgspec.msgpack.encode(found), private=True)
            except OSError as error:
                log.warning("the certificate is not kept in %s: %s", self._keys_file, error.strerror)
        return found

    def govern(self, manifest: str, peers: str, known: AccessPolicy | None) -> AccessPolicy:
        """Return the policy of a run that this trainer begins or resumes; where it is a new one, the owner signs it.

        manifest: its fingerprint. peers: who may serve it, by RUN.toml. known: the present policy. Raises
        AuthorityError where the owner's key is needed and not here.
        """
        if known is not None and (known.manifest, known.peers) == (manifest, peers):
            return known
        if self.owner is not None:
            number, revoked = (known.number + 1, known.revoked) if known is not None else (0, ())
            return self.owner.policy(number, manifest, "anyone" if peers == "anyone" else "invited", revoked)
        if known is None or known.manifest != manifest:
            self.require_owner()
        assert known is not None, "without one the owner's key was needed"
        log.warning("run.peers = %r has no effect: the run's owner has signed %r", peers, known.peers)
        return known

    def require_owner(self) -> None:
        """Raise AuthorityError where the owner's key is not here."""
        if self.owner is None:
            raise AuthorityError(f"the run needs the signature of its owner: bring back {self._owner_file}")

    def keep(self, policy: AccessPolicy, run_id: str) -> None:
        """Keep a policy of a run where it is newer."""
        for file in self._policies:
            file.keep(policy, run_id)

    def changed(self, run_id: str) -> AccessPolicy | None:
        """Return the policy that was written since the last call, by `swarmflow invite --revoke` or another trainer.

        The owner's key is written again where it was deleted: it cannot be had anywhere else.
        """
        if self._owner is not None and not self._owner_file.exists():
            with suppress(OSError):  # the disk refuses at the moment; it is tried again
                write_whole(self._owner_file, self._owner.encode(), private=True)
        return self._policies[0].changed(run_id)

    def invite(self, run_id: str, name: str, addresses: tuple[str, ...], policy: AccessPolicy | None) -> Invite:
        """Return the invite of a run for peers, as everybody may see it who is to join. Raises AuthorityError."""
        keys = self.keys(run_id)
        # Where anyone may serve the run, the invite is public: a certificate in it would be everybody's.
        public = policy is not None and policy.peers == "anyone"
        peer = None if public else self._peer_key(keys, policy)
        return Invite(keys.trainer.certificate.owner, name, addresses, peer)

    def local_invite(self, invite: Invite, policy: AccessPolicy | None) -> Invite:
        """Return the same invite for processes of this user on this machine: they may be trainers too."""
        keys = self.keys(invite.run_id)
        return replace(invite, peer=self._peer_key(keys, policy), trainer=keys.trainer)

    def _peer_key(self, keys: Keys, policy: AccessPolicy | None) -> CertifiedKey | None:
        """Return what lets peers in: the owner's present one, else the one that came with the own invite."""
        if self.owner is None:
            return keys.peer
        return self.owner.shared_key(policy.revoked if policy is not None else ())

    def _kept_keys(self, run_id: str) -> Keys | None:
        """Return the keys for a run that were kept; None: there are none, or they are of no use any more."""
        try:
            data = read_sealed(self._keys_file, set_aside_corrupt=False)
            kept = msgspec.msgpack.decode(data, type=Keys) if data is not None else None
        except (OSError, *UNDECODABLE):
            return None
        if kept is None or kept.trainer.certificate.run_id != run_id:
            return None
        revoked = [policy.revoked for file in self._policies if (policy := file.read(run_id)) is not None]
        out_of_use = any(kept.trainer.certificate.id in ids for ids in revoked)
        return None if out_of_use or kept.trainer.certificate.has_expired(time.time()) else kept
