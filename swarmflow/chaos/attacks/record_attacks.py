"""Attacks by records in the DHT."""

from __future__ import annotations

import base64
import itertools
import time

from swarmflow.chaos.attacks.outside import Outside
from swarmflow.runtime.transport.directory import Directory, Field

_LATER = 100_000  # versions
_EXPIRY_S = 60.0
_BYTES = 3800  # of a record: the DHT takes 4 KiB
_AT_ONCE = 8
_KINDS = ("trainer", "stage-0", "stage-1", "stage-2")


def _lawless(outside: Outside) -> Directory:
    """Return a directory whose own node stores and hands on all records, also those of trainers that are none."""
    directory = Directory(outside.session.node, outside.session.access.run_id)
    directory.require("trainer", lambda name, value: True)
    return directory


class FalseLeaderRecord:
    """Announces itself as the trainer that leads, at a version that no other one has reached."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._directory = _lawless(outside)
        self._next_s = 0.0

    async def strike(self) -> None:
        """Announce it, without a credential and with that of a peer in turn."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + 1.0
        session = self._outside.session
        credential = base64.b64encode(session.access.credential(session.me.name)).decode()
        for shown in ({}, {"credential": credential}):
            record: dict[str, Field] = {
                "incarnation": session.me.incarnation,
                "addresses": session.node.addresses(),
                "leads": True,
                "version": _LATER,
                **shown,
            }
            stored = await self._directory.announce("trainer", record, _EXPIRY_S)
            self._outside.sent["records"] += 1
            self._outside.sent["records stored"] += stored


class RecordSpam:
    """Stores as many large records as the DHT takes, under the keys of the run and under others."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._directory = _lawless(outside)
        self._numbers = itertools.count()

    async def strike(self) -> None:
        """Store some more."""
        value: dict[str, Field] = {"addresses": ["x" * _BYTES], "incarnation": 1}
        for number in itertools.islice(self._numbers, _AT_ONCE):
            kind = _KINDS[number % len(_KINDS)] if number % 2 else f"spam-{number}"
            stored = await self._directory.announce(kind, value, _EXPIRY_S)
            self._outside.sent["records"] += 1
            self._outside.sent["records stored"] += stored
