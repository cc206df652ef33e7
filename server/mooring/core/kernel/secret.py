"""A secret as it is stored: encrypted with its own data key, which a master key wraps (envelope encryption)."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed secret: the ciphertext, and its data key wrapped by a master key."""

    id: str
    tenant_id: str | None
    purpose: str
    master_key_id: str
    wrapped_key: bytes
    ciphertext: bytes

    def row(self, now: datetime, expires_at: datetime | None = None) -> dict[str, object]:
        return {
            "id": self.id,
            "tenant_id": self.tenant_id,
            "purpose": self.purpose,
            "master_key_id": self.master_key_id,
            "wrapped_key": self.wrapped_key,
            "ciphertext": self.ciphertext,
            "expires_at": expires_at,
            "created_at": now,
        }
