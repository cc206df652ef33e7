"""What is too large, too deep, too much or not well formed: refused in bounded time, always in the same envelope."""

import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from mooring.core.kernel.errors import CATALOGUE, Code
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import World, running_platform
from server.tests.support.http_wire import exchange_raw
from server.tests.support.root_key import ROOT_KEY

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

BODY_LIMIT: Final = 10_000
HEADER_LIMIT: Final = 8_000
ENVELOPE: Final = {
    "type", "title", "status", "code", "detail", "remedy", "retryable", "correlation_id", "details",
}  # fmt: skip
TENANTS: Final = "/api/v1/tenants"


def a_tenant(slug: str, display_name: str = "A tenant") -> dict[str, Any]:
    return {
        "slug": slug,
        "display_name": display_name,
        "first_admin": {"email": f"admin@{slug}.example", "display_name": "Admin"},
    }


@pytest.fixture(scope="module")
async def world(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    settings = _settings(shared_database_url, tmp_path_factory.mktemp("keys"))
    async with running_platform(settings) as running:
        world = World(running, running.client())
        admin = await world.sign_in("admin@mooring.local", running.code)
        world.admin.headers["Authorization"] = f"Bearer {admin}"
        yield world
        await world.close()


def _settings(database_url: str, directory: Path) -> Settings:
    return Settings(
        database_url=database_url,
        master_key_file=str(directory / "keys" / "master.key"),
        body_limit_bytes=BODY_LIMIT,
        header_limit_bytes=HEADER_LIMIT,
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        database_connections=4,
        root_key=ROOT_KEY,
    )


def assert_refused(answer: httpx.Response, status: int, code: Code) -> dict[str, Any]:
    """The answer is this refusal, in the one envelope; returns its details."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    problem = answer.json()
    assert set(problem) == ENVELOPE
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, f"urn:mooring:error:{code}")
    assert (problem["title"], problem["remedy"]) == (CATALOGUE[code].title, CATALOGUE[code].remedy)
    assert problem["retryable"] is CATALOGUE[code].retryable
    assert problem["correlation_id"] == answer.headers["x-correlation-id"]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", answer.headers["traceparent"])
    assert (answer.headers["cache-control"], answer.headers["x-content-type-options"]) == ("no-store", "nosniff")
    details: dict[str, Any] = problem["details"]
    return details


async def post(
    world: World, content: bytes | AsyncIterator[bytes], media_type: str = "application/json"
) -> httpx.Response:
    return await world.admin.post(TENANTS, content=content, headers={"Content-Type": media_type})


async def test_a_body_that_says_it_is_too_large_is_refused_unread(world: World) -> None:
    answer = await post(world, b"x" * (BODY_LIMIT + 1))
    assert assert_refused(answer, 413, Code.BODY_TOO_LARGE) == {"limit_bytes": BODY_LIMIT}


async def test_a_body_that_turns_out_too_large_is_refused_at_the_limit(world: World) -> None:
    """In chunks, without a length: the server stops reading, whatever would still come."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (BODY_LIMIT // 2)

    assert assert_refused(await post(world, endless()), 413, Code.BODY_TOO_LARGE) == {"limit_bytes": BODY_LIMIT}


async def test_a_body_of_the_largest_size_is_taken(world: World) -> None:
    body = json.dumps(a_tenant("largest")).encode()
    answer = await post(world, body + b" " * (BODY_LIMIT - len(body)))
    assert answer.status_code == 201, answer.text


async def test_headers_that_are_too_large_are_refused(world: World) -> None:
    answer = await world.admin.get(TENANTS, headers={"X-Padding": "x" * HEADER_LIMIT})
    assert assert_refused(answer, 413, Code.BODY_TOO_LARGE) == {"limit_bytes": HEADER_LIMIT}


async def test_an_address_that_is_too_long_is_refused(world: World) -> None:
    answer = await world.admin.get(TENANTS + "/" + "x" * 5_000)
    assert_refused(answer, 400, Code.MALFORMED_REQUEST)


@pytest.mark.parametrize("media_type", ["text/plain", "application/xml", "application/json-patch+json", ""])
async def test_a_body_of_another_media_type_is_refused(world: World, media_type: str) -> None:
    answer = await post(world, json.dumps(a_tenant("other-type")).encode(), media_type)
    assert_refused(answer, 415, Code.MEDIA_TYPE_UNSUPPORTED)


async def test_parameters_of_a_media_type_do_not_matter(world: World) -> None:
    answer = await post(world, json.dumps(a_tenant("with-charset")).encode(), "Application/JSON; charset=utf-8")
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"slug": }', b"{'slug': 1}", json.dumps(a_tenant("trailing")).encode() + b" x",
     b"\xff\xfe", b'{"slug": "\xff"}',
     b'{"slug": "\x00"}', b'{"slug": "a\nb"}', b'{"slug": "\\ud800"}', b"NaN", b'{"slug": Infinity}'],
)  # fmt: skip
async def test_what_is_not_json_is_refused(world: World, body: bytes) -> None:
    assert_refused(await post(world, body), 400, Code.MALFORMED_REQUEST)


