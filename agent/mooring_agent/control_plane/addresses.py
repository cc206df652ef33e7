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
PROBE_TARGET: Final = ("192.0.2.1", 9)
"""An address that nobody has, to ask the kernel by which of ours it would go there; nothing is sent."""


def check_platform_url(url: str, *, allow_insecure: bool) -> None:
    """Refuse an address that is none, or by which anybody on the way could read or change what is said."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from error
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError(f"{url!r} is no address of a platform: it begins with https://")
    if parts.scheme == "http" and not is_loopback(host) and not allow_insecure:
        raise ValueError(
            f"{url} is not encrypted: anybody on the way could pose as the platform and give this machine orders. "
            "Use https://, or `--allow-insecure` on a network that nobody else is on"
        )


def local_address(url: str) -> str:
    """By which address this machine goes to the platform, or else to anywhere; the loopback where there is no way.

    The machine that the platform runs on as well goes there by the loopback, where no other machine reaches it.
    """
    parts = urlsplit(url)
    targets = [PROBE_TARGET]
    if parts.hostname and not is_loopback(parts.hostname):
        targets.insert(0, (parts.hostname, parts.port or 443))
    for host, port in targets:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            local = str(probe.getsockname()[0])
            if not is_loopback(local):
                return local
    return LOOPBACK


def check_local_address(text: str) -> str:
    """An address that an operator gave to this machine; `ValueError` where it is none."""
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ValueError(f"`--address` is an address such as 10.0.0.5; this is {text!r}") from error
    if address.version != 4 or address.is_unspecified or address.is_multicast:
        raise ValueError(f"`--address` is an IPv4 address of this machine; this is {text!r}")
    return str(address)


def is_loopback(host: str) -> bool:
    """Whether a host name is the loopback's."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
