"""Who leads from an output, on a disk that refuses for a while: it goes on, and takes the claim when it can."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import ExitStack
from pathlib import Path

import pytest

from swarmflow.errors import TakenError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.view.timeline import Timeline
from tests.disks import small_disk
from tests.owners import RUN_ID, trainer_access
from tests.runtime.nodes import started, until
from tests.trainers.test_before_begun import INVITE, opened
from tests.trainers.test_lock import held_elsewhere
from trainers.exports import exports_bytes
from trainers.found import OnDisk
from trainers.life import TrainerLife
from trainers.plan import new_manifest
from trainers.process import lead_on, stay_in_charge
from trainers.run import Run


async def _leading(run: Run, session: Session) -> TrainerLife:
    life = TrainerLife(session, run.config, run.corpus, run.folder, None, Timeline(), lambda: None)
    session.open(life.effects(), life.read)
    life.lead(new_manifest(run.config, run.corpus, RUN_ID), OnDisk(None, 0))
    return life


@pytest.mark.asyncio
async def test_a_disk_that_refuses_ends_no_heir(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "swarmflow"),
        small_disk(tmp_path / "out", 8 << 20) as disk,
        ExitStack() as stack,
    ):
        run = opened(stack, tmp_path, state="elsewhere")
        async with started(tmp_path, 1) as [node]:
            session = Session(node, trainer_access(), Metrics())
            life = await _leading(run, session)
            (run.output / "state" / "leader.lock").touch()
            run.invite_path.write_text("of the former leader\n")
            disk.remount("ro")
            await lead_on(run, INVITE)
            charge = asyncio.create_task(stay_in_charge(run, life, lambda: INVITE))
            await until(lambda: "it is tried again" in caplog.text or charge.done())
            assert not charge.done()
            disk.remount("rw")
            await until(lambda: run.invite_path.read_text() == f"{INVITE}\n")
            assert run.lock is not None
            held_elsewhere(run.output / "state" / "leader.lock")
            with pytest.raises(TakenError, match="in use by another trainer now, process 12 on node7"):
                await charge
            run.yield_output()
            await session.close()
    assert caplog.text.count("it is tried again") == 1
    assert caplog.text.count("Read-only file system") == 2


def test_what_is_deleted_meanwhile_is_not_counted(tmp_path: Path) -> None:
    for name in ("step-4", "step-8"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({}))
    (tmp_path / "step-8" / "gone").symlink_to("nowhere")
    assert exports_bytes(tmp_path) == 4 + len("nowhere")
