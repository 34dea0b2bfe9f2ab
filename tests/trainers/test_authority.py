"""A trainer's authority, and what its owner grants: certificates, invites and policies, over restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swarmflow.authority.policy import AccessPolicy
from swarmflow.errors import AuthorityError, ConfigError, NetworkError
from swarmflow.files import write_sealed
from swarmflow.runtime.transport.invite import Invite
from tests.owners import OTHER, OWNER, RUN_ID, invite_of
from trainers.authority import Keys, TrainerAuthority
from trainers.granting import Granting

NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
WHERE = f"/ip4/127.0.0.1/tcp/9/p2p/{NAME}"


def authority(folder: Path, invite: Invite | None = None, own: str = "trainer-0") -> TrainerAuthority:
    """That of a trainer that starts, or starts again."""
    (folder / "state" / own).mkdir(parents=True, exist_ok=True)
    return TrainerAuthority(folder / "state", folder / "state" / own, invite)


def test_trainers_of_one_output_need_nothing_typed(tmp_path: Path) -> None:
    run_id = authority(tmp_path).own_run()
    assert authority(tmp_path).own_run() == run_id
    first, beside = authority(tmp_path), authority(tmp_path, own="trainer-1")
    assert first.keys(run_id).trainer.certificate.role == beside.keys(run_id).trainer.certificate.role == "trainer"
    assert authority(tmp_path).keys(run_id) == first.keys(run_id), "it keeps its certificate"
    assert (tmp_path / "state" / "trainer-0" / "certificate").stat().st_mode & 0o777 == 0o400


def test_where_the_owners_key_is_a_certificate_that_is_of_no_use_any_more_is_replaced(tmp_path: Path) -> None:
    trainer = authority(tmp_path)
    run_id = trainer.own_run()
    old = trainer.keys(run_id).trainer.certificate.id
    assert trainer.owner is not None
    trainer.keep(trainer.owner.policy(1, "manifest", "invited", (old,)), run_id)
    assert authority(tmp_path).keys(run_id).trainer.certificate.id != old
    ended = Keys(trainer.owner.certify("trainer", expires_s=1), None)
    write_sealed(tmp_path / "state" / "trainer-0" / "certificate", msgspec.msgpack.encode(ended))
    assert authority(tmp_path).keys(run_id) != ended


def test_elsewhere_an_invite_for_trainers_makes_a_trainer_and_one_for_peers_does_not(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match=r"swarmflow invite RUN\.toml --trainer"):
        authority(tmp_path, invite_of(WHERE)).access(RUN_ID)
    invite = Invite(OWNER.public, "run", (WHERE,), OWNER.shared_key(), OWNER.certify("trainer"))
    assert authority(tmp_path, invite).keys(RUN_ID).trainer == invite.trainer
    again = authority(tmp_path)
    assert again.keys(RUN_ID).trainer == invite.trainer, "started again without its invite"
    assert again.invite(RUN_ID, "run", (WHERE,), None) == invite_of(WHERE), "what it gives lets peers in, and no more"
    with pytest.raises(AuthorityError, match="no certificate for run"):
        again.access(OTHER.run_id)


def test_the_policy_changes_with_the_run_and_with_its_setting_alone(tmp_path: Path) -> None:
    trainer = authority(tmp_path)
    run_id = trainer.own_run()
    first = trainer.govern("manifest", "invited", None)
    assert (first.number, first.manifest, first.peers, first.revoked) == (0, "manifest", "invited", ())
    assert trainer.govern("manifest", "invited", first) is first
    second = trainer.govern("manifest", "anyone", first)
    third = trainer.govern("changed", "anyone", second)
    assert [second.number, third.number] == [1, 2]
    trainer.keep(third, run_id)
    trainer.keep(first, run_id)
    access = authority(tmp_path).access(run_id)
    assert access.policy == third, "an older one takes no newer one's place"
    assert trainer.invite(run_id, "run", (WHERE,), third).key is None, "an invite for anyone holds no secret"
    assert trainer.local_invite(trainer.invite(run_id, "run", (WHERE,), third), third).trainer is not None


def test_without_the_owners_key_a_run_goes_on_and_a_changed_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = authority(tmp_path)
    run_id = trainer.own_run()
    trainer.access(run_id)
    trainer.keep(trainer.govern("manifest", "invited", None), run_id)
    (tmp_path / "state" / "owner.key").rename(tmp_path / "safe")
    away = authority(tmp_path)
    known = away.access(run_id).policy
    assert away.govern("manifest", "anyone", known) == known
    assert "run.peers = 'anyone' has no effect" in caplog.text
    with pytest.raises(AuthorityError, match=r"bring back .*owner\.key"):
        away.govern("changed", "invited", known)


def test_a_deleted_key_of_the_owner_is_written_again(tmp_path: Path) -> None:
    trainer = authority(tmp_path)
    run_id = trainer.own_run()
    path = tmp_path / "state" / "owner.key"
    path.unlink()
    trainer.changed(run_id)
    assert authority(tmp_path).own_run() == run_id
    assert path.stat().st_mode & 0o777 == 0o400


RUN = '[run]\noutput = "out"\n[model]\nconfig = { model_type = "llama" }\nstages = 1\n[data]\npath = "text"\n'


@pytest.fixture
def granting(tmp_path: Path) -> Granting:
    """The owner of a run whose trainer has begun it."""
    (tmp_path / "RUN.toml").write_text(RUN)
    trainer = authority(tmp_path / "out")
    run_id = trainer.own_run()
    policy = trainer.govern("manifest", "invited", None)
    trainer.keep(policy, run_id)
    (tmp_path / "out" / "state" / "invite").write_text(f"{trainer.invite(run_id, 'run', (WHERE,), policy)}\n")
    return Granting.of(tmp_path / "RUN.toml")


def test_invites_allow_what_they_are_for(granting: Granting, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(role: str | None, expires: str | None = None) -> Invite:
        assert granting.print_invite(role, expires) == 0
        return Invite.parse(capsys.readouterr().out)

    usual, peer, trainer = printed(None), printed("peer", "30d"), printed("trainer")
    assert usual == granting.invite
    assert usual.peer == granting.owner.shared_key()
    assert (peer.key, peer.trainer, peer.trainers) == (peer.peer, None, (WHERE,))
    assert peer.peer is not None
    assert peer.peer != usual.peer
    assert peer.peer.certificate.expires_s > 0
    assert trainer.trainer is not None
    assert trainer.peer == usual.peer, "it gives invites itself"
    for wrong in ("soon", "0d", "30", "-1h"):
        with pytest.raises(ConfigError, match=f"--expires {wrong}"):
            granting.print_invite("peer", wrong)
    with pytest.raises(ConfigError, match="does not expire"):
        granting.print_invite(None, "30d")


def test_what_is_revoked_is_in_the_policy_that_trainers_read(granting: Granting, tmp_path: Path) -> None:
    trainer = authority(tmp_path / "out")
    known = trainer.changed(granting.owner.run_id)
    assert isinstance(known, AccessPolicy)
    key = granting.owner.certify("trainer").certificate.id
    assert granting.revoke(key) == 0
    changed = trainer.changed(granting.owner.run_id)
    assert changed is not None
    assert (changed.number, changed.revoked) == (known.number + 1, (key,))
    again = Granting.of(tmp_path / "RUN.toml")
    with pytest.raises(ConfigError, match="revoked already"):
        again.revoke(key)
    again.revoke(str(again.invite))  # the usual one
    last = Granting.of(tmp_path / "RUN.toml")
    assert len(last.policy.revoked) == 2
    replaced = trainer.invite(last.owner.run_id, "run", (WHERE,), last.policy).peer
    assert replaced is not None
    assert replaced.certificate.id not in last.policy.revoked
    with pytest.raises(ConfigError, match="nothing to revoke"):
        last.revoke(str(invite_of(WHERE)))


def test_who_is_not_the_owner_is_told_where_the_key_is(tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").write_text(RUN)
    with pytest.raises(AuthorityError, match=r"owner\.key is not there"):
        Granting.of(tmp_path / "RUN.toml")
    authority(tmp_path / "out").own_run()
    with pytest.raises(NetworkError, match="no invite lies in"):
        Granting.of(tmp_path / "RUN.toml")
