"""What can be wrong with a source, each with its code and in words that may be shown to whoever named the source.

A message has the host and never the rest of an address, which may hold what only its holder should know.
"""

from mooring.core.kernel.errors import Code, Refusal


def endless(host: str, limit_bytes: int) -> Refusal:
    """More came than was announced or is taken."""
    return Refusal(
        Code.SOURCE_ENDLESS,
        f"{host} went on sending beyond {limit_bytes} bytes",
        {"host": host, "limit_bytes": limit_bytes},
    )


def too_large(host: str, size_bytes: int, limit_bytes: int) -> Refusal:
    """More is announced than is taken."""
    return Refusal(
        Code.SOURCE_TOO_LARGE,
        f"{host} has {size_bytes} bytes there, and at most {limit_bytes} are taken",
        {"host": host, "size_bytes": size_bytes, "limit_bytes": limit_bytes},
    )


def too_slow(host: str, what: str) -> Refusal:
    """Too little came in the time."""
    return Refusal(Code.SOURCE_TOO_SLOW, f"{host} is too slow: {what}", {"host": host})


def stalled(host: str, seconds: float) -> Refusal:
    """Nothing came any more."""
    return Refusal(
        Code.SOURCE_STALLED,
        f"{host} stopped sending: no byte came in {seconds:g} s",
        {"host": host, "seconds": seconds},
    )


def malformed(host: str, what: str) -> Refusal:
    """What came is not what the protocol says."""
    return Refusal(Code.SOURCE_MALFORMED, f"{host} answered with {what}", {"host": host})


def not_found(host: str, what: str) -> Refusal:
    """What was named is not there."""
    return Refusal(Code.ARTIFACT_NOT_FOUND_AT_SOURCE, f"{host} does not have {what}", {"host": host, "missing": what})


def auth_refused(host: str, why: str) -> Refusal:
    """Credentials are missing, not taken, or wanted by somebody else."""
    return Refusal(Code.REGISTRY_AUTH_REFUSED, f"{host}: {why}", {"host": host})


def redirect_refused(origin: str, host: str, why: str) -> Refusal:
    """The source points to where nobody goes."""
    return Refusal(
        Code.REDIRECT_REFUSED,
        f"{origin} redirects to {host or 'another address'}: {why}",
        {"origin": origin, "host": host},
    )


def mismatch(host: str, expected: str | int, found: str | int) -> Refusal:
    """What is there is something else."""
    return Refusal(
        Code.DIGEST_MISMATCH,
        f"{host} has {found} where {expected} was named",
        {"host": host, "expected": expected, "found": found},
    )


def status_refusal(host: str, status: int, what: str) -> Refusal:
    """The refusal that an answer's status stands for, when it is none that was hoped for."""
    if status in (404, 410):
        return not_found(host, what)
    if status in (401, 403):
        return auth_refused(host, f"access to {what} is refused (HTTP {status})")
    return malformed(host, f"HTTP {status} where {what} was asked for")
