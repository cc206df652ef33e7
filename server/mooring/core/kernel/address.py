"""URLs that users give us to dial: their syntax, and the networks they may reach (the protection against SSRF).

A server that dials an address for a stranger lends them its own position in the network. So one strict parser reads
the URL, and its result is what is dialled: there is no second parser that could read it differently. The host is then
resolved, and this module checks every address that it resolves to. Only the public internet is allowed, and in
addition the networks that the platform's admin allows explicitly. An IPv6 address that embeds an IPv4 address must
pass the checks for both.

The platform's own position is never lent, whatever the admin allows: its machine (loopback and its own addresses), its
link (link-local addresses and the metadata service of a cloud, which gives out credentials) and its database. A network
such as 10.0.0.0/8 is easily allowed for the receivers in it, and contains all of these.

Plain http is allowed only to networks that the admin allows: on the open internet anybody could read and change it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from mooring.core.kernel.validation import invalid

URL_LENGTH_MAX: Final = 2_000
HOST_LENGTH_MAX: Final = 253
PORT_MAX: Final = 65_535
DEFAULT_PORT: Final = {"https": 443, "http": 80}

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)(?P<fragment>#.*)?"
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_REST: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")

_V4: Final = (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.100.100.200/32", "a cloud's metadata"),
    ("100.64.0.0/10", "shared by a carrier"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "a cloud's metadata"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.192/32", "a cloud's metadata"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "reserved"),
    ("192.88.99.0/24", "reserved"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "reserved"),
    ("198.51.100.0/24", "reserved"),
    ("203.0.113.0/24", "reserved"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)
_V6: Final = (
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("2001::/32", "a tunnel (Teredo)"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "reserved"),
    ("3fff::/20", "reserved"),
    ("fd00:ec2::254/128", "a cloud's metadata"),
    ("fd20:ce::254/128", "a cloud's metadata"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_REFUSED_V4: Final = tuple((IPv4Network(network), kind) for network, kind in _V4)
_REFUSED_V6: Final = tuple((IPv6Network(network), kind) for network, kind in _V6)
_NEVER_KINDS: Final = frozenset(("unspecified", "loopback", "link-local", "a cloud's metadata", "multicast"))
_NEVER: Final[tuple[tuple[Network, str], ...]] = (
    *((network, kind) for network, kind in _REFUSED_V4 if kind in _NEVER_KINDS),
    *((network, kind) for network, kind in _REFUSED_V6 if kind in _NEVER_KINDS),
)
_PUBLIC_V6: Final = IPv6Network("2000::/3")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. The egress client dials these parts and never parses the text again."""

    scheme: str
    host: str  # a name in ASCII, lower case, or an IP address without brackets
    port: int
    path: str  # path and query, as they go into the request

    @property
    def authority(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL in its one canonical form."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def literal(self) -> Address | None:
        """The host as an IP address; None when it is a name."""
        return _literal(self.host)


@dataclass(frozen=True, slots=True)
class Reach:
    """Which addresses a URL from a user may reach, beyond the public internet."""

    allowed: tuple[Network, ...] = ()
    own: frozenset[Address] = frozenset()  # the platform's own addresses: refused although they may be public
    own_allowed: bool = False  # for URLs of the admin's own: what is allowed may be the platform itself


def read_url(text: str, path: str = "url") -> Target:
    """Parse a URL; `path` names the field of the request that holds it, for the refusal."""
    if len(text) > URL_LENGTH_MAX:
        raise invalid(path, f"at most {URL_LENGTH_MAX} characters")
    whole = _URL.fullmatch(text)
    if whole is None:
        raise invalid(path, "an address such as https://example.org/hooks")
    scheme = whole["scheme"].lower()
    if scheme not in DEFAULT_PORT:
        raise invalid(path, "an https address")
    if whole["fragment"] is not None:
        raise invalid(path, "an address without a fragment")
    if "@" in whole["authority"]:
        raise invalid(path, "an address without a user or a password")
    authority = _AUTHORITY.fullmatch(whole["authority"])
    if authority is None:
        raise invalid(path, "a host name or an IP address, and optionally a port")
    port = int(authority["port"]) if authority["port"] else DEFAULT_PORT[scheme]
    if not 1 <= port <= PORT_MAX:
        raise invalid(path, f"a port between 1 and {PORT_MAX}")
    rest = whole["rest"]
    if not _REST.fullmatch(rest):
        raise invalid(path, "a path and query in which other characters are percent-encoded")
    return Target(scheme, _host(authority["host"].lower(), path), port, rest if rest.startswith("/") else f"/{rest}")


def _host(text: str, path: str) -> str:
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError as error:
            raise invalid(path, "an IPv6 address in the brackets") from error
    name = text.removesuffix(".")
    labels = name.split(".")
    if len(name) > HOST_LENGTH_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        raise invalid(path, "a host name of letters, digits and hyphens")
    if not _NUMBER.fullmatch(labels[-1]):
        return name
    try:  # a last label that is a number means IPv4; only a.b.c.d is allowed, because 0177.1 and 2130706433 mislead
        return str(IPv4Address(name))
    except ValueError as error:
        raise invalid(path, "an IPv4 address in the form a.b.c.d") from error


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def read_networks(text: str) -> tuple[Network, ...]:
    """Parse networks from text such as `10.0.0.0/8, fd00::/8`; a ValueError names the invalid part."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def plain(address: Address) -> Address:
    """The address without its disguise: an IPv4-mapped IPv6 address becomes IPv4, and a scope id is dropped."""
    if isinstance(address, IPv6Address):
        if address in _MAPPED:
            return _low_v4(address)
        if address.scope_id is not None:
            return IPv6Address(int(address))
    return address


def refused_because(address: Address, reach: Reach, scheme: str = "https") -> str | None:
    """Why this address must not be dialled, in a few words; None when it may be."""
    actual = plain(address)
    if not reach.own_allowed and (reason := _never_because(actual, reach)) is not None:
        return reason
    if any(actual in network for network in reach.allowed if network.version == actual.version):
        return None
    kind = _kind_v4(actual) if isinstance(actual, IPv4Address) else _kind_v6(actual, reach, scheme)
    if kind is None and actual in reach.own:
        return "the platform's own"
    if kind is None and scheme != "https":
        return "not allowed without TLS"
    return kind


def _never_because(address: Address, reach: Reach) -> str | None:
    """Why no allowed network opens this address, or the IPv4 address in it; None when one may."""
    for each in (address, *_embedded(address)):
        kind = next((kind for network, kind in _NEVER if network.version == each.version and each in network), None)
        if kind is not None:
            return kind
        if each in reach.own:
            return "the platform's own"
    return None


def dialled(addresses: Iterable[Address], reach: Reach, scheme: str = "https") -> tuple[list[Address], list[str]]:
    """The addresses that may be dialled, in their order, and the reasons why the others may not."""
    allowed: list[Address] = []
    reasons: list[str] = []
    for address in addresses:
        reason = refused_because(address, reach, scheme)
        actual = plain(address)
        if reason is None and actual not in allowed:
            allowed.append(actual)
        elif reason is not None and reason not in reasons:
            reasons.append(reason)
    return allowed, reasons


def _kind_v4(address: IPv4Address) -> str | None:
    return next((kind for network, kind in _REFUSED_V4 if address in network), None)


def _kind_v6(address: IPv6Address, reach: Reach, scheme: str) -> str | None:
    if address in _NAT64:
        return refused_because(_embedded(address)[0], reach, scheme)
    kind = next((kind for network, kind in _REFUSED_V6 if address in network), None)
    if kind is None and address not in _PUBLIC_V6:
        return "reserved"
    if kind is None and address in _SIX_TO_FOUR:
        return refused_because(_embedded(address)[0], reach, scheme)
    return kind


def _embedded(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 address to which an IPv6 address leads through a translator or a tunnel."""
    if isinstance(address, IPv6Address) and address in _NAT64:
        return (_low_v4(address),)
    if isinstance(address, IPv6Address) and address in _SIX_TO_FOUR:
        return (IPv4Address((int(address) >> 80) & 0xFFFFFFFF),)
    return ()


def _low_v4(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
