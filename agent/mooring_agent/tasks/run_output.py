"""A run's standard output as its task's result tells it.

Whoever may read the task reads this, as he may read the task's log. It is text of a bounded size, without the secrets
that came with the task: a program that prints one of them has it masked here.
"""

import codecs
from collections.abc import Iterable
from typing import Final

MASK: Final = b"[secret]"
SECRET_MIN_BYTES: Final = 4
"""What is shorter is in any text by chance; masking it would spoil the output and hide nothing."""


def as_text(data: bytes, truncated: bool, limit_bytes: int, secrets: Iterable[bytes] = ()) -> tuple[str, bool]:
    """The text, at most so many bytes of UTF-8, and whether something of the output is not in it."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_MIN_BYTES:
            data = data.replace(secret, MASK)
            data = _strip_partial_secret(data, secret) if truncated else data
    # What is cut in the middle of a character ends before it.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=not truncated).replace("\x00", "\ufffd")
    encoded = text.encode()
    if len(encoded) > limit_bytes:
        return encoded[:limit_bytes].decode(errors="ignore"), True
    return text, truncated


def _strip_partial_secret(data: bytes, secret: bytes) -> bytes:
    """Without the part of a secret that the cut left at the end."""
    for length in range(min(len(secret) - 1, len(data)), 0, -1):
        if data.endswith(secret[:length]):
            return data[:-length]
    return data
