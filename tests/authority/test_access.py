"""Access control: whom a process lets in by the policy of its run, and which policy that is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.authority.access import AccessControl
from swarmflow.authority.owner import Owner
from swarmflow.authority.policy import POLICY_BYTES_MAX, REVOKED_MAX, AccessPolicy
from swarmflow.authority.policy_file import PolicyFile
from swarmflow.errors import AuthorityError
from tests.owners import OTHER, OWNER, RUN_ID

NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
PEER = OWNER.certify("peer")
INVITED, ANYONE = OWNER.policy(1, "m", "invited", ()), OWNER.policy(2, "m", "anyone", ())


def admitted(access: AccessControl, credential: bytes) -> str:
    """The role that a process gets; empty: none, and `no` where it is not let in."""
    try:
        certificate = access.admit(NAME, credential)
    except AuthorityError:
        return "no"
    return certificate.role if certificate is not None else ""


def test_who_has_no_certificate_is_let_in_where_anyone_may_come_and_gets_no_role() -> None:
    access = AccessControl(RUN_ID, None)
    assert admitted(access, b"") == "no", "it does not know the policy yet"
    for policy, expected in ((INVITED, "no"), (ANYONE, "")):
        access.adopt(policy)
        assert admitted(access, b"") == expected
        assert admitted(access, PEER.bind(NAME)) == "peer"
        assert admitted(access, PEER.bind("another")) == "no"
        assert admitted(access, OTHER.certify("trainer").bind(NAME)) == "no"


def test_who_was_revoked_stays_out_whatever_else_is_known() -> None:
    access = AccessControl(RUN_ID, None)
    assert admitted(access, PEER.bind(NAME)) == "peer"
    assert access.adopt(OWNER.policy(3, "m", "invited", (PEER.certificate.id,)))
    assert not access.adopt(ANYONE), "an older policy"
    assert admitted(access, PEER.bind(NAME)) == "no"
    assert "was revoked" in access.refusal(PEER.certificate)
    assert admitted(access, OWNER.certify("peer").bind(NAME)) == "peer"


def test_who_came_before_its_certificate_has_ended_does_not_come_after() -> None:
    now = [999.0]
    access = AccessControl(RUN_ID, None, lambda: now[0])
    credential = OWNER.certify("peer", expires_s=1000).bind(NAME)
    assert admitted(access, credential) == "peer"
    now[0] = 1000.0
    assert admitted(access, credential) == "no", "its signatures were checked before, and its time is over"


def test_a_statement_counts_from_a_trainer_that_has_signed_it() -> None:
    """Whoever passes it on can change nothing of it, and make none."""
    access, trainer = AccessControl(RUN_ID, PEER), AccessControl(RUN_ID, OWNER.certify("trainer"))
    access.adopt(ANYONE)
    credential, signature = trainer.sign(NAME, b"statement")
    access.check_trainer(NAME, credential, signature, b"statement")
    peers = AccessControl(RUN_ID, PEER).sign(NAME, b"statement")
    others = AccessControl(RUN_ID, OWNER.certify("trainer")).sign(NAME, b"statement")
    for name, *rest in (
        (NAME, credential, signature, b"another"),
        ("another", credential, signature, b"statement"),
        (NAME, credential, others[1], b"statement"),
        (NAME, b"", signature, b"statement"),
        (NAME, *peers, b"statement"),
        (NAME, credential, b"", b"statement"),
    ):
        with pytest.raises(AuthorityError):
            access.check_trainer(name, *rest)
    assert AccessControl(RUN_ID, None).sign(NAME, b"statement") == (b"", b"")


def test_the_statement_of_a_trainer_whose_certificate_has_expired_since_counts_unless_it_was_revoked() -> None:
    key = OWNER.certify("trainer", expires_s=1000)
    access, signed = AccessControl(RUN_ID, PEER, lambda: 2000.0), AccessControl(RUN_ID, key).sign(NAME, b"statement")
    access.check_trainer(NAME, *signed, b"statement")
    access.adopt(OWNER.policy(9, "f" * 32, "invited", (key.certificate.id,)))
    with pytest.raises(AuthorityError, match="revoked"):
        access.check_trainer(NAME, *signed, b"statement")


POLICY = OWNER.policy(7, "f" * 32, "invited", ("a" * 16, "b" * 16))


@given(st.integers(0, len(POLICY.encode()) - 1), st.integers(1, 255))
def test_a_policy_counts_as_its_owner_has_signed_it(place: int, flip: int) -> None:
    changed = bytearray(POLICY.encode())
    changed[place] ^= flip
    with pytest.raises(AuthorityError):
        AccessPolicy.decode(bytes(changed), RUN_ID)
    assert AccessPolicy.decode(POLICY.encode(), RUN_ID) == POLICY


def test_no_one_else_signs_a_policy_of_the_run() -> None:
    with pytest.raises(AuthorityError):
        AccessPolicy.decode(OTHER.policy(99, "m", "anyone", ()).encode(), RUN_ID)
    forged = msgspec.structs.replace(OTHER.policy(99, "m", "anyone", ()), owner=OWNER.public)
    with pytest.raises(AuthorityError):
        AccessPolicy.decode(forged.encode(), RUN_ID)


def test_as_many_certificates_as_may_be_revoked_fit_into_a_policy() -> None:
    revoked = tuple(f"{number:016x}" for number in range(REVOKED_MAX))
    longest = OWNER.policy(1 << 52, "f" * 64, "invited", revoked).encode()
    assert len(longest) <= POLICY_BYTES_MAX
    assert AccessPolicy.decode(longest, RUN_ID).revoked == revoked
    with pytest.raises(AuthorityError, match=f"may revoke {REVOKED_MAX}"):
        OWNER.policy(1, "m", "invited", (*revoked, "f" * 16))


def test_a_file_keeps_the_newest_policy_and_tells_of_a_change_once(tmp_path: Path) -> None:
    file = PolicyFile(tmp_path / "policy")
    assert (file.read(RUN_ID), file.changed(RUN_ID)) == (None, None)
    file.keep(ANYONE, RUN_ID)
    file.keep(INVITED, RUN_ID)
    assert file.read(RUN_ID) == ANYONE
    assert file.read(OTHER.run_id) is None
    assert [file.changed(RUN_ID), file.changed(RUN_ID)] == [ANYONE, None]
    PolicyFile(file.path).write(POLICY)
    assert file.changed(RUN_ID) == POLICY


def test_the_owners_key_is_private_and_gives_the_same_run_and_invite_again(tmp_path: Path) -> None:
    path = tmp_path / "owner.key"
    assert Owner.load(path) is None
    owner = Owner.make(path)
    assert path.stat().st_mode & 0o777 == 0o400
    again = Owner.load(path)
    assert again is not None
    assert (again.run_id, again.shared_key()) == (owner.run_id, owner.shared_key())
    revoked = owner.shared_key().certificate.id
    second = again.shared_key((revoked,))
    assert second != owner.shared_key()
    assert second == owner.shared_key((revoked,))
    assert owner.shared_key((revoked, second.certificate.id)) not in (second, owner.shared_key())


NO_KEY = b"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize("content", [b"", NO_KEY, b"\xff" * 99], ids=["empty", "no key", "bytes"])
def test_a_damaged_key_of_the_owner_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "owner.key").write_bytes(content)
    with pytest.raises(AuthorityError, match="bring back the run's owner's key"):
        Owner.load(tmp_path / "owner.key")
