"""The directory of a run: signed records in the DHT that expire when their owner stops renewing them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.records import VALUE_BYTES_MAX, owner_of

ENTRIES_MAX = 10_000  # records of one kind that are read
TOMBSTONE_S = 1.0  # how much later an empty record expires than the one that it replaces

# A record is flat: anybody may store one, and a value of any depth would let a reader recurse as deep as Python goes,
# where the finalizers that the garbage collector happens to run fail.
Field = bool | int | float | str | list[str]
_DECODER = msgspec.msgpack.Decoder(dict[str, Field])


class Directory:
    """The directory of one run. A process stores under its own name only; readers check that.

    A store or a search takes milliseconds in a healthy swarm, and many seconds where processes are frozen: never
    await one on the training path.
    """

    def __init__(self, node: Node, run_id: str) -> None:
        self._dht = node.dht
        self._records = node.records
        self._own_subkey = self._records.own_subkey
        self._run_id = run_id
        self._expiry: dict[str, float] = {}  # kind -> Unix time in s at which the last record expires

    async def announce(self, kind: str, value: Mapping[str, Field], expiry_s: float, timeout_s: float = 20.0) -> bool:
        """Store this process's record of a kind for `expiry_s`, and return whether any node of the DHT has stored it.

        value: at most VALUE_BYTES_MAX bytes as msgpack. Raises ValueError when it is larger, NetworkError
        when the DHT does not answer within `timeout_s`.
        """
        data = msgspec.msgpack.encode(value)
        if len(data) > VALUE_BYTES_MAX:
            raise ValueError(f"a record of {len(data)} bytes is over the limit of {VALUE_BYTES_MAX}")
        # Of two records the DHT keeps the one that expires later, so a newer one must expire after its predecessor.
        expiry = max(time.time() + expiry_s, self._expiry.get(kind, 0.0) + 1e-3)
        return await self._store(kind, data, expiry, timeout_s)

    async def withdraw(self, kind: str, timeout_s: float = 5.0) -> bool:
        """Replace this process's record by one that readers skip; return whether any node of the DHT has stored it."""
        expiry = max(time.time(), self._expiry.get(kind, 0.0)) + TOMBSTONE_S
        return await self._store(kind, b"", expiry, timeout_s)

    async def _store(self, kind: str, data: bytes, expiry: float, timeout_s: float) -> bool:
        self._expiry[kind] = expiry
        try:
            async with asyncio.timeout(timeout_s):
                return bool(await self._dht.store(self._key(kind), data, expiry, subkey=self._own_subkey))
        except TimeoutError:
            raise NetworkError(f"the directory took no record within {timeout_s:g} s") from None

    async def find(self, kind: str, timeout_s: float = 20.0) -> dict[str, dict[str, Field]]:
        """Return the unexpired records of a kind by the names of their owners, in the order of the names.

        Malformed records are left out. Raises NetworkError when the DHT does not answer within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._dht.get(self._key(kind), latest=True)
        except TimeoutError:
            raise NetworkError(f"the directory did not answer within {timeout_s:g} s") from None
        if found is None or not isinstance(found.value, dict):
            return {}
        now = time.time()
        records: dict[str, dict[str, Field]] = {}
        for subkey, entry in list(found.value.items())[:ENTRIES_MAX]:
            name = owner_of(subkey) if isinstance(subkey, bytes) else None
            value = _decoded(entry.value)
            if name is not None and value is not None and entry.expiration_time > now:
                records[name] = value
        return dict(sorted(records.items()))

    def require(self, kind: str, check: Callable[[str, Mapping[str, Field]], bool]) -> None:
        """Store, forward and find only those records of a kind that pass a check, by their owners' names."""

        def accepts(name: str, data: bytes) -> bool:
            value = _decoded(data)
            return value is not None and check(name, value)

        self._records.require(self._key(kind), accepts)

    def _key(self, kind: str) -> str:
        return f"swarmflow/{self._run_id}/{kind}"


def _decoded(data: object) -> dict[str, Field] | None:
    """Return the value of a record; None where it is malformed or withdrawn."""
    if not isinstance(data, bytes) or not 0 < len(data) <= VALUE_BYTES_MAX:
        return None
    try:
        return _DECODER.decode(data)
    except UNDECODABLE:
        return None
