"""The validation of DHT records: only those signed by the key under whose name they are stored are accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace

from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from swarmflow.runtime.transport.identity import SIGNATURE_BYTES, IdentityKey, is_name, is_signed_by

VALUE_BYTES_MAX = 4096
_ENVELOPE_BYTES_MAX = 1024  # of a record beyond its value: the signature and the encoding
_NAME_BYTES_MAX = 64
_RECORD = b"swarmflow record 1\0"  # begins what is signed, so that a signature of a record is none of anything else
Check = Callable[[str, bytes], bool]  # of the libp2p name of a record's owner, and the value


class OwnedRecords(RecordValidatorBase):  # type: ignore[misc]  # hivemind is untyped
    """Every record's subkey is its owner's name, its value is bytes, and the signature before it is the owner's."""

    def __init__(self, key: IdentityKey) -> None:
        self._key = key
        self._checks: dict[bytes, Check] = {}  # by the key in the DHT

    def require(self, key: str, check: Check) -> None:
        """Accept only those records under a key that pass a check, and empty ones.

        Whoever makes keys of its own could otherwise hide the records of others behind thousands of records.
        """
        self._checks[DHTID.generate(source=key).to_bytes()] = check

    def is_checked(self, key: bytes) -> bool:
        """Return whether records under a key in the DHT have to pass a check."""
        return key in self._checks

    @property
    def own_subkey(self) -> bytes:
        """Return the subkey under which this process may store."""
        return self._key.name.encode()

    def validate(self, record: DHTRecord) -> bool:
        """Return whether the record may be stored, forwarded or used."""
        if len(record.value) > VALUE_BYTES_MAX + _ENVELOPE_BYTES_MAX:
            return False
        signature, data = record.value[:SIGNATURE_BYTES], self.strip_value(record)
        try:
            subkey = MSGPackSerializer.loads(record.subkey)
            owner = owner_of(subkey) if isinstance(subkey, bytes) else None
            if owner is None or not is_signed_by(owner, _signed(replace(record, value=data)), signature):
                return False
            value, check = MSGPackSerializer.loads(data), self._checks.get(record.key)
            return isinstance(value, bytes) and (check is None or not value or check(owner, value))
        except (ValueError, TypeError, RecursionError):
            return False

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return the value with the signature of this process before it."""
        return self._key.sign(_signed(record)) + bytes(record.value)

    def strip_value(self, record: DHTRecord) -> bytes:
        """Return the value without the signature."""
        return bytes(record.value[SIGNATURE_BYTES:])


def owner_of(subkey: bytes) -> str | None:
    """Return the libp2p name that a subkey is; None when it is none."""
    try:
        name = subkey.decode("ascii") if len(subkey) <= _NAME_BYTES_MAX else ""
    except UnicodeDecodeError:
        return None
    return name if is_name(name) else None


def _signed(record: DHTRecord) -> bytes:
    return _RECORD + bytes(MSGPackSerializer.dumps(astuple(record)))
