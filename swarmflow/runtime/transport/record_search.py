"""What searches in the DHT take from other nodes: values that an honest node of this run can have stored."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.utils.timed_storage import ValueWithExpiration

from swarmflow.runtime.transport.record_storage import EXPIRY_S_MAX

_CLOCKS_S: Final = 60.0  # by which another node's clock may be ahead; hivemind lets in those that are 3 s

Found = dict[DHTID, tuple[ValueWithExpiration[Any] | None, dict[DHTID, PeerID]]]
"""A value, and the nodes that are nearer to its key, by the key."""

Find = Callable[[PeerID, Collection[DHTID]], Awaitable[Found | None]]


def plausible(find: Find, clock: Callable[[], float] = time.time) -> Find:
    """Return a search at one node that leaves out values which no honest node has: hivemind checks the records alone.

    A search for the latest value ends at one that never expires, and one that cannot be merged with others ends it too.
    """

    async def find_plausible(peer: PeerID, keys: Collection[DHTID]) -> Found | None:
        found, latest_s = await find(peer, keys), clock() + EXPIRY_S_MAX + _CLOCKS_S
        if found is None:
            return None
        return {
            key: (value if value is not None and _is_plausible(value, latest_s) else None, nearest)
            for key, (value, nearest) in found.items()
        }

    return find_plausible


def _is_plausible(found: ValueWithExpiration[Any], latest_s: float) -> bool:
    """Return whether a value has records, and neither it nor any of them expires later than this (Unix time)."""
    records, until_s = found
    if not isinstance(records, DictionaryDHTValue) or not isinstance(records.maxsize, int | float):
        return False
    with records.freeze():
        expirations = [until_s, *(expiration_s for _, (_, expiration_s) in records.items())]
    return len(expirations) > 1 and all(isinstance(each, int | float) and each <= latest_s for each in expirations)
