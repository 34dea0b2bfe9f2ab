"""The records that this process stores for others in the DHT: few of an owner, and not for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage

from swarmflow.runtime.transport.allowance import Allowance, Allowances

KEYS_OF_OWNER_MAX: Final = 16  # an honest process has one or two: its kind, and for a moment the one before
RECORDS_MAX: Final = 10_000  # under keys that anybody may store under; as many under those whose records are checked
EXPIRY_S_MAX: Final = 300.0  # honest ones live for 35 s, and are renewed
CHANGES: Final = Allowance(burst=32, per_s=1.0)  # of one owner; an honest one renews a record every 10 s
_PURGE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class _Stored:
    until_s: float  # Unix time
    checked: bool


class RecordStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind is untyped
    """hivemind's storage, which is without limits, with limits. Subkeys are those of owners (see OwnedRecords).

    is_checked: whether records under a key have to pass a check, so that not everybody can fill their room.
    """

    def __init__(self, is_checked: Callable[[bytes], bool], clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._is_checked = is_checked
        self._clock = clock
        self._changes = Allowances(clock)
        self._owned: dict[Any, dict[DHTID, _Stored]] = {}  # by subkey and key
        self._counts = {False: 0, True: 0}  # records, by whether they are checked
        self._purged_s = 0.0

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:  # noqa: ANN401
        """Store a record of an owner; return whether it was stored."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: Any, expiration_time: float) -> bool:  # noqa: ANN401
        """Store a record that is newer than that of its owner, within the limits; return whether it was stored."""
        now, former = self._clock(), self._owned.get(subkey, {}).get(key)
        if not max(now, former.until_s if former is not None else 0.0) < expiration_time <= now + EXPIRY_S_MAX:
            return False
        checked = self._is_checked(key.to_bytes()) if former is None else former.checked
        if former is None and not self._has_room(checked, subkey, now):
            return False
        if not self._changes.take(subkey, CHANGES) or not super().store_subkey(key, subkey, value, expiration_time):
            return False
        self._counts[checked] += former is None
        self._owned.setdefault(subkey, {})[key] = _Stored(expiration_time, checked)
        return True

    def _has_room(self, checked: bool, subkey: Any, now: float) -> bool:  # noqa: ANN401
        for expired in [each for each, stored in self._owned.get(subkey, {}).items() if stored.until_s < now]:
            self._remove(subkey, expired)
        if self._counts[checked] >= RECORDS_MAX and now >= self._purged_s + _PURGE_EVERY_S:
            self._purged_s = now
            kept = ((owner, each, stored) for owner, keys in self._owned.items() for each, stored in keys.items())
            for owner, expired in [(owner, each) for owner, each, stored in kept if stored.until_s < now]:
                self._remove(owner, expired)
        few = len(self._owned.get(subkey, {})) < KEYS_OF_OWNER_MAX
        return few and self._counts[checked] < RECORDS_MAX

    def _remove(self, subkey: Any, key: DHTID) -> None:  # noqa: ANN401
        """Forget a record that has expired, which hivemind's storage has removed or will."""
        self._counts[self._owned[subkey].pop(key).checked] -= 1
        if not self._owned[subkey]:
            del self._owned[subkey]
