"""Invites: one line there and back, a clear word for every way to spoil it, and the runs of this machine."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.authority.certificates import CertifiedKey
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.invite import (
    TRAINERS_MAX,
    Invite,
    find_local_invites,
    local_invite,
    publish_local,
    runs_folder,
    warn_of_expiry,
)
from tests.owners import OTHER, OWNER, RUN_ID, invite_of

NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
INVITE = invite_of(f"/ip4/192.0.2.7/tcp/7000/p2p/{NAME}", name="shakespeare")


def test_an_invite_that_has_expired_is_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    for key in (None, OWNER.certify("peer"), OWNER.certify("peer", int(time.time()) + 600)):
        warn_of_expiry(key)
    assert caplog.messages == []
    warn_of_expiry(OWNER.certify("peer", int(time.time()) - 1))
    assert caplog.messages == ["by the clock of this machine the invite has expired: ask the run's owner for a new one"]


def refused(text: str) -> str:
    with pytest.raises(NetworkError) as caught:
        Invite.parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(st.binary(min_size=32, max_size=32), st.text(max_size=256), st.integers(1, TRAINERS_MAX), st.booleans())
def test_an_invite_is_read_as_it_was_written(owner: bytes, name: str, trainers: int, certified: bool) -> None:
    where = tuple(f"/ip4/192.0.2.7/tcp/{port}/p2p/{NAME}" for port in range(trainers))
    keys = (OWNER.certify("peer", 1 << 34), OWNER.certify("trainer")) if certified else (None, None)
    invite = Invite(OWNER.public if certified else owner, name, where, *keys)
    text = str(invite)
    assert text.startswith("swarmflow2:")
    assert Invite.parse(text) == invite
    assert Invite.parse(f"  {text[:40]}\n  {text[40:]}\n") == invite


@given(st.data())
def test_a_cut_invite_is_truncated(data: st.DataObject) -> None:
    text = str(INVITE)
    cut = data.draw(st.integers(len("swarmflow2:"), len(text) - 1))
    assert "truncated" in refused(text[:cut])


@given(st.data())
def test_a_mistyped_letter_is_noticed(data: st.DataObject) -> None:
    text = str(INVITE)
    place = data.draw(st.integers(len("swarmflow2:"), len(text) - 2))
    letter = data.draw(st.sampled_from("ABCxyz019-_").filter(lambda letter: letter != text[place]))
    message = refused(text[:place] + letter + text[place + 1 :])
    assert "damaged" in message or "truncated" in message


@pytest.mark.parametrize("text", ["", "hello", "http://example.org", "swarmflow2", "swarmflow2:a b!", "x" * 100_000])
def test_other_text_is_no_invite(text: str) -> None:
    message = refused(text)
    assert "is no invite" in message
    assert len(message) < 200


def test_another_version_is_told_apart_from_damage() -> None:
    assert "version 3" in refused(str(INVITE).replace("swarmflow2:", "swarmflow3:"))


@pytest.mark.parametrize(
    "trainers",
    [(), (f"/ip4/1.2.3.4/tcp/1/p2p/{NAME}",) * (TRAINERS_MAX + 1), ("1.2.3.4:7000",), ("/ip4/1.2.3.4/tcp/1",)],
    ids=["none", "too many", "no multiaddr", "no name"],
)
def test_an_impossible_invite_cannot_be_made(trainers: tuple[str, ...]) -> None:
    with pytest.raises(NetworkError):
        invite_of(*trainers)


def test_a_certificate_of_another_run_or_role_makes_no_invite() -> None:
    for keys in ((OTHER.shared_key(), None), (OWNER.certify("trainer"), None), (None, OWNER.certify("peer"))):
        with pytest.raises(NetworkError, match="another run or role"):
            Invite(OWNER.public, "name", INVITE.trainers, *keys)
        payload = msgspec.msgpack.encode((OWNER.public, "name", INVITE.trainers, *keys))
        data = len(payload).to_bytes(2) + payload + hashlib.sha256(payload).digest()[:4]
        assert "another run or role" in refused(f"swarmflow2:{base64.urlsafe_b64encode(data).decode().rstrip('=')}")


def test_a_key_without_its_certificate_or_with_one_that_the_owner_has_not_signed_makes_no_invite() -> None:
    mine, other = OWNER.certify("trainer"), OTHER.certify("trainer")
    forged = msgspec.structs.replace(other.certificate, owner=OWNER.public)
    for key, reason in (
        (CertifiedKey(mine.certificate, other.secret), "not the one that its certificate is about"),
        (CertifiedKey(forged, other.secret), "not signed by the run's owner"),
    ):
        with pytest.raises(NetworkError, match=reason):
            Invite(OWNER.public, "name", INVITE.trainers, None, key)


def test_only_files_of_the_form_that_trainers_write_are_looked_into_and_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    assert find_local_invites(tmp_path) == []
    assert (tmp_path / "notes.json").is_file()


def test_a_run_of_this_machine_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    publication = publish_local(INVITE, folder)
    assert local_invite(folder) == INVITE
    assert folder.stat().st_mode & 0o777 == 0o700
    assert publication.path.stat().st_mode & 0o777 == 0o600
    publication.withdraw()
    with pytest.raises(NetworkError, match="SWARMFLOW_JOIN"):
        local_invite(folder)


def test_a_run_whose_trainer_was_killed_is_not_found_and_its_file_goes(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from swarmflow.runtime.transport.invite import Invite, publish_local\n"
        "publication = publish_local(Invite.parse(sys.argv[1]), Path(sys.argv[2]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", script, str(INVITE), str(tmp_path)], cwd=root, check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert find_local_invites(tmp_path) == []
    assert list(tmp_path.glob("*.json")) == []


def test_several_runs_are_named(tmp_path: Path) -> None:
    other = invite_of(*INVITE.trainers, owner=OTHER, name="wikipedia")
    publications = [publish_local(invite, tmp_path) for invite in (INVITE, other)]
    with pytest.raises(NetworkError, match=rf"shakespeare \({RUN_ID}\), wikipedia \({OTHER.run_id}\)"):
        local_invite(tmp_path)
    publications[0].withdraw()
    assert local_invite(tmp_path) == other
    publications[1].withdraw()


def test_rubbish_in_the_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "rubbish.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    publication = publish_local(INVITE, tmp_path)
    assert find_local_invites(tmp_path) == [INVITE]
    publication.withdraw()


def test_the_folder_is_the_users_own() -> None:
    assert runs_folder({"XDG_RUNTIME_DIR": "/run/user/1"}) == Path("/run/user/1/swarmflow/runs")
    assert runs_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/swarmflow/runs")
    assert runs_folder({}) == Path.home() / ".cache/swarmflow/runs"
