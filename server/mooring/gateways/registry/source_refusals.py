"""The refusals for sources, with messages that may be shown to the user who named the source.

A message contains the host, and never the rest of a URL, which may hold a secret.
"""

from mooring.core.kernel.errors import Code, Refusal


def endless(host: str, limit_bytes: int) -> Refusal:
    """The source sent more than it announced, or more than the limit."""
    return Refusal(
        Code.SOURCE_ENDLESS,
        f"{host} sent more than {limit_bytes} bytes",
        {"host": host, "limit_bytes": limit_bytes},
    )


def too_large(host: str, size_bytes: int, limit_bytes: int) -> Refusal:
    """The source announces more than the limit."""
    return Refusal(
        Code.SOURCE_TOO_LARGE,
        f"{host} announces {size_bytes} bytes, and the limit is {limit_bytes}",
        {"host": host, "size_bytes": size_bytes, "limit_bytes": limit_bytes},
    )


def too_slow(host: str, what: str) -> Refusal:
    """The source is too slow."""
    return Refusal(Code.SOURCE_TOO_SLOW, f"{host} is too slow: {what}", {"host": host})


def stalled(host: str, seconds: float) -> Refusal:
    """The source stopped sending."""
    return Refusal(
        Code.SOURCE_STALLED,
        f"{host} stopped sending: no byte arrived for {seconds:g} s",
        {"host": host, "seconds": seconds},
    )


def malformed(host: str, what: str) -> Refusal:
    """The answer violates the protocol."""
    return Refusal(Code.SOURCE_MALFORMED, f"{host} answered with {what}", {"host": host})


def not_found(host: str, what: str) -> Refusal:
    """The source does not have the named content."""
    return Refusal(Code.ARTIFACT_NOT_FOUND_AT_SOURCE, f"{host} does not have {what}", {"host": host, "missing": what})


def auth_refused(host: str, why: str) -> Refusal:
    """Credentials are missing or not accepted, or would go to another host."""
    return Refusal(Code.REGISTRY_AUTH_REFUSED, f"{host}: {why}", {"host": host})


def redirect_refused(origin: str, host: str, why: str) -> Refusal:
    """The source redirects to a host that is not allowed."""
    return Refusal(
        Code.REDIRECT_REFUSED,
        f"{origin} redirects to {host or 'another address'}: {why}",
        {"origin": origin, "host": host},
    )


def mismatch(host: str, expected: str | int, found: str | int) -> Refusal:
    """The content has another digest or size than expected."""
    return Refusal(
        Code.DIGEST_MISMATCH,
        f"{host} has {found} instead of {expected}",
        {"host": host, "expected": expected, "found": found},
    )


def status_refusal(host: str, status: int, what: str) -> Refusal:
    """The refusal for an unexpected HTTP status."""
    if status in (404, 410):
        return not_found(host, what)
    if status in (401, 403):
        return auth_refused(host, f"access to {what} is refused (HTTP {status})")
    return malformed(host, f"HTTP {status} to the request for {what}")
