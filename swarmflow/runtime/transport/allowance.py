"""How often others may do something: so many times at once, and as many again as time adds."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

_REMEMBERED_MAX = 8192  # those that were seen last


@dataclass(frozen=True, slots=True)
class Allowance:
    """`burst` times at once, and `per_s` times a second in the long run."""

    burst: int
    per_s: float


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class Allowances:
    """What is left of the allowance of each, by a token bucket; whoever was not seen for long begins anew."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()  # the latest last

    def take(self, who: Hashable, allowance: Allowance) -> bool:
        """Use up one time; return whether there was one left."""
        now = self._clock()
        bucket = self._buckets.setdefault(who, _Bucket(allowance.burst, now))
        self._buckets.move_to_end(who)
        if len(self._buckets) > _REMEMBERED_MAX:
            self._buckets.popitem(last=False)
        bucket.left = min(allowance.burst, bucket.left + allowance.per_s * (now - bucket.at_s))
        bucket.at_s = now
        if bucket.left < 1.0:
            return False
        bucket.left -= 1.0
        return True
