"""The invite in the output: a former leader's that lies there, and the present one where it cannot be written."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from swarmflow.errors import NetworkError
from tests.owners import invite_of
from tests.runtime.nodes import started, until
from tests.trainers.test_before_begun import opened
from trainers.inviting import give_invite, write_invite, written_invite
from trainers.lock import FolderLock
from trainers.process import lead_or_join, start_node

DEAD = "/ip4/127.0.0.1/tcp/1/p2p/QmPsRuWLuskPrTe3gRttmenugNBDB6Y2BcFpVH8hhbN9md"


def test_an_invite_is_for_its_user_alone(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path / "earlier"):
        (tmp_path / "earlier").touch(0o644)
        write_invite(path, invite_of(DEAD))
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (f"{invite_of(DEAD)}\n", 0o400)


@pytest.mark.asyncio
async def test_where_nobody_answers_the_present_leaders_invite_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack, caplog.at_level(logging.INFO, "swarmflow"):
        (tmp_path / "joins").mkdir()
        run = opened(stack, tmp_path / "joins")
        run.invite_path.parent.mkdir(parents=True, exist_ok=True)
        lock = FolderLock.acquire(run.output / "state" / "leader.lock")
        assert lock is not None
        stack.callback(lock.release)
        write_invite(run.invite_path, invite_of(DEAD))
        async with started(tmp_path, 1) as [leader]:
            joining = asyncio.create_task(lead_or_join(run, partial(start_node, run, first=True)))
            await until(lambda: "leads nowhere" in caplog.text or joining.done())
            present = invite_of(*leader.addresses())
            write_invite(run.invite_path, present)
            invite, node = await joining
            await node.stop()
    assert invite == present


def test_an_invite_that_cannot_be_written_ends_a_trainer_only_as_it_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    invite = invite_of(DEAD)
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "swarmflow"):
        run = opened(stack, tmp_path)
        run.options = replace(run.options, invite_file=tmp_path / "no folder" / "invite")
        with pytest.raises(NetworkError, match="the invite cannot be written"):
            give_invite(run, invite, leads=True, first=True)
        give_invite(run, invite, leads=True, first=False)
        assert written_invite(run) == invite, "the others of its output need it all the same"
    assert "the invite cannot be written" in caplog.text


def test_a_closed_output_ends_a_trainer_only_as_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    invite = invite_of(DEAD)
    with ExitStack() as stack:
        run = opened(stack, tmp_path)
        with suppress(BrokenPipeError), os.fdopen(writer, "w") as closed:
            monkeypatch.setattr("sys.stdout", closed)
            with pytest.raises(BrokenPipeError):
                give_invite(run, invite, leads=True, first=True)
            give_invite(run, invite, leads=True, first=False)
        assert written_invite(run) == invite