@pytest.mark.parametrize("depth", [1_000, 4_000])
@pytest.mark.parametrize("pieces", [(b"[", b"]"), (b'{"first_admin":', b"}")])
async def test_what_is_nested_deeply_is_refused(world: World, depth: int, pieces: tuple[bytes, bytes]) -> None:
    depth = min(depth, BODY_LIMIT // (len(pieces[0]) + 1) - 1)
    body = pieces[0] * depth + b"1" + pieces[1] * depth
    answer = await post(world, body)
    assert answer.status_code in (400, 422)
    assert_refused(answer, answer.status_code, Code(answer.json()["code"]))


@pytest.mark.parametrize(
    "name",
    ["a\u0000b", "a\u202eb", "a\u2028b", "a\ufeffb", "a\u200bb", "a\ud83d", "\ue000", "a\tb", "   ", "", "x" * 201],
)
async def test_a_name_with_what_cannot_be_printed_is_refused(world: World, name: str) -> None:
    answer = await post(world, json.dumps(a_tenant("odd-name", name)).encode())
    if answer.status_code == 400:
        assert_refused(answer, 400, Code.MALFORMED_REQUEST)  # half of a surrogate pair is not text
    else:
        assert assert_refused(answer, 422, Code.VALIDATION_FAILED)["path"] == "display_name"


@pytest.mark.parametrize(("slug", "name"), [("umlaut", "Größe"), ("ideograph", "船の係留"), ("emoji", "⚓ harbour 🚢")])
async def test_a_name_of_any_script_is_taken_and_given_back_as_it_was(world: World, slug: str, name: str) -> None:
    made = await post(world, json.dumps(a_tenant(slug, name)).encode())
    assert (made.status_code, made.json()["display_name"]) == (201, name)
    read = await world.admin.get(f"{TENANTS}/{made.json()['id']}")
    assert read.json()["display_name"] == name


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"colour": "blue"}, "colour"),
        ({"slug": 5}, "slug"),
        ({"slug": None}, "slug"),
        ({"slug": "Not A Slug"}, "slug"),
        ({"first_admin": {"email": "no address", "display_name": "A"}}, "first_admin.email"),
        ({"first_admin": {"email": "a@b.example", "display_name": "A", "age": 5}}, "first_admin.age"),
        ({"first_admin": []}, "first_admin"),
    ],
)
async def test_a_value_that_is_not_taken_is_named_by_its_path(world: World, change: dict[str, Any], path: str) -> None:
    answer = await post(world, json.dumps(a_tenant("value") | change).encode())
    assert assert_refused(answer, 422, Code.VALIDATION_FAILED)["path"] == path


