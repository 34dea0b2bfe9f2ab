"""The validation of DHT records: only those signed by the key under whose name they are stored are accepted."""

from __future__ import annotations

import re
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from swarmflow.runtime.transport.identity import IdentityKey, name_of

VALUE_BYTES_MAX = 4096
_ENVELOPE_BYTES_MAX = 1024  # of a record beyond its value: the signature and the encoding
_OWNER = re.compile(rb"\[owner:(ssh-rsa [A-Za-z0-9+/=]{1,1500})\]")


class OwnedRecords(RSASignatureValidator):  # type: ignore[misc]  # hivemind is untyped
    """hivemind's signatures, made strict: every record's subkey is exactly its owner's key, and its value is bytes.

    hivemind's own validator accepts records without an owner, so that any process could hide a whole key behind one
    unsigned value; and it raises on a malformed key, so that one bad record would make every search fail.
    """

    def __init__(self, key: IdentityKey) -> None:
        super().__init__(key)

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
            if not isinstance(subkey, bytes) or owner_of(subkey) is None or not super().validate(record):
                return False
            return isinstance(MSGPackSerializer.loads(self.strip_value(record)), bytes)
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
