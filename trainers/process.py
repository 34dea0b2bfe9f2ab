"""A trainer's process: starts, resumes or joins a run, feeds and perhaps leads it, and writes the model."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from swarmflow.activity import doing
from swarmflow.authority.policy import AccessPolicy
from swarmflow.compute.export import export_note
from swarmflow.core.protocol.actions import Exit, Rejoin
from swarmflow.core.protocol.types import ADDRESSES_MAX
from swarmflow.errors import NetworkError, PortTakenError, SwarmflowError, TakenError, raise_all
from swarmflow.manifest import Manifest
from swarmflow.preparation.model_check import check_weights
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.answering import answering
from swarmflow.runtime.operations.ending import Threads, end_now, ends_with
from swarmflow.runtime.operations.finding import FoundRun, find_leader
from swarmflow.runtime.operations.folders import checkpoints_folder
from swarmflow.runtime.operations.left_runs import LeftRun, write_left
from swarmflow.runtime.operations.reach import Announced, local_addresses, report_reach
from swarmflow.runtime.transport.addresses import peer_of
from swarmflow.runtime.transport.invite import Invite, warn_of_expiry
from swarmflow.runtime.transport.node import Node
from trainers.exports import check_exports, clear_up_exports
from trainers.found import OnDisk, newest_version
from trainers.inviting import give_invite, keep_given, latest_invite, published, written_invite
from trainers.life import TrainerLife
from trainers.needs import disk_needs, shortfalls
from trainers.page import RunPage
from trainers.plan import new_manifest
from trainers.recutting import go_on_with_another_cut
from trainers.run import Run
from trainers.showing import show_run

if TYPE_CHECKING:
    from swarmflow.terminal.process_view import ProcessView

log = logging.getLogger("swarmflow")

N = TypeVar("N")

_INVITE_WAIT_S = 120.0  # the leader writes its invite when its corpus is read and its model checked: minutes at most
_INVITE_RETRY_S = 5.0  # until an invite by which nobody answered is tried once more
_FIND_S = 20.0  # as long as a peer's first search: then a person should look at the invite
_FIND_OTHERS_S = 6.0  # other trainers elect a leader within seconds of the former one's death
_FIND_AGAIN_S = 12.0  # a --join trainer that starts again gives each other trainer this time to lead
_POLL_S = 0.2  # between two looks at a file on this machine, which cost nothing
_CLAIM_EVERY_S = 1.0  # a claim that was freed, or a file that was deleted, is missed for no longer
_SIGNALS = 2  # a further one ends the process at once


def main(run: Run, view: ProcessView | None = None) -> int:
    """Run a trainer, and return the exit code. view: on its terminal, if it has one."""
    code: int = uvloop.run(_run(run, view))
    return code


async def _run(run: Run, view: ProcessView | None) -> int:
    async with AsyncExitStack() as stack:
        first = run.folder.manifest() is None  # else it has trained here before, and can wait for the others
        invite, node = await lead_or_join(run, partial(start_node, run, first=first))
        stack.push_async_callback(node.stop)
        stop, announced = _Stop(), Announced(run.options.announce)
        page = await RunPage.serve(stack, run.options, run.metrics)
        show_run(stack, page, node, view)
        while True:
            outcome = await _one_life(run, node, announced, page, invite, stop, first=first)
            if ends_with(outcome, leaving=stop.count > 0):
                return 0
            first = False
            run.yield_output()
            invite = latest_invite(run, invite)


def _own_manifest(run: Run) -> Manifest:
    """Return the manifest of the run that this trainer leads: the earlier one when it resumes, else a new one.

    A changed run without a committed step keeps its id: its invite stays valid, and peers join it again. Raises
    AuthorityError where the owner's key cannot be made or read.
    """
    manifest = run.earlier()
    if manifest is None:
        former = run.former()
        with doing("checking the model, and cutting it into stages"):
            manifest = new_manifest(run.config, run.corpus, run.authority.own_run())
        if former is not None:
            log.info("RUN.toml or the data have changed; no step was committed before, so the run begins with these")
        cut = ", ".join(str(block) for block in manifest.cut)
        log.info(
            "%d stage%s%s",
            manifest.stages,
            "s" * (manifest.stages > 1),
            f", cut before the blocks {cut}" if cut else "",
        )
    return manifest


def _check_disk(run: Run, manifest: Manifest) -> None:
    """Log the disk space that the run may take, and what is missing; files of killed exports are removed first.

    Raises ForeignFileError where other files are in the place of its exports.
    """
    clear_up_exports(run.output, manifest.run_id)
    check_exports(run.output, manifest.run_id)
    needs = disk_needs(manifest, run.config)
    log.info("disk: up to %s", needs)
    for line in shortfalls(needs, checkpoints_folder(run.folder.path, manifest), run.output):
        log.warning("%s", line)


async def lead_or_join(run: Run, start: Callable[[Invite | None], Awaitable[N]]) -> tuple[Invite | None, N]:
    """Start the node of a trainer that leads (None), or that joins by an invite; return the invite and the node.

    The invite that lies in the output may be a former leader's: the present one deletes that when it has the claim,
    and writes its own when it can be reached. So where nobody answers, another one is waited for. Raises what `start`
    raises, NetworkError and ConfigError.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _INVITE_WAIT_S
    while True:
        invite = None if run.try_to_lead() else await _invite_to_join(run, deadline_s)
        try:
            return invite, await start(invite)
        except NetworkError as error:
            if invite is None or run.options.invite is not None or loop.time() > deadline_s:
                raise
            log.warning("the invite in %s leads nowhere (%s); waiting for another one", run.output, error)
        retry_s = loop.time() + _INVITE_RETRY_S
        while loop.time() < retry_s and written_invite(run) == invite:
            await asyncio.sleep(_POLL_S)


