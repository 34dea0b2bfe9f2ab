"""The view of a run: its present state as its leader knows it, in the form of docs/view.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from swarmflow.core.commit.step import Step
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.protocol.messages import PeerSummary
from swarmflow.core.protocol.types import Member
from swarmflow.view.timeline import Timeline

HOPS_MAX = 4096  # hops of a step that a view lists; of more it lists none, since nobody could tell them apart

Hop = tuple[int, int, str, str]  # microbatch, stage, peer, and whether it is under way there or done


def view_of(
    leader: Leader,
    flights: FlightTable,
    timeline: Timeline,
    run: str,
    run_id: str,
    now_s: float,
    *,
    further: Iterable[Hop] = (),
) -> dict[str, Any]:
    """Return the view of a run.

    flights: the leader's own microbatches on their way. run, run_id: its name and its id. now_s: on the clock of the
    timeline. further: hops of the step that the leader itself does not know of, as a simulation does.
    """
    last, step = leader.last, leader.step
    shown = step is not None and step.plan.stages * step.plan.microbatches <= HOPS_MAX
    hops = _hops(step, flights, further) if step is not None and shown else []
    reason = leader.waiting_for
    return {
        "time": now_s,
        "run": run,
        "run_id": run_id,
        "phase": str(leader.phase),
        "waiting_for": reason,
        "waiting_s": timeline.wait(reason if step is None else "", leader.version, now_s),
        "step": leader.version,
        "version": leader.version,
        "durable_version": leader.safe.durable,
        "steps": leader.settings.steps,
        "loss": last.loss if last is not None else None,
        "tokens_per_s": last.tokens / max(last.seconds, 1e-9) if last is not None else None,
        "step_seconds": last.seconds if last is not None else None,
        "left_s": timeline.left_s(leader.settings.steps),
        "microbatches": leader.plan.microbatches,
        "stages": [
            {"stage": stage, "peers": [_peer(leader, entry) for entry in leader.membership.peers(stage)]}
            for stage in range(leader.plan.stages)
        ],
        "trainers": [_trainer(leader, entry) for entry in leader.membership.trainers()],
        "hops": hops,
        "links": _links(leader, step, hops) if step is not None else [],
    }


def _peer(leader: Leader, entry: MemberRecord) -> dict[str, Any]:
    serving = leader.step is not None and entry.process in leader.step.roster.id_set
    phase = "serving" if serving and entry.phase is MemberPhase.READY else str(entry.phase)
    phase = "waiting" if entry.phase is MemberPhase.MEASURING else phase
    return {
        "id": str(entry.process),
        "name": entry.process.name,
        "phase": "draining" if entry.draining else phase,
        "version": entry.version,
        "capacity": entry.member.capacity,
        "held": entry.load.held,
        "queued": entry.load.queued,
        "speed": round(entry.speed, 1),
        "address": host_of(entry.member),
        "summary": None if entry.summary is None else summary_of(entry.summary),
    }


def summary_of(summary: PeerSummary) -> dict[str, Any]:
    """Return what a peer reports of itself."""
    return {
        "microbatches": summary.hops,
        "tokens": summary.tokens,
        "compute_s": round(summary.compute_s, 3),
        "used_s": round(summary.used_s, 3),
        "wasted_s": round(summary.wasted_s, 3),
        "sent_bytes": summary.sent_bytes,
        "received_bytes": summary.received_bytes,
        "memory_bytes": summary.memory_bytes,
        "loading_bytes": summary.loading_bytes,
        "loading_total_bytes": summary.loading_total_bytes,
        "metrics_port": summary.metrics_port,
        "reach": summary.reach,
    }


def _trainer(leader: Leader, entry: MemberRecord) -> dict[str, Any]:
    return {
        "id": str(entry.process),
        "name": entry.process.name,
        "leads": entry.process == leader.me.process,
        "address": host_of(entry.member),
    }


def host_of(member: Member) -> str:
    """Return the host of a member's first address; empty: it has none, or is reached through a relay alone."""
    for address in member.addresses:
        parts = address.split("/")  # "/ip4/10.0.0.7/tcp/4001/p2p/NAME"
        if len(parts) > 2 and parts[1] in ("ip4", "ip6", "dns", "dns4", "dns6") and "p2p-circuit" not in parts:
            return parts[2]
    return ""


def _hops(step: Step, flights: FlightTable, further: Iterable[Hop]) -> list[Hop]:
    """Return where each microbatch of the step is, as far as this leader knows, and the further hops.

    A finished hop is known to it of every peer; one under way of its own microbatches on the first two stages.
    """
    done = {(stage, index): holder for stage, index, holder, _ in step.ledger.manifest()}
    hops: list[Hop] = [(index, stage, str(holder), "done") for (stage, index), holder in done.items()]
    for (epoch, index), flight in flights.entries.items():
        if epoch != step.epoch:
            continue
        for stage, holder in enumerate((flight.holder, flight.successor)):
            if holder is not None and (stage, index) not in done and stage < step.plan.stages:
                hops.append((index, stage, str(holder), "forward"))
    known = {(stage, index) for index, stage, *_ in hops}
    return [*hops, *(hop for hop in further if (hop[1], hop[0]) not in known)]


def _links(leader: Leader, step: Step, hops: Iterable[Hop]) -> list[tuple[str, str, int, float | None]]:
    """Return the links that the step's microbatches have taken: from, to, how many, and the time of one in seconds."""
    at = {(index, stage): peer for index, stage, peer, _ in hops}
    counts: Counter[tuple[str, str]] = Counter()
    for (index, stage), peer in at.items():
        before = at.get((index, stage - 1)) if stage else _trainer_of(step, index)
        if before is not None:
            counts[before, peer] += 1
    seconds = _seconds(leader)
    return [(a, b, count, seconds.get((a, b))) for (a, b), count in sorted(counts.items())]


def _trainer_of(step: Step, index: int) -> str | None:
    owner = step.assignment.owners.get(index)
    return None if owner is None else str(owner)


def _seconds(leader: Leader) -> dict[tuple[str, str], float]:
    """Return the time that a boundary tensor takes on each link whose rate is reported, in seconds."""
    tensor_bytes = leader.plan.boundary_bytes
    return {
        (str(entry.process), str(to)): round(tensor_bytes / rate, 6)
        for entry in leader.membership.known.values()
        if entry.rates is not None
        for to, rate in entry.rates.rates
        if rate > 0
    }
