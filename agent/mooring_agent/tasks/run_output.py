"""The captured standard output of a run, as the result of its task contains it.

Everybody who may read the task can read it, like the task's log. It is text of a bounded size in which the secrets of
the allocation are masked.
"""

import codecs
from collections.abc import Iterable

from mooring_agent.tasks.secret_masks import MASK, SECRET_MIN_BYTES


def as_text(data: bytes, truncated: bool, limit_bytes: int, secrets: Iterable[bytes] = ()) -> tuple[str, bool]:
    """The text, at most this many bytes of UTF-8, and whether some of the output is missing."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_MIN_BYTES:
            data = data.replace(secret, MASK)
            data = _strip_partial_secret(data, secret) if truncated else data
    # A truncated output may end within a character, which is then left out.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=not truncated).replace("\x00", "\ufffd")
    encoded = text.encode()
    if len(encoded) > limit_bytes:
        return encoded[:limit_bytes].decode(errors="ignore"), True
    return text, truncated


def _strip_partial_secret(data: bytes, secret: bytes) -> bytes:
    """Remove the part of a secret that a truncation left at the end."""
    for length in range(min(len(secret) - 1, len(data)), 0, -1):
        if data.endswith(secret[:length]):
            return data[:-length]
    return data
