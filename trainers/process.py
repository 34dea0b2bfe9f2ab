"""A trainer's process: starts, resumes or joins a run, feeds and perhaps leads it, and writes what it learns."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import uvloop

from swarmflow.config import RunConfig, load
from swarmflow.core.actions import Exit, Rejoin
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.finding import Found, find_leader
from swarmflow.runtime.invite import Invite, publish_local
from swarmflow.runtime.logs import set_up_logging
from swarmflow.runtime.metrics import Metrics
from swarmflow.runtime.node import Node
from swarmflow.runtime.session import Session, state_folder
from trainers.data import Corpus, open_corpus
from trainers.life import Life
from trainers.plan import check_same_run, new_manifest, read_model, vocabulary
from trainers.state import StateFolder, earlier_manifest, newest_version, try_lock
from trainers.steplog import StepLog

log = logging.getLogger("swarmflow")

_INVITE_WAIT_S = 120.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Options:
    """The command line of a trainer."""

    run_toml: str
    invite: str | None
    state_dir: str | None
    invite_file: str | None
    json_file: str | None
    metrics_port: int | None
    metrics_host: str
    listen: str | None
    announce: tuple[str, ...]


@dataclass
class Run:
    """What stays the same over a trainer's lives. leading: it holds the lock that lets it lead on this machine."""

    options: Options
    config: RunConfig
    model: dict[str, object]
    corpus: Corpus
    folder: StateFolder
    metrics: Metrics
    steplog: StepLog | None
    locks: ExitStack
    leading: bool = False

    @property
    def output(self) -> Path:
        """Where results go."""
        return self.config.run.output

    def try_to_lead(self) -> bool:
        """Take the right to lead, if nobody on this machine has it and the run was not started elsewhere."""
        if not self.leading and self.options.invite is None:
            state_folder(self.output / "state")
            self.leading = try_lock(self.locks, self.output / "state" / "leader.lock") is not None
        return self.leading


def main(values: dict[str, Any]) -> int:
    """Run a trainer; the exit code."""
    options = Options(**{field.name: values[field.name] for field in fields(Options)})
    set_up_logging()
    config = load(Path(options.run_toml))
    model = read_model(config)
    with ExitStack() as stack:
        wanted = Path(options.state_dir) if options.state_dir else None
        folder = StateFolder.open(stack, wanted, config.run.output)
        corpus = open_corpus(config, vocabulary(model), config.run.output / "state" / "cache")
        log.info("data: %d tokens, %d sequences of %d", corpus.tokens, corpus.sequences, config.data.seq_len)
        steplog = StepLog(Path(options.json_file)) if options.json_file else None
        if steplog is not None:
            stack.callback(steplog.close)
        metrics = Metrics()
        stack.callback(metrics.close)
        run = Run(options, config, model, corpus, folder, metrics, steplog, stack)
        code: int = uvloop.run(_run(run))
        return code


async def _run(run: Run) -> int:
    manifest = _own_manifest(run) if run.try_to_lead() else None
    if manifest is not None and _finished(run, manifest):
        return 0
    async with AsyncExitStack() as stack:
        invite = None if manifest is not None else await _invite_to_join(run)
        node = await _start_node(run, invite)
        stack.push_async_callback(node.stop)
        if run.options.metrics_port is not None:
            port = run.metrics.serve(run.options.metrics_port, run.options.metrics_host)
            log.info("metrics: http://%s:%d/metrics", run.options.metrics_host, port)
        stop = _Stop()
        while True:
            outcome = await _one_life(run, node, manifest, invite, stop)
            if isinstance(outcome, Exit):
                log.info("%s", outcome.reason)
                if not outcome.ok:
                    raise SwarmflowError(outcome.reason)
                return 0
            manifest = _own_manifest(run) if run.try_to_lead() else None


def _own_manifest(run: Run) -> Manifest:
    """The manifest of the run that this trainer leads: the earlier one when it resumes, else a new one."""
    manifest = earlier_manifest(run.folder, run.output)
    if manifest is None:
        manifest = new_manifest(run.config, run.model, run.corpus)
        cut = ", ".join(str(block) for block in manifest.cut)
        log.info("%d stages%s", manifest.stages, f", cut before the blocks {cut}" if cut else "")
    else:
        check_same_run(manifest, run.config, run.corpus, f"the run in {run.output}")
    run.folder.keep_manifest(manifest)
    return manifest


def _finished(run: Run, manifest: Manifest) -> bool:
    """Whether all steps are done and the model is written."""
    newest = newest_version(run.folder, run.output, manifest.fingerprint)
    done = newest is not None and newest.version >= run.config.train.steps and (run.output / "final").is_dir()
    if done:
        log.info("the run is finished: %d steps, the model is in %s", run.config.train.steps, run.output / "final")
    return done


async def _invite_to_join(run: Run) -> Invite:
    """The invite given, or that of the trainer that leads from the same folder. Raises NetworkError."""
    if run.options.invite is not None:
        return Invite.parse(run.options.invite)
    path = run.output / "state" / "invite"
    deadline_s = asyncio.get_running_loop().time() + _INVITE_WAIT_S
    log.info("another trainer leads from %s; waiting for its invite", run.output)
    while not path.is_file():
        if asyncio.get_running_loop().time() > deadline_s:
            raise NetworkError(f"the trainer that leads from {run.output} has written no invite; is it alive?")
        await asyncio.sleep(_POLL_S)
    return Invite.parse(path.read_text())


async def _start_node(run: Run, invite: Invite | None) -> Node:
    listen = run.options.listen or f"0.0.0.0:{run.folder.port}"
    node = await Node.start(
        identity_path=run.folder.identity, listen=[listen], announce=list(run.options.announce),
        bootstrap=list(invite.trainers) if invite is not None else [],
    )  # fmt: skip
    ports = [part.split("/")[0] for address in node.addresses() for part in address.split("/tcp/")[1:]]
    if ports and run.options.listen is None:
        run.folder.keep_port(int(ports[0]))
    return node


async def _one_life(run: Run, node: Node, manifest: Manifest | None, invite: Invite | None, stop: _Stop) -> Exit | Rejoin:
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
            found = await _find(run, session, invite)
            life.join(found)
            own = Invite(invite.run_id, invite.name, tuple(dict.fromkeys((*node.addresses(), *invite.trainers)))[:16])
        publication = publish_local(own)
        try:
            _tell_invite(run, own, leads=manifest is not None)
            stop.on_first = life.drain
            if stop.count:
                life.drain()
            outcome: Exit | Rejoin = await session.ended
            return outcome
        finally:
            publication.withdraw()
    finally:
        await session.close()


async def _find(run: Run, session: Session, invite: Invite) -> Found:
    found = await find_leader(session, invite, timeout_s=30.0)
    check_same_run(found.manifest, run.config, run.corpus, f"the run {found.manifest.name}")
    run.folder.keep_manifest(found.manifest)
    return found


def _tell_invite(run: Run, invite: Invite, leads: bool) -> None:
    """Give the invite to the person, to the file that they named, and to trainers of the same folder."""
    print(f"\nTo join, type on any machine:\n\n  swarmflow peer --join {invite}\n", flush=True)
    run.metrics.describe_process("trainer", run.folder.path.name, invite.run_id)
    paths = [Path(run.options.invite_file)] if run.options.invite_file else []
    if leads:
        paths.append(run.output / "state" / "invite")
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
