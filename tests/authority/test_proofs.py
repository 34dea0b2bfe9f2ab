"""Proofs: who has made a statement about the run, whoever passes it on."""

from __future__ import annotations

from swarmflow.authority.access import AccessControl
from swarmflow.authority.certificates import PROOF_BYTES_MAX
from tests.owners import OTHER, OWNER, RUN_ID

TRAINER, PEER = OWNER.certify("trainer"), OWNER.certify("peer")
SAID = b"the version has these roots"


def test_only_a_trainer_of_the_run_proves_what_it_says() -> None:
    access = AccessControl(RUN_ID, None)
    proof = AccessControl(RUN_ID, TRAINER).prove(SAID)
    assert access.is_proven(SAID, proof)
    assert not access.is_proven(b"the version has other roots", proof)
    assert not access.is_proven(SAID, b"")
    assert not access.is_proven(SAID, proof[:-1])
    assert not access.is_proven(SAID, AccessControl(RUN_ID, PEER).prove(SAID))
    assert not access.is_proven(SAID, AccessControl(OTHER.run_id, OTHER.certify("trainer")).prove(SAID))
    assert AccessControl(RUN_ID, None).prove(SAID) == b""


def test_what_was_checked_is_kept_without_the_statement_and_no_long_proof_is() -> None:
    access = AccessControl(RUN_ID, None)
    proof = TRAINER.prove(SAID)
    assert access.is_proven(SAID, proof)
    assert not access.is_proven(SAID * 1000, proof)
    assert not access.is_proven(SAID, proof + bytes(PROOF_BYTES_MAX))
    assert sum(len(part) for key in access._proven for part in key) < 2 * (32 + PROOF_BYTES_MAX)


def test_a_proof_is_of_one_run_and_no_other_signature_is_one() -> None:
    elsewhere = TRAINER.prove(SAID)
    assert not AccessControl(OTHER.run_id, None).is_proven(SAID, elsewhere)
    signature = TRAINER.sign(SAID)
    forged = elsewhere[: -len(signature)] + signature
    assert not AccessControl(RUN_ID, None).is_proven(SAID, forged), "it was made for something else"


def test_what_a_revoked_trainer_has_said_counts_no_more_and_an_expired_one_did_say_it() -> None:
    access = AccessControl(RUN_ID, None, lambda: 2000.0)
    brief = OWNER.certify("trainer", expires_s=1000)
    said, by_brief = TRAINER.prove(SAID), brief.prove(SAID)
    assert access.is_proven(SAID, said)
    assert access.adopt(OWNER.policy(3, "m", "invited", (TRAINER.certificate.id,)))
    assert not access.is_proven(SAID, said)
    assert access.is_proven(SAID, by_brief)