async def _invite_to_join(run: Run, deadline_s: float) -> Invite:
    """Return the given invite, or that of the leader in the same folder. Raises NetworkError, ConfigError."""
    if run.options.invite is not None:
        warn_of_expiry(run.options.invite.trainer)
        return run.may_join(run.options.invite)
    log.info("another trainer leads from %s; waiting for its invite", run.output)
    with doing(f"waiting for the invite of the trainer that leads from {run.output}"):
        while (invite := written_invite(run)) is None:
            if asyncio.get_running_loop().time() > deadline_s:
                raise NetworkError(f"the trainer that leads from {run.output} has written no invite; is it alive?")
            await asyncio.sleep(_POLL_S)
    return run.may_join(invite)


async def start_node(run: Run, invite: Invite | None, *, first: bool) -> Node:
    """Start the node, on the requested port, else on the earlier one of this folder if it is free."""
    may_lead = invite is None or run.may_go_on_alone
    listen = run.options.listen or "0.0.0.0:0"
    any_port = listen.endswith(":0")
    if any_port:
        listen = f"{listen[:-1]}{run.folder.port}"
    known = (*(invite.trainers if invite is not None else ()), *run.folder.trainers)
    start = partial(
        Node.start,
        identity_path=run.folder.identity,
        announce=list(run.options.announce),
        bootstrap=list(dict.fromkeys(known)),
        may_be_alone=may_lead,
        patient=not first and not may_lead,
    )
    try:
        node = await start(listen=[listen])
    except PortTakenError as error:
        if not any_port or not run.folder.port:
            raise
        log.warning("%s is another's now (%s): invites that name it alone lead nowhere", listen, error)
        node = await start(listen=[f"{listen[: listen.rindex(':')]}:0"])
    ports = [part.split("/")[0] for address in node.addresses() for part in address.split("/tcp/")[1:]]
    if ports and any_port:
        run.folder.keep_port(int(ports[0]))
    return node


