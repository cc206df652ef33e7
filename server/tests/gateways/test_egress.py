"""The dialer for addresses that others give: real connections on loopback, and every way around it that is known."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mooring.core.kernel.address import Address, Reach, read_networks
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient, EgressFailed, EgressFailure, EgressRequest, ascii_url, is_this_machine
from mooring.gateways.egress import _inner_hosts as inner_hosts
from mooring.gateways.egress import _own_hosts as own_hosts
from mooring.settings import SettingRefused, read_settings
from server.tests.support.http_receiver import Received, answer, http, never, receiver

pytestmark = pytest.mark.anyio

ONLY_SECOND = Reach(allowed=read_networks("127.0.0.2/32"), own_allowed=True)
LOOPBACK = Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True)


class Names:
    """A resolver with a script: each name has a list of answers, given one after the other; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): [list(each) for each in given] for name, given in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        given = self._answers.get(host)
        if given is None:
            raise OSError(f"{host} is not in the script")
        return [ip_address(each) for each in (given.pop(0) if len(given) > 1 else given[0])]

    def close(self) -> None:
        self._answers.clear()


@asynccontextmanager
async def dialer(reach: Reach, names: Names | None = None, **further: Sequence[str]) -> AsyncIterator[EgressClient]:
    made = EgressClient(reach, resolver=names, **further)
    try:
        yield made
    finally:
        await made.close()


async def refusal(outbound: EgressClient, url: str) -> Refusal:
    with pytest.raises(Refusal) as checked:
        await outbound.check(url)
    with pytest.raises(Refusal) as sent:
        await outbound.send(EgressRequest("POST", url))
    assert checked.value.code is sent.value.code
    return sent.value


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/", "https://localhost/", "https://[::1]/", "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/", "https://0.0.0.0/", "https://[::]/", "https://169.254.169.254/latest/meta-data/",
        "https://[fd00:ec2::254]/", "https://10.0.0.1/", "https://192.168.0.1/", "https://100.64.0.1/",
        "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://224.0.0.1/",
        "http://127.0.0.1:7420/", "http://1.1.1.1/",
    ],
)  # fmt: skip
async def test_an_address_that_is_not_on_the_public_internet_is_refused(url: str) -> None:
    async with dialer(Reach()) as outbound:
        assert (await refusal(outbound, url)).code is Code.ADDRESS_REFUSED


@pytest.mark.parametrize(
    "url", ["https://2130706433/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/", "https://a@127.0.0.1/"]
)
async def test_an_address_that_hides_another_one_is_not_even_resolved(url: str) -> None:
    names = Names()
    async with dialer(LOOPBACK, names) as outbound:
        assert (await refusal(outbound, url)).code is Code.VALIDATION_FAILED
    assert names.asked == []


async def test_a_name_that_resolves_only_to_refused_addresses_is_refused_without_telling_them() -> None:
    names = Names(intern_example=[["10.0.0.7", "fd00::7", "::ffff:127.0.0.1"]])
    async with dialer(Reach(), names) as outbound:
        refused = await refusal(outbound, "https://intern.example/")
    assert refused.details == {"host": "intern.example", "reasons": ["private", "loopback"]}
    assert "10.0.0.7" not in refused.detail


async def test_of_a_names_addresses_only_the_allowed_one_is_dialled() -> None:
    names = Names(mixed_example=[["127.0.0.1", "10.0.0.1", "127.0.0.2"]])
    async with receiver(host="127.0.0.2") as good, dialer(ONLY_SECOND, names) as outbound:
        sent = await outbound.send(EgressRequest("POST", f"http://mixed.example:{good.port}/x?y=1", body=b"{}"))
    assert (sent.status, sent.address) == (204, "127.0.0.2")
    assert good.received[0].line == "POST /x?y=1 HTTP/1.1"
    assert good.received[0].headers["host"] == f"mixed.example:{good.port}"


async def test_a_name_that_answers_differently_the_second_time_gains_nothing() -> None:
    """Rebinding: a good answer for the check, a bad one for the connection. There is no second look-up."""
    names = Names(evil_example=[["127.0.0.2"], ["127.0.0.1"]])
    async with (
        receiver(host="127.0.0.2") as good,
        receiver(host="127.0.0.1", port=good.port) as inside,
        dialer(ONLY_SECOND, names) as outbound,
    ):
        request = EgressRequest("POST", f"http://evil.example:{good.port}/")
        assert (await outbound.send(request)).address == "127.0.0.2"
        assert names.asked == ["evil.example"]
        with pytest.raises(Refusal) as refused:
            await outbound.send(request)
        assert refused.value.code is Code.ADDRESS_REFUSED
    assert (len(good.received), inside.received) == (1, [])


async def test_a_redirect_is_handed_back_and_not_followed() -> None:
    async with receiver(host="127.0.0.1") as inside:
        to_inside = answer(302, location=f"http://127.0.0.1:{inside.port}/secret")
        async with receiver(to_inside, host="127.0.0.2") as good, dialer(LOOPBACK) as outbound:
            sent = await outbound.send(EgressRequest("GET", f"http://127.0.0.2:{good.port}/"))
    assert (sent.status, inside.received) == (302, [])


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiver() as proxy, receiver() as good:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with dialer(LOOPBACK) as outbound:
            await outbound.send(EgressRequest("POST", f"http://127.0.0.1:{good.port}/"))
    assert (len(good.received), proxy.received) == (1, [])


