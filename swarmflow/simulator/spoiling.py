"""Pretended computers whose numbers are not finite: set `world.spoiling[name]` for all lives of a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarmflow.core.protocol.actions import RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.events import ComputedNotFinite
from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.simulator.arithmetic import Gradient, Sum

if TYPE_CHECKING:
    from swarmflow.simulator.world import World

SPOILT = -1  # in a pretended gradient: it is not finite


@dataclass(frozen=True, slots=True)
class Spoiling:
    """From since_s to until_s the results of a computer are not finite."""

    since_s: float = 0.0
    until_s: float = float("inf")
    silent: bool = False  # only its sums of gradients are not finite; a careful try sees it at once

    def shows(self, now_s: float, careful: bool) -> bool:
        """Return whether the device sees that the result of a hop is not finite."""
        return self.since_s <= now_s < self.until_s and (careful or not self.silent)

    def hides(self, now_s: float, careful: bool) -> bool:
        """Return whether the gradient of a hop is not finite, and this is not seen before the norm."""
        return self.since_s <= now_s < self.until_s and self.silent and not careful


SOUND = Spoiling(until_s=0.0)


def spoiling(world: World, process: ProcessId) -> Spoiling:
    """Return the spoiling of a process' computer."""
    return world.spoiling.get(process.name, SOUND)


def spoilt(
    world: World, process: ProcessId, action: RunForward | RunLoss | RunBackward | RunReplay, careful: bool
) -> ComputedNotFinite | None:
    """Return the event where the result of a hop is not finite: on this computer, or on any (`Settings.poisoned`)."""
    microbatch = action.microbatch
    if not spoiling(world, process).shows(world.clock.now_s, careful) and microbatch.index != world.settings.poisoned:
        return None
    value = "activation" if isinstance(action, RunForward) else "gradient"
    return ComputedNotFinite(microbatch.epoch, microbatch.index, value, "layers.0" if careful else "")


def without_norm(epoch: Epoch, sealed: Mapping[str, Sum], own: Gradient) -> ComputedNotFinite | None:
    """Return the event where reduced gradients, by group, are not finite. own: what was accumulated here."""
    broken = [group for group, value in sorted(sealed.items()) if SPOILT in value.counts]
    if not broken:
        return None
    if SPOILT in own:
        return ComputedNotFinite(epoch, -1, "gradient")
    return ComputedNotFinite(epoch, -1, "sum", group=broken[0], piece=0)