async def test_a_field_that_is_missing_or_unknown_is_named(world: World) -> None:
    answer = await post(world, json.dumps(a_tenant("value") | {"colour": "blue"}).encode())
    assert "colour" in answer.json()["detail"]
    answer = await post(world, b'{"slug": "abc"}')
    assert "display_name" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("?colour=blue", "colour"),
        ("?limit=0", "limit"),
        ("?limit=501", "limit"),
        ("?limit=many", "limit"),
        ("?limit=-1", "limit"),
        ("?limit=1&limit=2", "limit"),
        ("?limit=null", "limit"),
        ("?cursor=%00", "cursor"),
        ("?cursor=" + "a" * 301, "cursor"),
        ("?%00=1", "\x00"),
    ],
)
async def test_a_query_parameter_that_is_not_taken_is_refused(world: World, query: str, path: str) -> None:
    answer = await world.admin.get(TENANTS + query)
    assert assert_refused(answer, 422, Code.VALIDATION_FAILED)["path"] == path


@pytest.mark.parametrize("cursor", ["abc", "bm90aGluZw", "cDF8cHJvamVjdHw", "cDF8dGVuYW50", "%C3%A9"])
async def test_a_cursor_that_was_not_made_here_is_refused(world: World, cursor: str) -> None:
    answer = await world.admin.get(f"{TENANTS}?cursor={cursor}")
    assert answer.status_code == 422
    assert answer.json()["code"] in (Code.CURSOR_INVALID, Code.VALIDATION_FAILED)


async def test_a_page_has_no_more_than_was_asked_for_and_pages_join_without_gap_or_overlap(world: World) -> None:
    for number in range(5):
        assert (await post(world, json.dumps(a_tenant(f"page-{number}")).encode())).status_code == 201
    whole = [each["id"] for each in (await world.admin.get(f"{TENANTS}?limit=500")).json()["items"]]
    seen, cursor = list[str](), ""
    while True:
        page = (await world.admin.get(f"{TENANTS}?limit=2{cursor}")).json()
        assert len(page["items"]) <= 2
        seen += [each["id"] for each in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == whole
    assert len(seen) >= 5


@pytest.mark.parametrize(
    "given", ["", "a b", "a" * 129, "-begins", "a/b", "a\u00e9", "<script>", "a;b", "../etc", "a%0d%0aSet-Cookie"]
)
async def test_a_correlation_id_that_is_not_well_formed_is_refused_and_never_given_back(
    world: World, given: str
) -> None:
    answer = await world.admin.get(TENANTS, headers={b"X-Correlation-ID": given.encode("latin-1")})
    details = assert_refused(answer, 400, Code.HEADER_INVALID)
    assert details == {"header": "X-Correlation-ID"}
    assert re.fullmatch(r"cor_[0-9a-z]{26}", answer.headers["x-correlation-id"])
    if given.strip():
        assert given not in answer.text
        assert given not in str(answer.headers)


@pytest.mark.parametrize("given", ["a", "order-66:step.2_b", "0" * 128])
async def test_a_correlation_id_that_is_well_formed_is_kept(world: World, given: str) -> None:
    answer = await world.admin.get(TENANTS, headers={"X-Correlation-ID": given})
    assert (answer.status_code, answer.headers["x-correlation-id"]) == (200, given)


async def test_the_trace_of_the_caller_goes_on(world: World) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Correlation-ID": "traced-one"}
    answer = await world.admin.post(TENANTS, json=a_tenant("traced"), headers=headers)
    version, trace_out, span, flags = answer.headers["traceparent"].split("-")
    assert (version, trace_out, flags) == ("00", trace, "01")
    assert span != "00f067aa0ba902b7"
    database = world.running.platform.services.database
    for table in ("event", "audit"):
        rows = await database.fetch(PLATFORM, f"SELECT trace_id FROM {table} WHERE correlation_id = 'traced-one'")
        assert {row["trace_id"] for row in rows} == {trace}, table


@pytest.mark.parametrize(
    "given",
    ["nothing", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
     "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
     "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
)  # fmt: skip
async def test_a_malformed_trace_is_replaced_by_a_new_one(world: World, given: str) -> None:
    answer = await world.admin.get(TENANTS, headers={"traceparent": given})
    assert answer.status_code == 200
    assert answer.headers["traceparent"].split("-")[1] not in given.lower()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nowhere", 404, Code.NOT_FOUND),
        ("GET", "/api/v2/tenants", 404, Code.NOT_FOUND),
        ("GET", "/api/v1/tenants/../whoami", 404, Code.NOT_FOUND),
        ("GET", "/api/v1/tenants/%00", 404, Code.NOT_FOUND),
        ("GET", "/api/v1/tenants/ten_1", 404, Code.NOT_FOUND),
        ("PUT", TENANTS, 405, Code.METHOD_NOT_ALLOWED),
        ("TRACE", TENANTS, 405, Code.METHOD_NOT_ALLOWED),
        ("BREW", TENANTS, 400, Code.MALFORMED_REQUEST),
    ],
)
async def test_an_unknown_path_is_answered_in_the_same_envelope(
    world: World, method: str, path: str, status: int, code: Code
) -> None:
    host = world.running.url.removeprefix("http://")
    token = world.admin.headers["Authorization"]
    raw = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {token}\r\nConnection: close\r\n\r\n"
    head, body = await exchange_raw(world.running.url, raw.encode())
    assert head.startswith(f"HTTP/1.1 {status} ")
    problem = json.loads(body)
    assert (set(problem), problem["code"]) == (ENVELOPE, code)
    assert f"x-correlation-id: {problem['correlation_id']}" in head
    if status == 405:
        assert "allow: GET, POST" in head


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n",
        b"POST /api/v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /api/v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_not_http_as_it_should_be_is_refused_and_the_connection_ends(world: World, raw: bytes) -> None:
    head, body = await exchange_raw(world.running.url, raw)
    assert head.startswith(("HTTP/1.1 400 ", "HTTP/1.1 413 "))
    assert json.loads(body)["code"] in (Code.MALFORMED_REQUEST, Code.BODY_TOO_LARGE)
    assert "x-correlation-id: cor_" in head
    assert "connection: close" in head