async def test_a_name_that_does_not_resolve_may_be_given_and_is_not_reached() -> None:
    async with dialer(Reach(), Names()) as outbound:
        await outbound.check("https://not-yet.example/")
        with pytest.raises(EgressFailed) as failed:
            await outbound.send(EgressRequest("POST", "https://not-yet.example/"))
    assert failed.value.failure is EgressFailure.UNRESOLVED


async def test_http_is_refused_before_any_look_up_where_no_network_is_allowed() -> None:
    names = Names()
    async with dialer(Reach(), names) as outbound:
        with pytest.raises(Refusal) as refused:
            await outbound.check("http://not-yet.example/")
    assert (refused.value.code, names.asked) == (Code.ADDRESS_REFUSED, [])


async def test_the_next_address_is_tried_when_one_takes_no_connection() -> None:
    async with receiver(host="127.0.0.3") as good:
        names = Names(two_example=[["127.0.0.2", "127.0.0.3"]])
        async with dialer(LOOPBACK, names) as outbound:
            sent = await outbound.send(EgressRequest("POST", f"http://two.example:{good.port}/"))
    assert sent.address == "127.0.0.3"


async def test_nobody_listening_is_a_failure_with_a_plain_reason() -> None:
    async with receiver() as gone:
        port = gone.port
    async with dialer(LOOPBACK) as outbound:
        with pytest.raises(EgressFailed) as failed:
            await outbound.send(EgressRequest("POST", f"http://127.0.0.1:{port}/"))
    assert (failed.value.failure, failed.value.reason) == (EgressFailure.UNREACHABLE, "no connection could be made")


async def test_the_deadline_counts_for_everything() -> None:
    async def drips(_: Received) -> bytes:
        return b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 10

    async with dialer(LOOPBACK) as outbound:
        async with receiver(never) as silent:
            request = EgressRequest("POST", f"http://127.0.0.1:{silent.port}/", deadline_seconds=0.1)
            with pytest.raises(EgressFailed) as failed:
                await outbound.send(request)
            assert failed.value.failure is EgressFailure.TIMEOUT
        async with receiver(drips) as broken:
            request = EgressRequest("POST", f"http://127.0.0.1:{broken.port}/", deadline_seconds=60)
            with pytest.raises(EgressFailed) as failed:
                await outbound.send(request)
            assert failed.value.failure is EgressFailure.BROKEN


async def test_an_answer_is_read_up_to_its_limit_and_no_further() -> None:
    async def endless(_: Received) -> bytes:
        return b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"x" * 1_000_000

    async with receiver(endless) as big, dialer(LOOPBACK) as outbound:
        request = EgressRequest("GET", f"http://127.0.0.1:{big.port}/")
        assert len((await outbound.send(request)).body) == 4096
        async with outbound.open(request) as opened:
            with pytest.raises(EgressFailed) as failed:
                async for _ in opened.chunks():
                    pass
    assert failed.value.failure is EgressFailure.TOO_LARGE


async def test_a_compressed_answer_is_not_blown_up() -> None:
    packs = answer(200, b"\x1f\x8b" + b"\0" * 50, content_encoding="gzip")
    async with receiver(packs) as packed, dialer(LOOPBACK) as outbound:
        sent = await outbound.send(EgressRequest("GET", f"http://127.0.0.1:{packed.port}/"))
    assert sent.body == b"\x1f\x8b" + b"\0" * 50
    assert packed.received[0].headers["accept-encoding"] == "identity"


async def test_what_is_sent_is_bounded_too() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"12345"
        yield b"67890"

    async with receiver() as good, dialer(LOOPBACK) as outbound:
        url = f"http://127.0.0.1:{good.port}/"
        for body in (b"1234567890", chunks()):
            with pytest.raises(EgressFailed) as failed:
                await outbound.send(EgressRequest("PUT", url, body=body, body_limit_bytes=9))
            assert failed.value.failure is EgressFailure.TOO_LARGE
        headers = {"content-length": "10"}
        sent = await outbound.send(EgressRequest("PUT", url, headers, body=chunks(), body_limit_bytes=10))
    assert (sent.status, good.received[-1].body) == (204, b"1234567890")


