"""The checks against a run: trainer, clock, version, memory for its stages, the link, and how others connect."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec

from swarmflow.decoding import UNDECODABLE
from swarmflow.doctor.diagnosis import Diagnosis, fail, ok, warn
from swarmflow.errors import AuthorityError, IncompatibleError, ModelError, NetworkError
from swarmflow.files import readable_size
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.asking import ask_trainers, launch_asker
from swarmflow.runtime.transport.invite import Invite

if TYPE_CHECKING:
    from swarmflow.runtime.operations.own_reach import ReachEvidence

CLOCK_OFF_MAX_S = 3.0  # that hivemind's DHT allows
CLOCK_OFF_WARN_S = 1.0
ANSWER_S = 10.0  # a trainer on a busy machine answers late, and whoever asks a doctor waits for it
REACH_S = 45.0  # the daemon takes 30 s to find out that it needs a relay, and to have one
LINK_SLOW_BYTES_PER_S = 1_250_000  # 10 Mbit/s
DAY_S = 86_400.0
_SET_CLOCK = "set the clock by NTP (Linux: sudo timedatectl set-ntp true; WSL: sudo hwclock -s; macOS: in its settings)"


class _Time(msgspec.Struct):
    """Of a status, what is wanted here."""

    time: float  # of the leader, since 1970


def check_invite(invite: Invite, now_s: float) -> Diagnosis:
    """Check for what the invite is good, and how long. now_s: since 1970."""
    key = invite.key
    run = f"of run {invite.name}"
    if key is None:
        return ok("invite", f"{run}, without a certificate: good where the run takes peers from anyone")
    expires_s = key.certificate.expires_s
    found = f"{run}, for a {key.certificate.role}"
    if not expires_s:
        return ok("invite", f"{found}, for as long as it is not revoked")
    days = (expires_s - now_s) / DAY_S
    if days <= 0:
        return fail("invite", f"{found}; it has expired", "ask the run's owner for a new invite")
    return ok("invite", f"{found}, for {days:.1f} days more")


async def check_trainer(
    invite: Invite, clock: Callable[[], float] = time.time, answer_s: float = ANSWER_S
) -> list[Diagnosis]:
    """Ask a trainer of the invite, and compare the clocks.

    clock: the time of this machine, since 1970. answer_s: for which it is waited for.
    """
    reasons: list[str] = []
    daemon = await launch_asker(answer_s)
    try:
        answer = await ask_trainers(daemon, invite, None, reasons, answer_s)
        if answer is not None:  # once more, on the connection that there is now: it takes one round trip
            sent_s = clock()
            answer = await ask_trainers(daemon, invite, None, reasons, answer_s)
            arrived_s = clock()
    finally:
        await daemon.stop()
    if answer is None:
        advice = "ask whether its trainer runs, and for a current invite; is this machine's network up?"
        return [fail("trainer", "; ".join(dict.fromkeys(reasons)) or "no trainer answers", advice)]
    try:
        theirs_s = msgspec.json.decode(answer, type=_Time).time
    except UNDECODABLE as error:
        advice = "ask the run's owner which version of swarmflow the trainer has"
        return [fail("trainer", f"its answer is no status of a run: {error}", advice)]
    round_trip_s = arrived_s - sent_s
    reached = ok("trainer", f"answers within {1000 * round_trip_s:.0f} ms")
    return [reached, judge_clock((sent_s + arrived_s) / 2 - theirs_s, round_trip_s / 2)]


def judge_clock(ahead_s: float, uncertain_s: float) -> Diagnosis:
    """Judge how far this machine's clock is ahead of the swarm's, which is known so exactly."""
    off_s = max(0.0, abs(ahead_s) - uncertain_s)  # at least
    direction = "ahead of" if ahead_s > 0 else "behind"
    found = f"{abs(ahead_s):.2f} s {direction} the trainer's (give or take {uncertain_s:.2f} s)"
    if off_s > CLOCK_OFF_MAX_S:
        return fail("clock", f"{found}; {CLOCK_OFF_MAX_S:g} s are allowed", _SET_CLOCK)
    if off_s > CLOCK_OFF_WARN_S:
        return warn("clock", f"{found}; {CLOCK_OFF_MAX_S:g} s are allowed", _SET_CLOCK)
    return ok("clock", found)


async def check_as_a_peer(
    invite: Invite,
    listen: str,
    announce: tuple[str, ...],
    memory_bytes: int,
    host_bytes: int = 0,
    reach_s: float = REACH_S,
) -> AsyncIterator[Diagnosis]:
    """Join the network of the run for a while, as a peer would be connected, and look around.

    listen: HOST:PORT. memory_bytes, host_bytes: that a stage may take, and its state in RAM beside a GPU. reach_s: the
    longest wait for what the daemon finds out.
    """
    from swarmflow.runtime.operations.link_trial import LinkTrial, measure_link
    from swarmflow.runtime.operations.own_reach import probe_reach
    from swarmflow.runtime.operations.visit import visit

    async with contextlib.AsyncExitStack() as stack:
        try:
            session, found = await stack.enter_async_context(visit(invite, listen, announce))
        except IncompatibleError as error:
            yield fail("version", str(error), "a run and its peers need the same version")
            return
        except (NetworkError, AuthorityError) as error:
            yield fail("joining", str(error), "a peer would end with this line")
            return
        yield ok("version", "the run has the version of this software")
        yield check_stages(found.manifest, memory_bytes, host_bytes)
        session.fit(found.manifest)
        LinkTrial(session.requests).serve()
        try:
            link = await measure_link(session.requests, found.leader)
            yield judge_link(link.round_trip_s, link.down_bytes_per_s, link.up_bytes_per_s)
        except NetworkError as error:
            yield warn("link", f"not measured: {error}", "look at the network between this machine and the trainer")
        try:
            reach = await probe_reach(session, invite, found.leader, reach_s)
        except NetworkError as error:
            yield warn("reach", f"not known: {error}", "look at the network of this machine")
        else:
            yield judge_reach(reach)


def judge_link(round_trip_s: float, down_bytes_per_s: float, up_bytes_per_s: float) -> Diagnosis:
    """Judge the link to the trainer, by one short transfer in each direction."""
    rates = f"{8e-6 * down_bytes_per_s:,.0f} Mbit/s down, {8e-6 * up_bytes_per_s:,.0f} Mbit/s up"
    found = f"to the trainer: {rates}, round trip {1000 * round_trip_s:.0f} ms"
    if min(down_bytes_per_s, up_bytes_per_s) < LINK_SLOW_BYTES_PER_S:
        return warn("link", found, "use a cable instead of Wi-Fi, or end other transfers: a slow link delays each step")
    return ok("link", found)


def judge_reach(evidence: ReachEvidence) -> Diagnosis:
    """Judge how others connect to this machine, by what was seen of it."""
    from swarmflow.runtime.operations.own_reach import ADVICE

    if evidence.reach in ("public", "local"):
        return ok("reach", evidence.sentence())
    nat = {"punched": "a NAT that lets holes be punched: ", "relay": "a NAT that lets no holes be punched so far: "}
    return warn("reach", f"{nat.get(evidence.reach, '')}{evidence.sentence()}", ADVICE)


def check_stages(manifest: Manifest, memory_bytes: int, host_bytes: int = 0) -> Diagnosis:
    """Check which stages of the run have room in this memory, without microbatches.

    host_bytes: of RAM beside a GPU, in which the state of a stage may be.
    """
    from swarmflow.compute.demands import stage_memory

    def fits_in_two(stage: int) -> bool:
        found = stage_memory(manifest, stage, in_host_memory=True)
        return found.device_bytes <= memory_bytes and found.host_bytes <= host_bytes

    try:
        needed = [stage_memory(manifest, stage).device_bytes for stage in range(manifest.stages)]
        beside = [stage for stage, size in enumerate(needed) if size > memory_bytes and fits_in_two(stage)]
    except ModelError as error:
        return fail("stages", str(error), "install the transformers version of constraints.txt")
    span = f"stages of the run take {readable_size(min(needed))} to {readable_size(max(needed))}"
    if beside:
        span += f", {', '.join(map(str, beside))} with the state in RAM, as --state auto has it"
    fitting = [stage for stage, size in enumerate(needed) if size <= memory_bytes or stage in beside]
    if not fitting:
        advice = "end other programs, use a machine with more memory, or ask the run's owner to cut the model finer"
        return fail("stages", f"{span}, and none fits into {readable_size(memory_bytes)}", advice)
    if len(fitting) < len(needed):
        shown = ", ".join(map(str, fitting))
        advice = "give --stage auto to the peer, so that it is placed at one that fits"
        return warn("stages", f"{span}; of {len(needed)} these fit into {readable_size(memory_bytes)}: {shown}", advice)
    return ok("stages", f"{span}; each fits into {readable_size(memory_bytes)}")
