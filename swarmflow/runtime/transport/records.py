"""The validation of DHT records: only those signed by the key under whose name they are stored are accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from swarmflow.runtime.transport.identity import IdentityKey, name_of

VALUE_BYTES_MAX = 4096
_ENVELOPE_BYTES_MAX = 1024  # of a record beyond its value: the signature and the encoding
Check = Callable[[str, bytes], bool]  # of the libp2p name of a record's owner, and the value
_OWNER = re.compile(rb"\[owner:(ssh-rsa [A-Za-z0-9+/=]{1,1500})\]")


class OwnedRecords(RSASignatureValidator):  # type: ignore[misc]  # hivemind is untyped
    """hivemind's signatures, made strict: every record's subkey is exactly its owner's key, and its value is bytes.

    hivemind's own validator accepts records without an owner, so that any process could hide a whole key behind one
    unsigned value; and it raises on a malformed key, so that one bad record would make every search fail.
    """

    def __init__(self, key: IdentityKey) -> None:
        super().__init__(key)
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
        return bytes(self.local_public_key)

    def validate(self, record: DHTRecord) -> bool:
        """Return whether the record may be stored, forwarded or used."""
        if len(record.value) > VALUE_BYTES_MAX + _ENVELOPE_BYTES_MAX:
            return False
        try:
            subkey = MSGPackSerializer.loads(record.subkey)
            owner = owner_of(subkey) if isinstance(subkey, bytes) else None
            if owner is None or not super().validate(record):
                return False
            value, check = MSGPackSerializer.loads(self.strip_value(record)), self._checks.get(record.key)
            return isinstance(value, bytes) and (check is None or not value or check(owner, value))
        except (ValueError, TypeError, RecursionError, UnsupportedAlgorithm):
            return False


@lru_cache(maxsize=4096)
def owner_of(subkey: bytes) -> str | None:
    """Return the libp2p name that a subkey stands for; None when the subkey is not an owner's key."""
    found = _OWNER.fullmatch(subkey)
    if found is None:
        return None
    try:
        key = serialization.load_ssh_public_key(found[1])
    except (ValueError, UnsupportedAlgorithm):
        return None
    return name_of(key) if isinstance(key, rsa.RSAPublicKey) else None
