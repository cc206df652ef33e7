"""Addresses that others give: how they are read, and which networks they reach."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.core.kernel.address import Reach, dialled, plain, read_networks, read_url, refused_because
from mooring.core.kernel.errors import Code, Refusal
from tests.support.rows import every_row

INTERNET = Reach()


@every_row(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "a cloud's metadata"),
        ("fec0::1", "private"),
        ("100.64.0.1", "shared by a carrier"),
        ("100.100.100.200", "a cloud's metadata"),
        ("169.254.169.254", "link-local"),
        ("169.254.170.2", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%2", "link-local"),
        ("168.63.129.16", "a cloud's metadata"),
        ("192.0.0.192", "a cloud's metadata"),
        ("192.0.2.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("198.51.100.1", "reserved"),
        ("203.0.113.1", "reserved"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("2001:db8::1", "reserved"),
        ("2001:10::1", "reserved"),
        ("3fff::1", "reserved"),
        ("100::1", "reserved"),
        ("5f00::1", "reserved"),
        ("64:ff9b:1::1", "reserved"),
        ("::127.0.0.1", "reserved"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("ff02::1", "multicast"),
        ("2001::1", "a tunnel (Teredo)"),
        ("2001:0:c000:201::f5ff:fffe", "a tunnel (Teredo)"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:10.0.0.1", "private"),
        ("::ffff:169.254.169.254", "link-local"),
        ("2002:7f00:1::1", "loopback"),
        ("2002:a9fe:a9fe::", "link-local"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::7f00:1", "loopback"),
    ],
)
def test_only_the_public_internet_is_reached(address: str, kind: str) -> None:
    assert refused_because(ip_address(address), INTERNET) == kind


@every_row(
    "address",
    [
        "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
        "128.0.0.1", "172.15.255.255", "172.32.0.0", "192.167.255.255", "223.255.255.255",
        "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1",
    ],
)  # fmt: skip
def test_public_addresses_are_dialled_over_tls_and_not_without(address: str) -> None:
    assert refused_because(ip_address(address), INTERNET, "https") is None
    assert refused_because(ip_address(address), INTERNET, "http") == "not allowed without TLS"


def test_what_the_admin_allows_is_dialled_with_and_without_tls_and_nothing_beside_it() -> None:
    reach = Reach(allowed=read_networks("10.1.0.0/16, fd00:1::/32"))
    for scheme in ("https", "http"):
        assert refused_because(ip_address("10.1.2.3"), reach, scheme) is None
        assert refused_because(ip_address("::ffff:10.1.2.3"), reach, scheme) is None
        assert refused_because(ip_address("fd00:1::5"), reach, scheme) is None
        assert refused_because(ip_address("10.2.0.1"), reach, scheme) == "private"
        assert refused_because(ip_address("fd00:2::5"), reach, scheme) == "private"


def test_the_platforms_own_addresses_are_refused_although_they_are_public_or_allowed() -> None:
    own = frozenset({ip_address("8.8.4.4")})
    assert refused_because(ip_address("8.8.4.4"), Reach(own=own)) == "the platform's own"
    assert refused_because(ip_address("::ffff:8.8.4.4"), Reach(own=own)) == "the platform's own"
    allowed = read_networks("8.8.4.0/24")
    assert refused_because(ip_address("8.8.4.4"), Reach(allowed, own)) == "the platform's own"
    assert refused_because(ip_address("8.8.4.5"), Reach(allowed, own)) is None
    assert refused_because(ip_address("8.8.4.4"), Reach(allowed, own, own_allowed=True)) is None


@every_row(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"), ("127.8.8.8", "loopback"), ("::1", "loopback"), ("0.0.0.0", "unspecified"),
        ("::ffff:127.0.0.1", "loopback"), ("64:ff9b::7f00:1", "loopback"), ("2002:7f00:1::", "loopback"),
        ("169.254.169.254", "link-local"), ("fe80::1", "link-local"), ("168.63.129.16", "a cloud's metadata"),
        ("fd00:ec2::254", "a cloud's metadata"), ("100.100.100.200", "a cloud's metadata"),
        ("192.0.0.192", "a cloud's metadata"), ("224.0.0.1", "multicast"),
        ("10.0.0.5", "the platform's own"), ("::ffff:10.0.0.5", "the platform's own"),
        ("64:ff9b::a00:5", "the platform's own"), ("2002:a00:5::1", "the platform's own"),
    ],
)  # fmt: skip
def test_no_allowed_network_opens_the_platform_itself(address: str, kind: str) -> None:
    everything = Reach(read_networks("0.0.0.0/0, ::/0"), frozenset({ip_address("10.0.0.5")}))
    for scheme in ("https", "http"):
        assert refused_because(ip_address(address), everything, scheme) == kind


def test_of_a_names_addresses_only_the_good_ones_are_dialled_and_each_once() -> None:
    found = [ip_address(each) for each in ("10.0.0.1", "1.1.1.1", "::ffff:1.1.1.1", "127.0.0.1", "10.0.0.2")]
    assert dialled(found, INTERNET) == ([IPv4Address("1.1.1.1")], ["private", "loopback"])


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_alike_in_every_coat(number: int) -> None:
    bare = refused_because(IPv4Address(number), INTERNET)
    mapped, translated = IPv6Address(0xFFFF << 32 | number), IPv6Address(0x64FF9B << 96 | number)
    six_to_four = IPv6Address(0x2002 << 112 | number << 80)
    assert {refused_because(each, INTERNET) for each in (mapped, translated, six_to_four)} == {bare}
    assert plain(mapped) == IPv4Address(number)


@given(st.ip_addresses(v=4))
def test_what_python_calls_private_is_never_dialled(address: IPv4Address) -> None:
    if not address.is_global and address not in ip_network("192.0.0.0/24"):
        assert refused_because(address, INTERNET) is not None


@every_row(
    ("text", "canonical"),
    [
        ("https://example.org", "https://example.org/"),
        ("https://example.org/hook", "https://example.org/hook"),
        ("HTTPS://Example.ORG.:443/Hook?A=b%20c", "https://example.org/Hook?A=b%20c"),
        ("https://example.org?x=1", "https://example.org/?x=1"),
        ("https://example.org:8443/", "https://example.org:8443/"),
        ("http://example.org:80/x", "http://example.org/x"),
        ("https://1.2.3.4/x", "https://1.2.3.4/x"),
        ("https://[2001:DB8:0::1]:444/x", "https://[2001:db8::1]:444/x"),
        ("https://a_b.example/", "https://a_b.example/"),
    ],
)
def test_an_address_has_one_canonical_form(text: str, canonical: str) -> None:
    target = read_url(text)
    assert target.url == canonical
    assert read_url(target.url) == target


@every_row(
    "text",
    [
        "", "example.org", "//example.org/", "ftp://example.org/", "file:///etc/passwd", "gopher://example.org/",
        "https://", "https:///path", "https://user@example.org/", "https://user:secret@example.org/",
        "https://example.org@127.0.0.1/", "https://example.org/#fragment", "https://example.org/#",
        "https://example.org:0/", "https://example.org:65536/", "https://example.org:99999/", "https://example.org:/",
        "https://example.org:443:443/", "https://exa mple.org/", "https://example.org/a b", "https://example.org/\n",
        "https://example.org/\r\nX-Evil: 1", "https://example.org\\@evil.example/", "https://bücher.example/",
        "https://example.org/ü", "https://example.org/%zz", "https://-a.example/", "https://a..b/", "https://.example/",
        "https://[::1", "https://::1/", "https://[::1%eth0]/", "https://[127.0.0.1]/", "https://[v1.x]/",
        "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/",
        "https://1.2.3/", "https://1.2.3.4.5/", "https://256.1.1.1/", "https://01.2.3.4/", "https://example.0x1/",
        "https://" + "a" * 64 + ".example/", "https://" + "a." * 130 + "example/", "https://e.example/" + "a" * 2000,
    ],
)  # fmt: skip
def test_an_address_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_url(text)
    assert (refused.value.code, refused.value.details) == (Code.VALIDATION_FAILED, {"path": "url"})


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_is_refused(text: str) -> None:
    for candidate in (text, f"https://{text}"):
        try:
            target = read_url(candidate)
        except Refusal:
            continue
        assert target.url.isascii()
        assert read_url(target.url) == target


def test_networks_are_read_from_a_list_and_a_wrong_one_is_named() -> None:
    assert read_networks("") == ()
    assert [str(each) for each in read_networks("10.0.0.0/8,fd00::/8 ,")] == ["10.0.0.0/8", "fd00::/8"]
    with pytest.raises(ValueError, match=r"10\.0\.0\.1/8"):
        read_networks("10.0.0.1/8")
