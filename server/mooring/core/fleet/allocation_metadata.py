"""What a requester notes on an allocation for other systems: stored and shown, never interpreted."""

import json
from collections.abc import Mapping
from typing import Final

from mooring.core.kernel import validation

METADATA_MAX: Final = 64
METADATA_VALUE_LENGTH: Final = 200
METADATA_LENGTH: Final = 16_384


def scheduler_type(text: str | None) -> str | None:
    return None if text is None else validation.display_name(text, "scheduler_type", 100)


def integration_metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    """The platform does not interpret it, but limits its size."""
    plain = dict(given or {})
    if len(plain) > METADATA_MAX:
        raise validation.invalid("integration_metadata", f"at most {METADATA_MAX} entries")
    for key, value in plain.items():
        if len(key) > METADATA_VALUE_LENGTH or len(value) > METADATA_VALUE_LENGTH or "\0" in key + value:
            raise validation.invalid(
                "integration_metadata", f"names and values of at most {METADATA_VALUE_LENGTH} characters"
            )
    if len(json.dumps(plain, ensure_ascii=False)) > METADATA_LENGTH:
        raise validation.invalid("integration_metadata", f"at most {METADATA_LENGTH} characters in all")
    return plain
