"""Orders of a leader, by a member that is no trainer, and its candidacy."""

from __future__ import annotations

from swarmflow.chaos.attacks import forging
from swarmflow.chaos.attacks.lies import Lie
from swarmflow.core.protocol.types import Epoch, Member


class FalseOrders(Lie):
    """Gives orders as if it led."""

    every_s = 0.5

    def strike(self) -> None:
        """Send every other peer all that would end its part in the step."""
        insider, machine = self.insider, self.insider.machine
        epoch, term = insider.epoch, machine.lease.term
        for process in insider.others():
            orders = (
                forging.commit(term, epoch, machine.plan.stages, machine.plan.microbatches),
                forging.member_failed(term, epoch, insider.leader),
                forging.evicted(),
                forging.finished(epoch.step),
            )
            for order in orders:
                insider.send(process, order)


class FalseLead(Lie):
    """Opens steps, and stands for election."""

    every_s = 0.5

    def strike(self) -> None:
        """Ask everybody to follow it."""
        insider, machine = self.insider, self.insider.machine
        term, epoch = machine.lease.term + 1, Epoch(insider.epoch.generation + 1, insider.epoch.step)
        for process in (*insider.others(), insider.leader):
            insider.send(process, forging.open_step(term, epoch, insider.roster))
            insider.send(process, forging.elect(term, Member(insider.me, -1)))
