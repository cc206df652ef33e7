"""The address of this platform that a browser's page is at, as the browser itself says it.

A page signs in at a provider, or with a passkey, for the address that it was loaded from: the answer comes back to that
address, and the passkey belongs to it. Browsers name it in `Origin`, which no script can set.
"""

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from mooring.core.kernel.errors import Code, Refusal


def own_address(headers: Mapping[str, str], public_url: str, addresses: Collection[str]) -> str:
    """The origin of the page that made the request; a Refusal if it is not a page of this platform."""
    origin = headers.get("origin", "")
    public = origin_of(public_url)
    host = headers.get("host", "")
    own = origin == public if public else origin in addresses or (host != "" and urlsplit(origin).netloc == host)
    if not own:
        at = f" at {public}" if public else ""
        raise Refusal(Code.CROSS_SITE_REQUEST, f"the request must come from a page of this platform{at}")
    return origin


def origin_of(url: str) -> str | None:
    """The origin of a URL; None if it has none."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else None


def page_address(headers: Mapping[str, str], public_url: str, addresses: Collection[str]) -> str:
    """The origin of the page that made the request, or for other programs the one that pages have."""
    if "origin" in headers:
        return own_address(headers, public_url, addresses)
    return origin_of(public_url) or next(iter(addresses), f"http://{headers.get('host', '')}")


def host_of(headers: Mapping[str, str], public_url: str, addresses: Collection[str], origin: str) -> str | None:
    """The host of a page of this platform; None if no page of it is at this origin."""
    try:
        own_address({"origin": origin, "host": headers.get("host", "")}, public_url, addresses)
    except Refusal:
        return None
    return urlsplit(origin).hostname


def host_name(address: str) -> str | None:
    """The name of the host in an address; None for an IP address, which passkeys cannot belong to."""
    host = urlsplit(address).hostname
    if host is None:
        return None
    try:
        ip_address(host)
    except ValueError:
        return host
    return None
