"""The platform's URL and this machine's own address.

The machine's keys and every secret travel to the platform, so the connection uses TLS or stays on this machine. The
machine's own address is where other machines reach a sandbox that uses this machine's network.
"""

import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = "127.0.0.1"
PROBE_TARGET: Final = ("192.0.2.1", 9)
"""An address that no host has (TEST-NET-1). It only makes the kernel choose a route; nothing is sent."""


def check_platform_url(url: str, *, allow_insecure: bool) -> None:
    """Refuse an invalid URL, and plain HTTP to a non-loopback host unless allow_insecure is set."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError(f"{url!r} is not the URL of a platform: it must begin with https://")
    if parts.scheme == "http" and not is_loopback(host) and not allow_insecure:
        raise ValueError(
            f"{url} is not encrypted: anybody on the network path could pose as the platform and control this machine. "
            "Use https://, or `--allow-insecure` on a network that nobody else uses"
        )


def local_address(url: str) -> str:
    """The address of this machine's route to the platform, or to the internet; the loopback if there is no route.

    A machine that also runs the platform reaches it over the loopback, where no other machine can reach it.
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
    """The address that an operator configured, if it is a usable IPv4 address."""
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ValueError(f"`--address` must be an address such as 10.0.0.5, not {text!r}") from error
    if address.version != 4 or address.is_unspecified or address.is_multicast:
        raise ValueError(f"`--address` must be an IPv4 address of this machine, not {text!r}")
    return str(address)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is the loopback."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