def certificate(directory: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate for one name, signed by itself, and a server's side of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    authority = directory / f"{name}.crt"
    authority.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return authority, server


async def test_tls_is_verified_for_the_name_although_the_number_is_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tls = certificate(tmp_path, "hooks.example")
    asked: list[str | None] = []
    tls.sni_callback = lambda _, name, __: asked.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    names = Names(hooks_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    async with receiver(tls=tls) as good, dialer(LOOPBACK, names) as outbound:
        sent = await outbound.send(EgressRequest("POST", f"https://hooks.example:{good.port}/"))
        assert (sent.status, asked) == (204, ["hooks.example"])
        with pytest.raises(EgressFailed) as failed:
            await outbound.send(EgressRequest("POST", f"https://other.example:{good.port}/"))
        assert failed.value.failure is EgressFailure.TLS
        assert "not accepted" in failed.value.reason
    assert len(good.received) == 1


async def test_a_certificate_that_no_authority_signed_is_not_accepted(tmp_path: Path) -> None:
    _, tls = certificate(tmp_path, "hooks.example")
    names = Names(hooks_example=[["127.0.0.1"]])
    async with receiver(tls=tls) as good, dialer(LOOPBACK, names) as outbound:
        with pytest.raises(EgressFailed) as failed:
            await outbound.send(EgressRequest("POST", f"https://hooks.example:{good.port}/"))
    assert (failed.value.failure, good.received) == (EgressFailure.TLS, [])


async def test_what_is_not_http_is_a_failure() -> None:
    async def nonsense(_: Received) -> bytes:
        return b"SSH-2.0-OpenSSH_9.2\r\n"

    async with receiver(nonsense) as other, dialer(LOOPBACK) as outbound:
        with pytest.raises(EgressFailed) as failed:
            await outbound.send(EgressRequest("POST", f"http://127.0.0.1:{other.port}/"))
    assert failed.value.failure is EgressFailure.BROKEN


async def test_the_platforms_own_hosts_are_refused_wherever_they_are() -> None:
    names = Names(db_example=[["8.8.4.4"]], front_example=[["8.8.4.4"]])
    async with dialer(Reach(), names, own_hosts=["db.example", "gone.example"]) as outbound:
        refused = await refusal(outbound, "https://front.example/")
    assert refused.details["reasons"] == ["the platform's own"]


async def test_a_network_that_is_allowed_opens_no_inner_host_of_the_platform() -> None:
    """The registry and the collector of traces stand in the same network as the receivers, and ask for no password."""
    names = Names(
        registry_example=[["10.0.0.9"]],
        sneaky_example=[["10.0.0.9"]],
        hook_example=[["10.0.0.10"]],
        collector_example=[["8.8.4.4"]],
        cdn_example=[["8.8.4.4"]],
    )
    allowed = Reach(allowed=read_networks("10.0.0.0/8"))
    async with dialer(allowed, names, inner_hosts=["registry.example", "collector.example"]) as outbound:
        for url in ("http://registry.example/v2/", "http://sneaky.example/v2/", "http://10.0.0.9:4318/"):
            assert (await refusal(outbound, url)).details["reasons"] == ["the platform's own"], url
        await outbound.check("http://hook.example/")
        await outbound.check("https://cdn.example/")  # a public address may be shared with anybody


def test_the_inner_hosts_of_the_platform_are_read_from_its_settings() -> None:
    given = {
        "MOORING_REGISTRY_URL": "https://registry.example:5000",
        "MOORING_OTLP_ENDPOINT": "http://[fd00::7]:4318/v1/traces",
    }
    assert inner_hosts(read_settings(given)) == ["registry.example", "fd00::7"]


def test_a_machine_knows_its_own_addresses() -> None:
    assert is_this_machine(ip_address("127.0.0.1"))
    assert not is_this_machine(ip_address("192.0.2.1"))


def test_the_hosts_of_the_platform_are_read_from_its_settings() -> None:
    url = "postgresql://u:p@db.example:5432,[fd00::1]:5433/mooring?host=/run/postgresql"
    assert own_hosts("0.0.0.0", url) == ["db.example", "fd00::1"]
    assert own_hosts("10.0.0.1", "postgresql:///mooring?host=db2.example") == ["10.0.0.1", "db2.example"]


def test_invalid_networks_stop_the_start() -> None:
    given = "10.0.0.0/8, fd00::/8"
    assert read_settings({"MOORING_WEBHOOK_ALLOW_NETWORKS": given}).webhook_allow_networks == given
    with pytest.raises(SettingRefused, match="WEBHOOK_ALLOW_NETWORKS"):
        read_settings({"MOORING_WEBHOOK_ALLOW_NETWORKS": "10.0.0.1/8"})


def test_an_internationalized_name_is_given_in_ascii() -> None:
    assert ascii_url("https://bücher.example/x") == "https://xn--bcher-kva.example/x"
    assert ascii_url("https://faß.example/") == "https://xn--fa-hia.example/"
    assert ascii_url("https://example.org/ü") == "https://example.org/ü"
    with pytest.raises(Refusal):
        ascii_url("https://\u202eexample.org/")


async def test_requests_to_one_receiver_run_side_by_side_each_on_a_connection_of_its_own() -> None:
    together = asyncio.Barrier(10)

    async def meets_the_others(_: Received) -> bytes:
        await together.wait()
        return http(200)

    async with receiver(meets_the_others) as good, dialer(LOOPBACK) as outbound:
        request = EgressRequest("POST", f"http://127.0.0.1:{good.port}/")
        answers = await asyncio.gather(*(outbound.send(request) for _ in range(10)))
    assert [each.status for each in answers] == [200] * 10
