"""How a client gets its token, and when it gets another."""

import asyncio
import base64
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mooring_sdk import (
    AddressRefusedHere,
    AsyncClient,
    Client,
    ClientSettings,
    ConnectionFailed,
    KeyUnusable,
    Secret,
    ServiceAccountCredentials,
    SignInCredentials,
    errors,
)
from sdk.tests.support.fake_platform import URL, ClientUnderTest, answer, problem, project
from tests.support.rows import every_row

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def account(**options: Any) -> ServiceAccountCredentials:
    return ServiceAccountCredentials("sa_ci", "key_1", PEM, **options)


def unpadded(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


class Issuer:
    """A platform that issues a token for each assertion and accepts only the newest."""

    def __init__(self, expires_in: int = 900) -> None:
        self.issued = 0
        self.expires_in = expires_in
        self.refuse_once = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/oauth/token":
            self.issued += 1
            granted = {"access_token": f"mrga_{self.issued}", "token_type": "Bearer", "expires_in": self.expires_in}
            return answer(200, granted)
        if self.refuse_once or request.headers["authorization"] != f"Bearer mrga_{self.issued}":
            self.refuse_once = False
            return problem(401, "unauthenticated")
        return answer(200, project())


def test_a_service_account_exchanges_a_signed_assertion(driven: ClientUnderTest) -> None:
    got, double = driven.do(Issuer(), lambda client: client.get_project("prj_vision"), credentials=account())
    assert got.slug == "vision"
    form = parse_qs(double.requests[0].content.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    head, claims, signature = form["assertion"][0].split(".")
    KEY.public_key().verify(unpadded(signature), f"{head}.{claims}".encode())
    assert json.loads(unpadded(head)) == {"alg": "EdDSA", "typ": "JWT", "kid": "key_1"}
    said = json.loads(unpadded(claims))
    assert said["iss"] == said["sub"] == "sa_ci"
    assert said["aud"] == f"{URL}/api/v1/oauth/token"
    assert 0 < said["exp"] - said["iat"] <= 300
    assert len(said["jti"]) >= 16
    assert double.header("authorization") == [None, "Bearer mrga_1"]


def test_the_audience_can_be_another_address(driven: ClientUnderTest) -> None:
    _, double = driven.do(
        Issuer(),
        lambda client: client.get_project("prj_vision"),
        credentials=account(audience="https://mooring.example.org/api/v1/oauth/token"),
    )
    assertion = parse_qs(double.requests[0].content.decode())["assertion"][0]
    assert json.loads(unpadded(assertion.split(".")[1]))["aud"].startswith("https://mooring.example.org/")


def test_a_token_is_used_until_shortly_before_its_end_and_then_renewed(driven: ClientUnderTest) -> None:
    issuer = Issuer(expires_in=900)

    def three_reads(client: Any) -> Any:
        if driven.form == "sync":
            client.get_project("a_1")
            driven.clock.now += 800
            client.get_project("a_2")
            driven.clock.now += 50
            return client.get_project("a_3")
        return three_async_reads(client)

    async def three_async_reads(client: AsyncClient) -> Any:
        await client.get_project("a_1")
        driven.clock.now += 800
        await client.get_project("a_2")
        driven.clock.now += 50
        return await client.get_project("a_3")

    _, double = driven.do(issuer, three_reads, credentials=account())
    assert double.header("authorization") == [None, "Bearer mrga_1", "Bearer mrga_1", None, "Bearer mrga_2"]


def test_a_refused_token_is_replaced_once_and_the_mutation_keeps_its_key(driven: ClientUnderTest) -> None:
    issuer = Issuer()
    issuer.refuse_once = True
    _, double = driven.do(
        issuer,
        lambda client: client.create_project("ten_acme", slug="vision", display_name="V"),
        credentials=account(),
    )
    tried = [request for request in double.requests if request.url.path != "/api/v1/oauth/token"]
    assert [request.headers["authorization"] for request in tried] == ["Bearer mrga_1", "Bearer mrga_2"]
    assert len({request.headers["idempotency-key"] for request in tried}) == 1


def test_a_token_that_is_refused_again_is_an_error(driven: ClientUnderTest) -> None:
    def never(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/oauth/token":
            return answer(200, {"access_token": "mrga_x", "token_type": "Bearer", "expires_in": 900})
        return problem(401, "unauthenticated")

    with pytest.raises(errors.Unauthenticated):
        driven.do(never, lambda client: client.get_project("prj_vision"), credentials=account())


def test_a_given_token_that_is_refused_is_an_error_at_once(driven: ClientUnderTest) -> None:
    with pytest.raises(errors.Unauthenticated):
        driven.do([problem(401, "unauthenticated")], lambda client: client.get_project("prj_vision"))


def test_an_exchange_is_tried_again_with_an_assertion_of_its_own(driven: ClientUnderTest) -> None:
    issuer = Issuer()
    failing: list[httpx.Response | Exception] = [
        problem(503, "temporarily_unavailable", retryable=True),
        httpx.ReadError("gone"),
    ]

    def script(request: httpx.Request) -> httpx.Response | Exception:
        return failing.pop(0) if failing else issuer(request)

    _, double = driven.do(script, lambda client: client.get_project("prj_vision"), credentials=account())
    assertions = [parse_qs(each.content.decode())["assertion"][0] for each in double.requests[:3]]
    assert len({json.loads(unpadded(each.split(".")[1]))["jti"] for each in assertions}) == 3


def test_an_exchange_that_is_refused_is_not_tried_again(driven: ClientUnderTest) -> None:
    with pytest.raises(errors.AssertionRefused):
        driven.do([problem(401, "assertion_refused")], lambda client: client.get_project("x_1"), credentials=account())


def test_signing_in_gives_a_token_and_is_repeated_when_it_ends(driven: ClientUnderTest) -> None:
    def script(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/sign-in":
            assert json.loads(request.content) == {"email": "ada@acme.test", "password": "a password", "tenant": "acme"}
            return answer(200, {"token": "mrgs_1", "expires_at": "2099-01-01T00:00:00Z", "user": {}})
        return answer(200, project())

    credentials = SignInCredentials("ada@acme.test", Secret("a password"), "acme")
    assert "a password" not in repr(credentials)
    _, double = driven.do(script, lambda client: client.get_project("prj_vision"), credentials=credentials)
    assert double.header("authorization") == [None, "Bearer mrgs_1"]


def test_threads_that_need_a_token_at_once_fetch_one() -> None:
    issuer = Issuer()
    together = threading.Barrier(8)
    with Client(URL, credentials=account(), transport=httpx.MockTransport(issuer)) as client:

        def read() -> None:
            together.wait(timeout=60)
            client.get_project("prj_vision")

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert issuer.issued == 1


def test_tasks_that_need_a_token_at_once_fetch_one() -> None:
    issuer = Issuer()

    async def read_together() -> None:
        async with AsyncClient(URL, credentials=account(), transport=httpx.MockTransport(issuer)) as client:
            await asyncio.gather(*(client.get_project("prj_vision") for _ in range(20)))

    asyncio.run(read_together())
    assert issuer.issued == 1


def test_a_key_comes_from_a_file_or_from_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(PEM)
    from_file = ServiceAccountCredentials.from_file("sa_ci", "key_1", file)
    from_bytes = ServiceAccountCredentials("sa_ci", "key_1", bytes(range(32)))
    for credentials in (from_file, from_bytes):
        head, claims, signature = credentials.assertion(URL, 0.0).split(".")
        KEY.public_key().verify(unpadded(signature), f"{head}.{claims}".encode())
        assert repr(credentials) == "ServiceAccountCredentials('sa_ci', 'key_1', …)"


def test_an_invalid_ed25519_key_is_refused_without_being_shown() -> None:
    with pytest.raises(KeyUnusable) as caught:
        ServiceAccountCredentials("sa_ci", "key_1", b"-----BEGIN PRIVATE KEY-----\nsecret\n")
    assert "secret" not in str(caught.value)
    other = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(KeyUnusable, match="Ed25519"):
        ServiceAccountCredentials("sa_ci", "key_1", other)


@every_row(
    ("url", "words"),
    [
        ("mooring.example.org", "must look like"),
        ("ftp://mooring.example.org", "must look like"),
        ("https://ada:secret@mooring.example.org", "must not contain a user or password"),
        ("https://mooring.example.org/?x=1", "must not have a query"),
        ("http://mooring.example.org", "plain http"),
        ("http://10.0.0.1:7420", "plain http"),
    ],
)
def test_an_address_that_a_token_should_not_go_to_is_refused(url: str, words: str) -> None:
    with pytest.raises(AddressRefusedHere, match=words) as caught:
        Client(url, token="mrgp_x")
    assert "secret" not in str(caught.value)


def test_plain_http_to_another_machine_needs_a_word_and_to_this_one_does_not() -> None:
    for url in ("http://localhost:7420/", "http://[::1]:7420", "http://127.0.0.2"):
        Client(url, token="mrgp_x").close()
    Client("http://10.0.0.1", token="mrgp_x", settings=ClientSettings(allow_plain_http=True)).close()


def test_a_token_and_credentials_together_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="not both"):
        Client(URL, token="mrgp_x", credentials=account())


def test_a_connection_that_fails_says_where(driven: ClientUnderTest) -> None:
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:7420"):
        driven.do(lambda request: httpx.ConnectError("refused"), lambda client: client.get_project("prj_vision"))
