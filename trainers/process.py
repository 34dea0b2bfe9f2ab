"""A trainer's process: starts, resumes or joins a run, feeds and perhaps leads it, and writes what it learns."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import uvloop

from swarmflow.core.actions import Exit, Rejoin
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.finding import Found, find_leader
from swarmflow.runtime.invite import Invite, publish_local
from swarmflow.runtime.node import Node
from swarmflow.runtime.session import Session
from trainers.life import Life
from trainers.plan import new_manifest
from trainers.run import Run
from trainers.state import newest_version

log = logging.getLogger("swarmflow")

_INVITE_WAIT_S = 120.0
_FIND_S = 20.0
_POLL_S = 0.2


def main(run: Run) -> int:
    """Run a trainer; the exit code."""
    code: int = uvloop.run(_run(run))
    return code


async def _run(run: Run) -> int:
    manifest = _own_manifest(run) if run.try_to_lead() else None
    async with AsyncExitStack() as stack:
        invite = None if manifest is not None else await _invite_to_join(run)
        node = await _start_node(run, invite)
        stack.push_async_callback(node.stop)
        stop = _Stop()
        first = True
        while True:
            outcome = await _one_life(run, node, manifest, invite, stop, first=first)
            if isinstance(outcome, Exit):
                log.info("%s", outcome.reason)
                if not outcome.ok:
                    raise SwarmflowError(outcome.reason)
                return 0
            if stop.count:
                log.info("left: %s", outcome.reason)
                return 0
            log.warning("joining again: %s", outcome.reason)
            first = False
            manifest = _own_manifest(run) if run.try_to_lead() else None
            invite = _latest_invite(run, invite)


def _own_manifest(run: Run) -> Manifest:
    """The manifest of the run that this trainer leads: the earlier one when it resumes, else a new one."""
    manifest = run.earlier()
    if manifest is None:
        manifest = new_manifest(run.config, run.corpus)
        cut = ", ".join(str(block) for block in manifest.cut)
        log.info("%d stages%s", manifest.stages, f", cut before the blocks {cut}" if cut else "")
    run.folder.keep_manifest(manifest)
    return manifest


async def _invite_to_join(run: Run) -> Invite:
    """The invite given, or that of the trainer that leads from the same folder. Raises NetworkError."""
    if run.options.invite is not None:
        return run.options.invite
    path = run.invite_path
    deadline_s = asyncio.get_running_loop().time() + _INVITE_WAIT_S
    log.info("another trainer leads from %s; waiting for its invite", run.output)
    while not path.is_file():
        if asyncio.get_running_loop().time() > deadline_s:
            raise NetworkError(f"the trainer that leads from {run.output} has written no invite; is it alive?")
        await asyncio.sleep(_POLL_S)
    return Invite.parse(path.read_text())


def _latest_invite(run: Run, invite: Invite | None) -> Invite | None:
    """Another trainer of the same output may lead by now, and have left its invite there."""
    if run.options.invite is not None or not run.invite_path.is_file():
        return invite
    return Invite.parse(run.invite_path.read_text())


async def _start_node(run: Run, invite: Invite | None) -> Node:
    listen = run.options.listen or "0.0.0.0:0"
    any_port = listen.endswith(":0")
    if any_port:
        listen = f"{listen[:-1]}{run.folder.port}"
    node = await Node.start(
        identity_path=run.folder.identity, listen=[listen], announce=list(run.options.announce),
        bootstrap=list(invite.trainers) if invite is not None else [],
    )  # fmt: skip
    ports = [part.split("/")[0] for address in node.addresses() for part in address.split("/tcp/")[1:]]
    if ports and any_port:
        run.folder.keep_port(int(ports[0]))
    return node


async def _one_life(
    run: Run, node: Node, manifest: Manifest | None, invite: Invite | None, stop: _Stop, *, first: bool
) -> Exit | Rejoin:
    """One incarnation, as leader where a manifest is given, else as a trainer that joins."""
    run_id = manifest.run_id if manifest is not None else invite.run_id if invite is not None else ""
    session = Session(node, run_id, run.metrics)
    life = Life(session, run.config, run.corpus, run.folder, run.steplog)
    session.open(life.effects(), life.read)
    await session.links.start()
    stop.on_first = lambda: session.end(Exit("left before it had joined"))
    stop.on_second = lambda: session.end(Exit("left at once"))
    try:
        if manifest is not None:
            newest = newest_version(run.folder, run.output, manifest.fingerprint)
            life.lead(manifest, newest)
            own = Invite(manifest.run_id, manifest.name, tuple(node.addresses()[:16]))
        else:
            assert invite is not None
            found = await _find(run, session, invite, first)
            if found is None:
                ended: Exit | Rejoin = await session.ended
                return ended
            life.join(found)
            own = Invite(invite.run_id, invite.name, tuple(dict.fromkeys((*node.addresses(), *invite.trainers)))[:16])
        run.metrics.describe_process("trainer", node.name, own.run_id)
        with _published(own):
            _tell_invite(run, own, leads=manifest is not None)
            stop.on_first = life.drain
            if stop.count:
                life.drain()
            outcome: Exit | Rejoin = await session.ended
            return outcome
    finally:
        await session.close()


async def _find(run: Run, session: Session, invite: Invite, first: bool) -> Found | None:
    """The leader; None when the session is over before. Who has been in the run before tries to lead it in between."""
    try:
        found = await session.unless_ended(find_leader(session, invite, timeout_s=_FIND_S))
    except NetworkError as error:
        if first:
            raise
        session.end(Rejoin(str(error)))
        return None
    if found is not None:
        run.check_same(found.manifest, f"the run {found.manifest.name}")
        run.folder.keep_manifest(found.manifest)
    return found


@contextmanager
def _published(invite: Invite) -> Iterator[None]:
    """The run is found on this machine without an invite, unless this machine has no place to say so."""
    try:
        publication = publish_local(invite)
    except NetworkError as error:
        log.warning("%s; peers here need the invite", error)
        yield
        return
    try:
        yield
    finally:
        publication.withdraw()


def _tell_invite(run: Run, invite: Invite, leads: bool) -> None:
    """Give the invite to the person, to the file that they named, and to trainers of the same folder."""
    print(f"\nTo join, type on any machine:\n\n  swarmflow peer --join {invite}\n", flush=True)
    paths = [run.options.invite_file] if run.options.invite_file else []
    if leads:
        paths.append(run.invite_path)
    for path in paths:
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(f"{invite}\n")
            part.replace(path)
        except OSError as error:
            raise NetworkError(f"the invite cannot be written to {path}: {error.strerror}") from None


class _Stop:
    """The first Ctrl-C or SIGTERM leaves in order, the second at once."""

    def __init__(self) -> None:
        self.count = 0
        self.on_first: Any = lambda: None
        self.on_second: Any = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        self.count += 1
        (self.on_first if self.count == 1 else self.on_second)()
