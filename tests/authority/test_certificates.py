"""Certificates and credentials: what the owner has signed passes, and nothing else, whatever was changed of it."""

from __future__ import annotations

import time

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.authority.certificates import CREDENTIAL_BYTES_MAX, CertifiedKey, check_credential
from swarmflow.errors import AuthorityError
from tests.owners import OTHER, OWNER, RUN_ID

NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
TRAINER = OWNER.certify("trainer")
SHOWN = TRAINER.bind(NAME)


def test_a_credential_is_what_the_documentation_says() -> None:
    """Read without the code that wrote it, and verified by the library alone."""
    (role, key, expires_s, owner, signature), binding = msgspec.msgpack.decode(SHOWN)
    assert (role, expires_s, owner) == ("trainer", 0, OWNER.public)
    signed = b"swarmflow certificate 1\0" + msgspec.msgpack.encode(["trainer", key, 0, owner])
    Ed25519PublicKey.from_public_bytes(owner).verify(signature, signed)
    bound = b"swarmflow process 1\0" + msgspec.msgpack.encode([RUN_ID, NAME])
    Ed25519PublicKey.from_public_bytes(key).verify(binding, bound)
    assert len(SHOWN) <= CREDENTIAL_BYTES_MAX


def test_it_proves_the_role_of_its_process_in_its_run_alone() -> None:
    assert check_credential(SHOWN, RUN_ID, NAME) == TRAINER.certificate
    with pytest.raises(AuthorityError, match="another process"):
        check_credential(SHOWN, RUN_ID, NAME + "x")
    with pytest.raises(AuthorityError, match="another run"):
        check_credential(SHOWN, OTHER.run_id, NAME)


@given(st.integers(0, len(SHOWN) - 1), st.integers(1, 255))
def test_whatever_byte_is_changed_it_proves_nothing(place: int, flip: int) -> None:
    changed = bytearray(SHOWN)
    changed[place] ^= flip
    with pytest.raises(AuthorityError):
        check_credential(bytes(changed), RUN_ID, NAME)


@given(st.binary(max_size=600) | st.integers(0, len(SHOWN) - 1).map(lambda size: SHOWN[:size]))
def test_other_bytes_prove_nothing(data: bytes) -> None:
    with pytest.raises(AuthorityError):
        check_credential(data, RUN_ID, NAME)


def test_a_peer_does_not_make_itself_a_trainer() -> None:
    """Neither by the other word in its certificate, nor by a certificate that it signs with its own key."""
    peer = OWNER.certify("peer")
    relabelled = msgspec.structs.replace(peer.certificate, role="trainer")
    for certificate in (relabelled, msgspec.structs.replace(OTHER.certify("trainer").certificate, owner=OWNER.public)):
        with pytest.raises(AuthorityError, match="not signed by the run's owner"):
            check_credential(CertifiedKey(certificate, peer.secret).bind(NAME), RUN_ID, NAME)


def test_a_key_is_of_use_with_its_own_certificate_only() -> None:
    TRAINER.check(RUN_ID)
    stolen = CertifiedKey(TRAINER.certificate, OWNER.certify("peer").secret)
    with pytest.raises(AuthorityError, match="not the one that its certificate is about"):
        stolen.check(RUN_ID)
    with pytest.raises(AuthorityError, match="another process"):
        check_credential(stolen.bind(NAME), RUN_ID, NAME)


def test_a_certificate_ends_when_it_says() -> None:
    certificate = OWNER.certify("peer", expires_s=1000).certificate
    assert [certificate.has_expired(now_s) for now_s in (999.9, 1000.0)] == [False, True]
    assert not TRAINER.certificate.has_expired(time.time() + 1e9)


def test_a_secret_is_in_no_text() -> None:
    assert TRAINER.secret.hex() not in repr(TRAINER)
    assert repr(TRAINER.secret) not in repr(TRAINER)
