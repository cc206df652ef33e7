"""The committed OpenAPI document against a live server, by schemathesis: no 5xx, and no answer that is not documented.

Every operation is called with what its schema allows and with what it does not, as a tenant's admin and as the
platform's. Most ids in addresses are those of real things, so that the requests reach the handlers; things that a
request deletes are made for that. The examples are the same in every run. The server runs in a thread of its own.
"""

import asyncio
import json
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis import Case
from schemathesis.checks import (
    allow_header_conformance,
    content_type_conformance,
    load_all_checks,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.core import NotSet
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.transport.requests import SameHostRedirectsSession

from mooring.api.route import Route
from mooring.api.routes import ROUTES
from mooring.core.kernel.permissions import Scope
from mooring.settings import Settings
from server.tests.conftest import World, running_platform
from server.tests.support.postgres import SOAK
from server.tests.support.root_key import ROOT_KEY
from server.tests.support.route_requests import Home
from tests.support.rows import every_row
from tools.generate_openapi import FILE

pytestmark = [pytest.mark.real_part("postgresql")]

EXAMPLES: Final = 20
"""By chance, beside the fifty or so that cover each parameter's and each field's bounds; in the long form alone."""
PATIENCE_SECONDS: Final = 300
SHARE: Final = 1 if SOAK else 3
"""One in so many of all cases is asked; which ones, their content decides."""
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    allow_header_conformance,
]
STREAMS: Final = [each.name for each in ROUTES if each.media_type == "text/event-stream"]
ENDS_ITS_CALLER: Final = ["close_browser_session"]
"""It revokes the token that all other cases use; `identity/test_browser_session.py` calls it."""


def _session() -> SameHostRedirectsSession:
    """One connection for all requests, and no look at the environment's proxies: half of what a request costs here."""
    session = SameHostRedirectsSession()
    session.trust_env = False
    session.headers.clear()  # what a session adds by itself would be sent as if the case had it
    return session


@dataclass
class ContractServer:
    """A live server, the tokens of its callers, and the ids of real things by route."""

    url: str
    tokens: dict[str, str]
    ids: dict[str, dict[str, str]] = field(default_factory=dict)
    session: SameHostRedirectsSession = field(default_factory=_session)


async def _prepare(world: World) -> ContractServer:
    tenant = await world.tenant("acme")
    home = Home(world, world.client(), tenant, await world.project(tenant, "train"))
    tokens = {"platform": home.token(Scope.PLATFORM), "tenant": tenant.token, "node": await home.node_token()}
    served = ContractServer(world.running.url, tokens)
    for each in ROUTES:
        if each.path_parameters and not each.hidden:
            served.ids[each.name] = await home.ids(each, fresh=each.method == "DELETE")
    return served


