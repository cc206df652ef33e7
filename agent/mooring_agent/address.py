"""The platform's address: what goes there is the machine's keys and every secret, so it goes by TLS or stays here."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def check_address(url: str, *, allow_insecure: bool) -> None:
    """Refuse an address that is none, or by which anybody on the way could read or change what is said."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from error
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError(f"{url!r} is no address of a platform: it begins with https://")
    if parts.scheme == "http" and not is_this_machine(host) and not allow_insecure:
        raise ValueError(
            f"{url} is not encrypted: anybody on the way could pose as the platform and give this machine orders. "
            "Use https://, or `--allow-insecure` on a network that nobody else is on"
        )


def is_this_machine(host: str) -> bool:
    """Whether a host name is the loopback's."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
