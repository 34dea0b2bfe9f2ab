"""Which pieces of a stage are at which version while it is loaded, and what to ask a donor for next."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from swarmflow.compute.state_root import Span
from swarmflow.runtime.execution.piece_donor import SPAN_ELEMENTS_MAX
from swarmflow.runtime.execution.piece_requests import PieceGiver, PieceRequest

STEAL_S = 1.0  # after so long without an answer an idle donor is asked for the same
MISSING = -1  # the version of a piece that is not here
_CHANGING = -2  # of one that is being written or updated


@dataclass(eq=False)
class PieceTable:
    """The pieces of a stage, by their place in `spans`.

    Each one is being changed, or has been asked for at the version that it is at, or waits to be.
    """

    spans: Sequence[Span]
    _versions: list[int] = field(init=False)
    _elements: Counter[int] = field(init=False)  # by version: of the pieces at it
    _waiting: dict[int, deque[int]] = field(init=False)  # by version: places that nobody was asked for
    _asked: dict[PieceRequest, None] = field(init=False, default_factory=dict)  # in the order in which they were made

    def __post_init__(self) -> None:
        self.set_version(MISSING)

    def set_version(self, version: int) -> None:
        """Record that all pieces are at a version."""
        self._versions = [version] * len(self.spans)
        self._elements = Counter({version: sum(span.stop - span.start for span in self.spans)})
        self._waiting = defaultdict(deque, {version: deque(range(len(self.spans)))})

    @property
    def newest(self) -> int:
        """The latest version that a piece is at."""
        return max((version for version, elements in self._elements.items() if elements), default=MISSING)

    def all_at(self, version: int) -> bool:
        """Return whether all pieces are at a version."""
        return not any(elements for at, elements in self._elements.items() if at != version)

    def elements_missing(self) -> int:
        """Return how many elements are not here."""
        return self._elements[MISSING]

    def elements_behind(self, version: int) -> int:
        """Return how many elements have to be updated for all that is here to be at a version, once for each step."""
        return sum(n * (version - at) for at, n in self._elements.items() if 0 <= at < version)

    def span_of(self, request: PieceRequest) -> Span:
        """Return the span of the pieces that a request asks for."""
        first, last = self.spans[request.places[0]], self.spans[request.places[-1]]
        return Span(first.group, first.start, last.stop)

    # --- requests -----------------------------------------------------------------------------------------------------

    def next(self, donor: PieceGiver, newest: int, now: float) -> PieceRequest | None:
        """Return what to ask a donor for: what has to follow soonest, then what is missing, then what others owe.

        newest: pieces that are at this version, or a later one, are not asked for.
        """
        behind = [version for version, places in self._waiting.items() if places and version < newest]
        if behind:
            version = min((version for version in behind if version >= 0), default=MISSING)
            return self._ask(PieceRequest(self._pop(version), version, donor, now))
        for request in self._asked:
            if request.donor is not donor and not request.stolen and now - request.sent_s > STEAL_S:
                request.stolen = True
                return self._ask(PieceRequest(request.places, request.have, donor, now, stolen=True))
        return None

    def late(self, now: float) -> frozenset[PieceGiver]:
        """Return the donors that have owed an answer for so long that others are asked for the same."""
        owed = itertools.takewhile(lambda request: now - request.sent_s > STEAL_S, self._asked)
        return frozenset(request.donor for request in owed)

    def ended(self, request: PieceRequest) -> None:
        """Have pieces asked for again that a request has not brought, unless they are asked for elsewhere."""
        self._asked.pop(request, None)
        # A donor that is slow may still owe an update that another one has given: that brings them no further.
        elsewhere = {place for other in self._asked if other.have == request.have for place in other.places}
        queued = self._waiting[request.have]
        for place in reversed(self.lacking(request)):
            if place not in elsewhere and place not in queued:
                queued.appendleft(place)

    def lacking(self, request: PieceRequest) -> list[int]:
        """Return the places of those pieces of a request that are where they were when it was made."""
        return [place for place in request.places if self._versions[place] == request.have]

    def _ask(self, request: PieceRequest) -> PieceRequest:
        self._asked[request] = None
        return request

    def _pop(self, version: int) -> tuple[int, ...]:
        """Take neighbouring pieces of a version that are asked for at once; a missing one is asked for alone."""
        waiting = self._waiting[version]
        places = [waiting.popleft()]
        first = self.spans[places[0]]
        while version >= 0 and waiting and waiting[0] == places[-1] + 1:
            last = self.spans[waiting[0]]
            if last.group != first.group or last.stop - first.start > SPAN_ELEMENTS_MAX:
                break
            places.append(waiting.popleft())
        return tuple(places)

    # --- changes ------------------------------------------------------------------------------------------------------

    def begin_change(self, places: Sequence[int]) -> None:
        """Record that pieces are being written or updated."""
        self._place(places, _CHANGING)

    def end_change(self, places: Sequence[int], version: int) -> None:
        """Record that pieces are at a version now; MISSING: the change has failed."""
        self._place(places, version)
        self._waiting[version].extend(places)

    def fetch_anew(self, places: Sequence[int]) -> None:
        """Take pieces for missing."""
        for place in places:
            with suppress(ValueError):  # a donor is being asked whether it has something newer
                self._waiting[self._versions[place]].remove(place)
        self.end_change(places, MISSING)

    def later_than(self, version: int) -> list[int]:
        """Return the places of pieces that are at a later version."""
        return [place for place, at in enumerate(self._versions) if at > version]

    def _place(self, places: Sequence[int], version: int) -> None:
        for place in places:
            elements = self.spans[place].stop - self.spans[place].start
            self._elements[self._versions[place]] -= elements
            self._elements[version] += elements
            self._versions[place] = version
