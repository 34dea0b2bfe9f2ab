"""What a leader holds against its members: accusations, values that were not finite, failed tries, pauses."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.membership.duties import Pauses
from swarmflow.core.membership.failures import Failures
from swarmflow.core.membership.findings import Findings
from swarmflow.core.membership.suspicions import CHECK_BEATS, Suspicions
from swarmflow.core.protocol.timeouts import Timeouts


@dataclass(slots=True)
class FaultRecords:
    """The records by which a leader puts members out, or leaves them out of a step."""

    suspicions: Suspicions  # members that lost each other
    findings: Findings  # values that were not finite
    pauses: Pauses  # members that were put out, and for how long
    failures: Failures = field(default_factory=Failures)  # other tries at the step that failed

    @classmethod
    def of(cls, timeouts: Timeouts) -> FaultRecords:
        """Return empty records."""
        suspicions = Suspicions(timeouts.silence_s, CHECK_BEATS * timeouts.heartbeat_s)
        return cls(suspicions, Findings(timeouts.barred_s), Pauses(timeouts.pause_s))