async def _one_life(
    run: Run, node: Node, announced: Announced, page: RunPage, invite: Invite | None, stop: _Stop, *, first: bool
) -> Exit | Rejoin:
    """Run one incarnation: as a trainer of a run that another trainer leads, else as the leader."""
    manifest = _own_manifest(run) if invite is None else None
    run_id, name = (manifest.run_id, manifest.name) if manifest is not None else _named(invite)
    session = _session(run, node, run_id)
    trainers = tuple(dict.fromkeys((*(invite.trainers if invite is not None else ()), *run.folder.trainers)))

    def own_invite() -> Invite:
        addresses = tuple(dict.fromkeys((*node.addresses(), *_beside(run, node), *trainers)))
        return run.authority.invite(run_id, name, addresses[:ADDRESSES_MAX], session.access.policy)

    def on_takeover() -> None:
        session.spawn(lead_on(run, own_invite()), "the claim to the output of who led before")

    life = TrainerLife(session, run.config, run.corpus, run.folder, run.steplog, run.timeline, on_takeover)
    page.ask = life.answers.report
    session.open(life.effects(), life.read)
    announced.serve(session.requests)
    await session.links.start()
    stop.ends(session)
    try:
        where = run.authority.invite(run_id, name, trainers[:ADDRESSES_MAX], None) if trainers else None
        found = await _find(run, session, where, first, invited=invite is not None)
        if found is not None:
            run.yield_output()
            await take_up(run, found.manifest)
            if (newest := await _newest(run, session, found.manifest)) is not None:
                life.join(found, newest)
            session.spawn(report_reach(session, own_invite(), found.leader), "trying what trainers announce")
        elif not session.ended.done():
            await _lead(run, session, life, manifest or _own_manifest(run))
        session.spawn(_follow_policy(run, session), "the policy of the run")
        if session.ended.done():
            return await session.ended
        run.metrics.describe_process("trainer", node.name, run_id)
        session.spawn(stay_in_charge(run, life, own_invite), "the claim to the output")
        async with answering(node.serve, session.access, life.answers.report) as counter:
            with published(run.authority.local_invite(own_invite(), session.access.policy), counter):
                give_invite(run, own_invite(), leads=found is None, first=first)
                stop.drain_with(life.drain)
                outcome: Exit | Rejoin = await session.ended
        if isinstance(outcome, Exit):
            _remember_end(run, LeftRun(run_id, name, life.version, run.config.train.steps, str(run.output.absolute())))
        return outcome
    finally:
        run.yield_output()  # before the goodbye: another trainer may lead as soon as it receives it
        await session.close()
        life.close()


async def take_up(run: Run, manifest: Manifest) -> None:
    """Make a run that of this trainer's folder, after all checks. Raises ForeignFileError."""
    if manifest.boundary is not None:
        log.warning("%s", export_note(manifest.boundary))
    with doing("checking the disk space"):
        await asyncio.to_thread(_check_disk, run, manifest)
    run.folder.keep_manifest(manifest)


def _session(run: Run, node: Node, run_id: str) -> Session:
    """Return a session of a trainer of the run, which keeps new policies and passes them on. Raises AuthorityError."""
    session = Session(node, run.authority.access(run_id), run.metrics)

    def on_policy(policy: AccessPolicy) -> None:
        run.authority.keep(policy, run_id)
        session.spread(policy)
        if policy.number:  # not the first one, by which the run begins
            what = policy.number, policy.peers, len(policy.revoked)
            log.info("the run's policy %d: peers: %s; revoked certificates: %d", *what)

    session.on_policy = on_policy
    return session


async def _follow_policy(run: Run, session: Session) -> None:
    """Take up the policy that another process writes into the output."""
    while True:
        policy = run.authority.changed(session.access.run_id)
        if policy is not None:
            session.adopt(policy)
        await asyncio.sleep(_CLAIM_EVERY_S)


async def _newest(run: Run, session: Session, manifest: Manifest) -> OnDisk | None:
    """Return the newest version, for which whole checkpoints are read. None: the session has ended meanwhile."""
    reading = asyncio.to_thread(newest_version, run.folder, run.output, manifest.fingerprint)
    with doing("reading the checkpoints that are here"):
        return await session.unless_ended(reading)


async def _lead(run: Run, session: Session, life: TrainerLife, manifest: Manifest) -> None:
    """Begin or resume the run, after all checks."""
    # Not before: another trainer might have led the unchanged run.
    if run.is_cut_otherwise(manifest):
        with doing(f"cutting the run into other stages, as {run.options.run_toml} asks for"):
            manifest = await asyncio.to_thread(go_on_with_another_cut, run, manifest)
    await take_up(run, manifest)
    policy = run.authority.govern(manifest.fingerprint, run.config.run.peers, session.access.policy)
    session.adopt(policy)
    newest = await _newest(run, session, manifest)
    if newest is None:
        return
    if newest.version == 0 and not manifest.from_seed:
        with doing("checking the weights of the model"):
            raise_all(check_weights(run.config.model, manifest.model))
    life.lead(manifest, newest)