@pytest.mark.parametrize("token", ["", "Bearer", "Basic abc", "Bearer " + "x" * 5_000, "Bearer \xff"])
async def test_a_malformed_token_is_refused_and_never_echoed(world: World, token: str) -> None:
    answer = await world.client().get(TENANTS, headers={b"Authorization": token.encode("latin-1")})
    assert_refused(answer, 401, Code.UNAUTHENTICATED)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    if len(token) > 7:
        assert token.partition(" ")[2] not in answer.text


@pytest.fixture
def few(settings: Settings) -> Settings:
    """Settings with which a caller is soon refused."""
    return replace(settings, rate_limit_per_second=0.001, rate_limit_burst=5, sign_in_limit_per_minute=0.05)


async def test_a_caller_who_asks_too_often_learns_when_to_come_back(few: Settings) -> None:
    async with running_platform(few) as running, running.client() as client:
        answers = [await client.get("/api/v1/reference") for _ in range(7)]
    assert [each.status_code for each in answers] == [200] * 5 + [429] * 2
    details = assert_refused(answers[-1], 429, Code.RATE_LIMITED)
    assert answers[-1].headers["retry-after"] == str(details["retry_after_seconds"])
    assert 900 <= details["retry_after_seconds"] <= 1000  # a whole one comes in 1000 s; the asking took a part of them


async def test_a_body_that_does_not_come_is_not_waited_for(few: Settings) -> None:
    """A caller that says that a body comes, and then hangs up, leaves nothing behind."""
    async with running_platform(few) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"POST /api/v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{")
        async with running.client() as client:
            assert (await client.get("/healthz")).status_code == 200
