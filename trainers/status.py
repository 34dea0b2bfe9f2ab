"""The status of a run, as its leader knows it."""

from __future__ import annotations

from typing import Any

from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.manifest import Manifest


def status_of(leader: Leader, manifest: Manifest) -> dict[str, Any]:
    """Return everything that `swarmflow status --json` prints (docs/status.md)."""
    last = leader.last
    serving = leader.step.roster.ids if leader.step is not None else ()

    def phase(entry: MemberRecord) -> str:
        if entry.draining:
            return "draining"
        return "serving" if entry.process in serving and entry.phase is MemberPhase.READY else str(entry.phase)

    stages = [
        {
            "stage": stage,
            "peers": [
                {
                    "id": str(entry.process),
                    "name": entry.process.name,
                    "phase": phase(entry),
                    "version": entry.version,
                    "capacity": entry.member.capacity,
                    "held": entry.load.held,
                    "queued": entry.load.queued,
                    "speed": round(entry.speed, 1),
                }
                for entry in leader.membership.peers(stage)
            ],
        }
        for stage in range(manifest.stages)
    ]
    return {
        "run": manifest.name,
        "run_id": manifest.run_id,
        "phase": str(leader.phase),
        "waiting_for": leader.waiting_for,
        "step": leader.version,
        "version": leader.version,
        "durable_version": leader.safe.durable,
        "steps": leader.settings.steps,
        "loss": last.loss if last is not None else None,
        "tokens_per_s": last.tokens / max(last.seconds, 1e-9) if last is not None else None,
        "step_seconds": last.seconds if last is not None else None,
        "stages": stages,
        "trainers": [
            {"id": str(entry.process), "name": entry.process.name, "leads": entry.process == leader.me.process}
            for entry in leader.membership.trainers()
        ],
    }
