"""Whether a peer can be reached from outside: trainers dial it back, and its connections show how others came to it."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from swarmflow.clean_text import clean
from swarmflow.core.protocol.types import ProcessId
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.reach import trainers_of, try_address
from swarmflow.runtime.transport.addresses import parts_of
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.requests import Arguments, Requests

log = logging.getLogger("swarmflow")

LOOK_EVERY_S = 30.0  # the daemon takes about as long to find out that it needs a relay, and to have one
ASK_AGAIN_S = 600.0  # routers and firewalls change rarely
PROBE_EVERY_S = 1.0
DIALLED_EVERY_S = 10.0  # how often a trainer dials one process
_REMEMBERED_MAX = 4096
_PORTS_MAX = 4
_REASON_CHARS_MAX = 120
ADVICE = (
    "to be dialled directly, give --listen 0.0.0.0:PORT, and open that TCP port in the firewall and forward it on the "
    "router (where the outer port is another one: --announce HOST:PORT)"
)


@dataclass(frozen=True)
class Answer:
    """What a trainer found when it dialled back. Sent as JSON, so that a peer checks it."""

    host: str = ""  # from which the trainer sees the process; empty: through a relay alone
    port: int = 0  # at which a libp2p process answered; 0: at none
    reason: str = ""  # why not, for the last port that was tried


class DialBack:
    """A trainer's part: dials the processes that ask for it, each at the address from which it is connected.

    A process can thus have no other machine dialled than its own.
    """

    def __init__(self, node: Node, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._dialled_s: dict[str, float] = {}  # by libp2p name

    def serve(self, requests: Requests) -> None:
        """Answer the requests of a session."""
        requests.serve("dial-back", self._on_request)

    async def _on_request(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        self._note(sender.name)
        ports = [int(text) for text in str(arguments.get("ports", "")).split(",")[:_PORTS_MAX] if _is_port(text)]
        hosts = direct_hosts(await self._node.connections(), sender.name)
        answer = Answer()
        if hosts:
            answer = Answer(hosts[0], reason="it has told no port")
        for port in ports if hosts else ():
            reason = await try_address(f"/ip{ipaddress.ip_address(hosts[0]).version}/{hosts[0]}/tcp/{port}")
            answer = replace(answer, port=0 if reason else port, reason=reason or "")
            if answer.port:
                break
        return [msgspec.json.encode(answer)]

    def _note(self, name: str) -> None:
        """Raise NetworkError for a process that asks too often."""
        now = self._clock()
        if now < self._dialled_s.get(name, -DIALLED_EVERY_S) + DIALLED_EVERY_S:
            raise NetworkError(f"a process is dialled once in {DIALLED_EVERY_S:.0f} s")
        if len(self._dialled_s) >= _REMEMBERED_MAX:
            self._dialled_s = {at: since for at, since in self._dialled_s.items() if now < since + DIALLED_EVERY_S}
        self._dialled_s[name] = now


@dataclass
class ReachEvidence:
    """What a peer knows about how others reach it."""

    dialled: str = ""  # HOST:PORT outside of its network at which a trainer reached it
    failed: str = ""  # at which a trainer could not, and why
    relayed: bool = False  # it has an address at a relay
    through_relay: set[str] = field(default_factory=set)  # names of processes that were connected through a relay
    punched: bool = False  # one of them was connected directly later, although nobody can dial this process
    hosts: set[str] = field(default_factory=set)  # from which others are directly connected now

    def connected(self, connections: Mapping[str, Sequence[str]], addresses: Sequence[str]) -> None:
        """Take in the present connections (name -> multiaddrs) and own addresses."""
        self.relayed = any("/p2p-circuit" in address for address in addresses)
        self.hosts = {host for name in connections for host in direct_hosts(connections, name)}
        for name, maddrs in connections.items():
            if any("/p2p-circuit" in maddr for maddr in maddrs):
                self.through_relay.add(name)
            if name in self.through_relay and any(_is_global(host) for host in direct_hosts(connections, name)):
                self.punched = True
        self.through_relay &= connections.keys()

    def asked(self, answers: Sequence[tuple[str, Answer]]) -> None:
        """Take in what the trainers found that were asked last: a port that was open may be shut now."""
        seen = [(trainer, answer) for trainer, answer in answers if answer.host]
        if seen:
            self.dialled = self.failed = ""
        for trainer, answer in seen:
            at = f"[{answer.host}]" if ":" in answer.host else answer.host
            if answer.port and _is_global(answer.host):
                self.dialled, self.failed = f"{at}:{answer.port}", ""
            elif not answer.port and not self.dialled:
                reason = clean(answer.reason[:_REASON_CHARS_MAX])
                self.failed = f"trainer {trainer} cannot dial this peer at {at} ({reason})"

    @property
    def reach(self) -> str:
        """How others reach this peer, as in PeerSummary."""
        if self.dialled:
            return "public"
        if self.relayed:
            return "punched" if self.punched else "relay"
        return "local" if self.hosts and not any(_is_global(host) for host in self.hosts) else "unknown"

    def sentence(self) -> str:
        """Return how this peer is reached, for its user."""
        why = self.failed or "no trainer has dialled this peer from outside"
        match self.reach:
            case "public":
                return f"others reach this peer directly, at {self.dialled}"
            case "local":
                return "this peer is connected within its machine and private network only, and is reached there"
            case "punched":
                return f"{why}; others reach it through hole punching, which not every network allows"
            case "relay":
                return f"{why}; others reach it through a relay, which is slow"
        return f"whether others reach this peer from outside is not known: {why}"

    def line(self) -> str:
        """Return the sentence for the log: how this peer is reached, and what to do."""
        if self.reach in ("public", "local"):
            return self.sentence()
        return f"{self.sentence()}{'; ' if self.reach == 'unknown' else ': '}{ADVICE}"


async def watch_reach(session: Session, invite: Invite, leader: ProcessId, found: Callable[[str], None]) -> None:
    """Find out how this process is reached, again and again; each change is logged and given to `found`."""
    evidence, shown, ask_s = ReachEvidence(), "unknown", 0.0
    trainers = trainers_of(session, invite, leader)
    for look in itertools.count():
        now = time.monotonic()
        if now >= ask_s:
            answers = [(trainer.name[-6:], answer) async for trainer, answer in _answers(session, trainers)]
            evidence.asked(answers)
            # The daemon may get a port of the router, and a relay, only after its first seconds.
            ask_s = now + (ASK_AGAIN_S if look else LOOK_EVERY_S)
        try:
            addresses = await session.node.refresh_addresses()
            evidence.connected(await session.node.connections(), addresses)
        except NetworkError as error:
            log.debug("how this process is reached was not looked at: %s", error)
        reach = evidence.reach
        if reach != shown or (look == 1 and reach == "unknown"):
            log.log(logging.INFO if reach in ("public", "local") else logging.WARNING, "%s", evidence.line())
            found(reach)
            shown = reach
        await asyncio.sleep(LOOK_EVERY_S)


async def probe_reach(session: Session, invite: Invite, leader: ProcessId, wait_s: float) -> ReachEvidence:
    """Find out once how this process is reached. wait_s: the longest wait for what the daemon finds out by itself.

    Raises NetworkError.
    """
    evidence, clock = ReachEvidence(), asyncio.get_running_loop().time
    until_s = clock() + wait_s
    trainers = trainers_of(session, invite, leader)
    evidence.asked([(trainer.name[-6:], answer) async for trainer, answer in _answers(session, trainers)])
    while True:
        addresses = await session.node.refresh_addresses()
        evidence.connected(await session.node.connections(), addresses)
        if evidence.reach != "unknown" or clock() >= until_s:
            return evidence
        await asyncio.sleep(PROBE_EVERY_S)


async def _answers(session: Session, trainers: Sequence[ProcessId]) -> AsyncIterator[tuple[ProcessId, Answer]]:
    """Have trainers dial this process, until one has reached it from outside."""
    ports = ",".join(str(port) for port in _own_ports(session.node.addresses()))
    for trainer in trainers:
        try:
            (body,) = await session.requests.ask(trainer, "dial-back", {"ports": ports}, timeout_s=30.0)
            answer = _checked(msgspec.json.decode(body, type=Answer))
        except (NetworkError, *UNDECODABLE, ValueError) as error:
            log.debug("trainer %s did not dial back: %s", trainer.name[-6:], error)
            continue
        yield trainer, answer
        if answer.port and _is_global(answer.host):
            return


def _checked(answer: Answer) -> Answer:
    """Return an answer from the network. Raises ValueError where it is none."""
    if answer.host:
        ipaddress.ip_address(answer.host)
    if not 0 <= answer.port < 65536:
        raise ValueError(f"{answer.port} is no port")
    return answer


def direct_hosts(connections: Mapping[str, Sequence[str]], name: str) -> list[str]:
    """Return the IP addresses from which a process is connected without a relay, those of the internet first."""
    hosts = {
        host
        for maddr in connections.get(name, ())
        if "/p2p-circuit" not in maddr and (host := _ip_of(maddr)) is not None
    }
    return sorted(hosts, key=lambda host: (not _is_global(host), host))


def _own_ports(addresses: Sequence[str]) -> list[int]:
    """Return the TCP ports of the own addresses, without those of relays."""
    ports = {
        int(parts["tcp"]): None
        for address in addresses
        if "/p2p-circuit" not in address and "tcp" in (parts := parts_of(address))
    }
    return list(ports)[:_PORTS_MAX]


def _ip_of(maddr: str) -> str | None:
    try:
        parts = parts_of(maddr)
    except NetworkError:
        return None
    return parts.get("ip4", parts.get("ip6"))


def _is_global(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536