def _beside(run: Run, node: Node) -> list[str]:
    """Return own addresses beside those announced: near processes join by them, and can report a wrong --announce."""
    return local_addresses(node.listening, node.name) if run.options.announce else []


async def stay_in_charge(run: Run, life: TrainerLife, invite: Callable[[], Invite]) -> None:
    """Hold the claim to the output while this trainer leads; a frozen former leader releases it only later.

    A trainer that starts without an invite begins a lineage of its own where the claim is free, and waits where the
    claim is held and no invite is there. Deleted files of the output are made again, and so is another one's invite.
    """
    reported = False
    while True:
        await asyncio.sleep(_CLAIM_EVERY_S)
        try:
            if run.folder.beat():
                life.keep_tokenizer()
            life.look_at_disk()
            if not life.leads:
                run.yield_output()  # it may have taken the claim as it lost the lead
            else:
                await asyncio.to_thread(run.stay_in_charge)
                if run.lock is not None:
                    await asyncio.to_thread(keep_given, run, invite())
            reported = False
        except TakenError:
            raise
        except (SwarmflowError, OSError) as error:  # the disk refuses at the moment
            if not reported:
                log.warning("%s; it is tried again", error)
            reported = True


def _named(invite: Invite | None) -> tuple[str, str]:
    assert invite is not None, "a trainer that does not lead was invited"
    return invite.run_id, invite.name


async def _find(run: Run, session: Session, where: Invite | None, first: bool, *, invited: bool) -> FoundRun | None:
    """Find the leader of the run; None: there is none, and this trainer may lead, or the session is over.

    where: its known trainers. invited: another trainer should lead; where none does, an invited trainer that starts
    again tries to lead, if its disk knows a version to go on from. Raises NetworkError.
    """
    if where is None:
        return None
    timeout_s = _FIND_OTHERS_S
    if invited:
        timeout_s = _FIND_S if first else _FIND_AGAIN_S * (1 + _rank(session.me.name, run.folder.trainers))
    try:
        found = await session.unless_ended(find_leader(session, where, timeout_s=timeout_s))
    except NetworkError as error:
        if invited and first:
            raise
        if invited and not await asyncio.to_thread(run.try_to_lead, again=True):
            session.end(Rejoin(str(error)))
        return None
    if found is not None:
        run.check_joins(found.manifest)
    return found


def _rank(name: str, others: tuple[str, ...]) -> int:
    """Return the place of a trainer among those that it knew, so that two of them do not begin to lead at once."""
    return sorted({name, *(peer_of(address) for address in others)}).index(name)


async def lead_on(run: Run, invite: Invite) -> None:
    """Claim the output for this trainer, which has taken over, and publish its invite there."""
    try:
        await asyncio.to_thread(run.claim)
        give_invite(run, invite, leads=True, first=False)
    except (SwarmflowError, OSError) as error:
        log.warning("%s", error)  # the disk refuses; `stay_in_charge` tries both again


def _remember_end(run: Run, ended: LeftRun) -> None:
    """Keep where the result is, for later requests for the status, unless this machine has no place for it."""
    finished = ended.version >= ended.steps and (run.output / "final").is_dir()
    try:
        write_left(replace(ended, finished=finished))
    except OSError as error:
        log.warning("`swarmflow status` will not know how the run ended: %s", error.strerror)


class _Stop:
    """The effects of Ctrl-C and SIGTERM: the first leaves in order, the second at once, without waiting for threads."""

    def __init__(self) -> None:
        self.count = 0
        self._threads = Threads.of_this_loop()
        self.on_first: Any = lambda: None
        self.on_second: Any = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def ends(self, session: Session) -> None:
        """Have each signal end a session, as long as there is nothing to drain."""
        self.on_first = lambda: session.end(Exit("left before it had joined"))
        self.on_second = lambda: session.end(Exit("left at once"))

    def drain_with(self, drain: Callable[[], None]) -> None:
        """Have the first signal drain the process; at once, if there was one already."""
        self.on_first = drain
        if self.count:
            drain()

    def _signalled(self) -> None:
        self.count += 1
        if self.count > 1:
            self._threads.abandon()
        if self.count > _SIGNALS:
            end_now()
        (self.on_first if self.count == 1 else self.on_second)()
