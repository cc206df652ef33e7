"""Two addresses: the platform's, and this machine's own.

What goes to the platform is the machine's keys and every secret, so it goes by TLS or stays here. The machine's own is
where other machines reach a sandbox that has the whole of this one, and with it its network.
"""

import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = "127.0.0.1"
ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address that nobody has, to ask the kernel by which of ours it would go there; nothing is sent."""


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


def own_address(url: str) -> str:
    """By which address this machine goes to the platform, or else to anywhere; the loopback where there is no way.

    The machine that the platform runs on as well goes there by the loopback, where no other machine reaches it.
    """
    parts = urlsplit(url)
    ways = [ELSEWHERE]
    if parts.hostname and not is_this_machine(parts.hostname):
        ways.insert(0, (parts.hostname, parts.port or 443))
    for host, port in ways:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((host, port))
            found = str(way.getsockname()[0])
            if not is_this_machine(found):
                return found
    return LOOPBACK


def check_own_address(text: str) -> str:
    """An address that an operator gave to this machine; `ValueError` where it is none."""
    try:
        given = ip_address(text)
    except ValueError as error:
        raise ValueError(f"`--address` is an address such as 10.0.0.5; this is {text!r}") from error
    if given.version != 4 or given.is_unspecified or given.is_multicast:
        raise ValueError(f"`--address` is an IPv4 address of this machine; this is {text!r}")
    return str(given)


def is_this_machine(host: str) -> bool:
    """Whether a host name is the loopback's."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