def _serve(settings: Settings, ready: threading.Event, started: list[Any]) -> None:
    async def serve() -> None:
        stop = asyncio.Event()
        async with running_platform(settings) as running:
            world = World(running, running.client())
            admin = await world.sign_in("admin@mooring.local", running.code)
            world.admin.headers["Authorization"] = f"Bearer {admin}"
            started.extend((await _prepare(world), asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()
            await world.close()

    try:
        asyncio.run(serve())
    finally:
        ready.set()


@pytest.fixture(scope="module")
def served(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContractServer]:
    settings = Settings(
        database_url=shared_database_url,
        master_key_file=str(tmp_path_factory.mktemp("keys") / "keys" / "master.key"),
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        wait_seconds_max=0.01,  # a read that waits is no slower than one that does not
        webhook_allow_networks="127.0.0.0/8",
        database_connections=4,
        root_key=ROOT_KEY,
    )
    ready, started = threading.Event(), list[Any]()
    thread = threading.Thread(target=_serve, args=(settings, ready, started), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    assert started, "the server did not come up"
    yield started[0]
    started[0].session.close()
    started[1].call_soon_threadsafe(started[2].set)
    thread.join(30)


schema: Any = schemathesis.openapi.from_path(FILE)
schema.config.phases.coverage.unexpected_methods = {"put"}  # one of those that no path takes is enough


SETTINGS: Final = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.explicit, *((hypothesis.Phase.generate,) if SOAK else ())),
)
DESCRIBED: Final = sorted(
    (operation["operationId"], operation["tags"][0])
    for methods in json.loads(FILE.read_text())["paths"].values()
    for operation in methods.values()
    if operation["operationId"] not in STREAMS + ENDS_ITS_CALLER
)


@every_row(("name", "noun"), DESCRIBED, by=lambda name, noun: noun)
def test_every_answer_is_documented(name: str, noun: str, served: ContractServer) -> None:
    """Its cases are made when it runs: all of them, made by each process that only collects, took half a minute."""
    load_all_checks()
    check = build_operation_test(
        config=schema.config,
        operation=schema.find_operation_by_id(name),
        test_func=lambda case: _answers(served, case),
        given_kwargs={},
        feedback=FeedbackSources(),
        explicit_settings=SETTINGS,
    )
    check()


def _answers(served: ContractServer, case: "Case[Any]") -> None:
    said = case.operation.definition.raw
    # A body that is not sent is an object whose text has an address of memory in it, another one in each run.
    body = "" if isinstance(case.body, NotSet) else case.body
    chance = zlib.crc32(repr((case.path_parameters, case.query, body)).encode())
    if chance // 8 % SHARE:
        return
    if said["operationId"] in served.ids and chance % 8 and not _spoils(case, ParameterLocation.PATH):
        case.path_parameters = dict(served.ids[said["operationId"]])
    # Headers that nobody knows are passed over, as HTTP has it; an address may have been put right above.
    spoilt = _spoils(case, ParameterLocation.QUERY) or _spoils(case, ParameterLocation.BODY)
    fitting = {Scope.PLATFORM: "platform", Scope.NODE: "node"}.get(said["x-mooring"]["scope"], "tenant")
    for name, token in served.tokens.items():
        if name == fitting or chance % 8 == 1:
            headers = {**dict(case.headers or {}), "Authorization": f"Bearer {token}"}
            checks = [*CHECKS, negative_data_rejection] if spoilt else CHECKS
            case.call_and_validate(
                base_url=served.url, session=served.session, headers=headers, checks=checks, timeout=PATIENCE_SECONDS
            )


def test_no_case_ended_its_callers(served: ContractServer) -> None:
    """A caller that is signed out would get 401, which is documented for every route, and prove nothing."""
    for name, token in served.tokens.items():
        own = "/api/v1/agent/platform-keys" if name == "node" else "/api/v1/whoami"
        answer = httpx.get(served.url + own, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("each", [each for each in ROUTES if each.name in STREAMS], ids=lambda each: each.name)
def test_a_stream_answers_as_documented(each: Route, served: ContractServer) -> None:
    """A stream has no end to wait for: its beginning is read, and each way of refusing it."""
    responses = json.loads(FILE.read_text())["paths"][each.path]["get"]["responses"]
    url = served.url + each.path.format(**served.ids.get(each.name, {}))
    url += "?correlation_id=anything" if each.noun == "timeline" else ""
    fitting = "platform" if each.scope is Scope.PLATFORM else "tenant"
    of_caller = {"Authorization": f"Bearer {served.tokens[fitting]}"}
    with httpx.stream("GET", url, headers=of_caller, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] in responses["200"]["content"]
        assert set(responses["200"]["headers"]) <= {name.title().replace("-Id", "-ID") for name in answer.headers}
        assert next(answer.iter_lines()).startswith(":")
    for headers, query, status in (
        ({}, "", 401),
        (of_caller, "?cursor=nothing", 422),
        (of_caller, "?unknown=1", 422),
        (of_caller | {"Last-Event-ID": "bm90aGluZw"}, "", 422),
        (of_caller | {"X-Correlation-ID": "not allowed"}, "", 400),
    ):
        refused = httpx.get(url + query, headers=headers, timeout=60)
        assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
        assert str(status) in responses


def _spoils(case: "Case[Any]", where: ParameterLocation) -> bool:
    """Whether what this case sends there is not what the document says."""
    meta = case.meta
    part = None if meta is None else meta.components.get(where)
    return part is not None and part.mode.is_negative
