"""Every endpoint × every kind of caller × own and foreign: who gets through, and what the trail says of the others.

What is expected is worked out here, from the table of roles and from a few sentences about places, and never by asking
the code that decides. Each request is well formed and names things that exist, so that allowed callers get past
parsing and the others are refused for that reason alone.
"""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from mooring.api.route import PUBLIC_ACTION, ROUTES, Route, RouteSpec, route, route_beside, route_in
from mooring.api.routes import ROUTES as ALL_ROUTES
from mooring.core.kernel.permissions import ACTIONS, FAMILIES, ROLE_ACTIONS, SERVICE_ACCOUNT_CEILING, Role, Scope
from mooring.gateways.signing.signatures import new_key_pair
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import PASSWORD, TenantWithAdmin, World, running_platform
from server.tests.support import adapter_requests, made_things
from server.tests.support.agents import MachineKeys, new_token
from server.tests.support.denials import record_every_denial
from server.tests.support.root_key import ROOT_KEY
from server.tests.support.route_bodies import body_of
from server.tests.support.route_requests import Home, fresh_name
from server.tests.support.service_accounts import AccountWithKey, assertion, make_account
from server.tests.support.sign_in_requests import UNPROVEN, passkey_request
from tests.support.rows import every_row

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

NOTHING: Final[frozenset[str]] = frozenset()
OF_A_PERSON: Final = frozenset({"self.read", "self.update", "token.create", "token.read", "token.revoke"})
OF_ANYBODY: Final = frozenset({"self.read", "token.read", "token.revoke"})
AUTHORIZATION_PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "authorization.md"


class Access(StrEnum):
    """What becomes of a request, by the outcome that the audit trail has for it."""

    ALLOWED = "done"
    REFUSED = "refused"  # 401: nobody knows who calls
    DENIED = "denied"  # 403: the caller belongs here and lacks the key
    HIDDEN = "hidden"  # 404: the caller has no business here


STATUS: Final = {Access.REFUSED: 401, Access.DENIED: 403, Access.HIDDEN: 404}


@dataclass(frozen=True)
class CallerStanding:
    """What somebody holds at each kind of place; None where he has no business at all."""

    own: frozenset[str]
    platform: frozenset[str] | None = NOTHING
    tenant: frozenset[str] | None = None
    project: frozenset[str] | None = None
    node: frozenset[str] = NOTHING
    runtime: frozenset[str] = NOTHING


def in_project(role: Role) -> CallerStanding:
    """A role in the project: of the tenant around it one reads the name, if the role says so."""
    keys = ROLE_ACTIONS[role]
    return CallerStanding(OF_A_PERSON, tenant=keys & {"tenant.read"}, project=keys)


def of_account(keys: frozenset[str]) -> CallerStanding:
    """An account acts in its own project, and as an adapter there; no person does."""
    return CallerStanding(OF_ANYBODY, tenant=keys & {"tenant.read"}, project=keys, runtime=keys)


PEOPLE: Final[dict[str, CallerStanding]] = {
    "platform_admin": CallerStanding(OF_A_PERSON, ROLE_ACTIONS[Role.PLATFORM_ADMIN]),
    "platform_operator": CallerStanding(OF_A_PERSON, ROLE_ACTIONS[Role.PLATFORM_OPERATOR]),
    "tenant_admin": CallerStanding(
        OF_A_PERSON, tenant=ROLE_ACTIONS[Role.TENANT_ADMIN], project=ROLE_ACTIONS[Role.TENANT_ADMIN]
    ),
    "project_admin": in_project(Role.PROJECT_ADMIN),
    "project_member": in_project(Role.PROJECT_MEMBER),
    "project_viewer": in_project(Role.PROJECT_VIEWER),
    "other_project": replace(in_project(Role.PROJECT_ADMIN), project=None),
    "other_tenant": CallerStanding(OF_A_PERSON),
    "narrowed_to_nothing": CallerStanding(frozenset({"self.read"}), tenant=NOTHING, project=NOTHING),
    "break_glass_viewer": CallerStanding(
        OF_ANYBODY,
        tenant=ROLE_ACTIONS[Role.PROJECT_VIEWER],  # a viewer only reads, so an entry for looking takes nothing away
        project=ROLE_ACTIONS[Role.PROJECT_VIEWER],
    ),
}
"""Every kind of person, and what he holds in the tenant and the project that are asked for."""

ROLES: Final = {
    "platform_admin": (Scope.PLATFORM, "platform_admin"),
    "platform_operator": (Scope.PLATFORM, "platform_operator"),
    "tenant_admin": (Scope.TENANT, "tenant_admin"),
    "project_admin": (Scope.PROJECT, "project_admin"),
    "project_member": (Scope.PROJECT, "project_member"),
    "project_viewer": (Scope.PROJECT, "project_viewer"),
    "other_project": (Scope.PROJECT, "project_admin"),
    "other_tenant": (Scope.TENANT, "tenant_admin"),
}
"""The role by which a person is what he is."""

A_NODE: Final = CallerStanding(NOTHING, node=frozenset({"agent.claim", "agent.report"}))
"""A node's agent: its own routes, and nothing else, not even to read who it is."""

NOBODY: Final = ("anonymous", "invalid_token", "disabled_user")
AT_HOME: Final = ("tenant_admin", "project_admin", "account_with", "account_without", "break_glass_viewer", "node")
"""Who is asked about the things of a foreign tenant: all of these are known at home, or somewhere on the platform."""

GUARDED: Final = [each for each in ALL_ROUTES if each.scope is not Scope.PUBLIC]
PUBLIC: Final = [each for each in ALL_ROUTES if each.scope is Scope.PUBLIC]


def expected(each: Route, standing: CallerStanding) -> Access:
    """Whether somebody with this standing gets through."""
    held = {
        Scope.SELF: standing.own,
        Scope.PLATFORM: standing.platform,
        Scope.TENANT: standing.tenant,
        Scope.PROJECT: standing.project,
        Scope.NODE: standing.node,
        Scope.RUNTIME: standing.runtime,
    }[each.scope]
    if each.platform_too and standing.platform:
        held = standing.platform
    if held is None:
        return Access.HIDDEN
    return Access.ALLOWED if each.action in held else Access.DENIED


class Cast:
    """Everybody who calls, in one world with two tenants."""

    def __init__(self, world: World, home: Home, foreign: Home, neighbour: Home) -> None:
        self.world, self.home, self.foreign, self.neighbour = world, home, foreign, neighbour
        self.client = home.client
        self.tokens: dict[str, str] = {}
        self._accounts: dict[tuple[str, ...], AccountWithKey] = {}

    async def person(self, name: str) -> str:
        """The token of one more person of this kind."""
        scope, role = ROLES[name]
        at = {"other_tenant": self.foreign, "other_project": self.neighbour}.get(name, self.home)
        return await at.new_person(scope, role)

    async def entry(self) -> str:
        """The token of one more entry by break-glass, to look."""
        body = {"tenant_id": self.home.tenant.id, "reason": "the tenant asked for help", "role": "project_viewer"}
        return str((await self.home.post(Scope.PLATFORM, "/break-glass", body))["token"])

    async def account(self, actions: frozenset[str]) -> AccountWithKey:
        """The project's service account with exactly this list."""
        key = tuple(sorted(actions))
        if key not in self._accounts:
            self._accounts[key] = await make_account(self.home, list(key))
        return self._accounts[key]

    async def callers(self, each: Route) -> dict[str, tuple[str | None, CallerStanding]]:
        """Everybody known, with a token and a standing; accounts with and without the route's key."""
        known = {name: (self.tokens[name], standing) for name, standing in PEOPLE.items()}
        family = set(FAMILIES[each.action].values()) if each.family else set()
        lists = {"account_without": SERVICE_ACCOUNT_CEILING - {each.action} - family}
        if each.action in SERVICE_ACCOUNT_CEILING:
            lists["account_with"] = frozenset({each.action})
        for name, keys in lists.items():
            token = await (await self.account(keys)).token(self.client)
            known[name] = (token, of_account(keys))
        known["node"] = (await self.home.node_token(), A_NODE)
        return known  # type: ignore[return-value]

    async def own_token(self, name: str, token: str) -> str:
        """The id of a token of the caller's own that it can spare."""
        if name in ("account_with", "account_without", "break_glass_viewer"):
            return str((await self._get("/api/v1/whoami", token)).json()["token_id"])
        answer = await self.client.post(
            "/api/v1/tokens", json={"name": "spare"}, headers={"Authorization": f"Bearer {token}"}
        )
        return str(answer.json()["id"])

    async def principal(self, token: str) -> str:
        """The id of the caller who has this token."""
        return str((await self._get("/api/v1/whoami", token)).json()["id"])

    async def _get(self, path: str, token: str) -> httpx.Response:
        return await self.client.get(path, headers={"Authorization": f"Bearer {token}"})

    async def trail(self, prefix: str) -> dict[str, list[tuple[str, str, str | None]]]:
        """The audit rows of the requests whose correlation id begins so."""
        rows = await self.world.running.platform.services.database.fetch(
            PLATFORM,
            "SELECT correlation_id, outcome, action, route FROM audit WHERE starts_with(correlation_id, $1)",
            prefix,
        )
        found: dict[str, list[tuple[str, str, str | None]]] = {}
        for row in rows:
            found.setdefault(row["correlation_id"], []).append((row["outcome"], row["action"], row["route"]))
        return found


@pytest.fixture(scope="module")
async def cast(shared_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cast]:
    settings = Settings(
        database_url=shared_database_url,
        master_key_file=str(tmp_path_factory.mktemp("keys") / "keys" / "master.key"),
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        metrics_listen="api",
        database_connections=4,
        root_key=ROOT_KEY,
        webhook_allow_networks="127.0.0.0/8",
        source_file_directory=str(tmp_path_factory.mktemp("files")),
        registry_url="http://127.0.0.1:9",
    )
    async with running_platform(settings) as running:
        record_every_denial(running.platform.services)
        world = World(running, running.client())
        admin = await world.sign_in("admin@mooring.local", running.code)
        world.admin.headers["Authorization"] = f"Bearer {admin}"
        yield await _everybody(world)
        await world.close()


async def _everybody(world: World) -> Cast:
    client = world.client()
    acme, other = await world.tenant("acme"), await world.tenant("other")
    home = Home(world, client, acme, await world.project(acme, "train"))
    foreign = Home(world, client, other, await world.project(other, "train"))
    neighbour = replace(home, project_id=await world.project(acme, "serve"), kept={})
    cast = Cast(world, home, foreign, neighbour)
    for name in ROLES:
        cast.tokens[name] = await cast.person(name)
    cast.tokens["disabled_user"] = await _disabled(home, acme)
    narrow = {"name": "narrow", "actions": []}
    of_admin = {"Authorization": f"Bearer {cast.tokens['project_admin']}"}
    cast.tokens["narrowed_to_nothing"] = (await client.post("/api/v1/tokens", json=narrow, headers=of_admin)).json()[
        "token"
    ]
    cast.tokens["break_glass_viewer"] = await cast.entry()
    return cast


async def _disabled(home: Home, tenant: TenantWithAdmin) -> str:
    token = await home.world.member(tenant, None, "tenant_admin", "gone")
    users = (await home.post(Scope.TENANT, "/users", method="GET"))["items"]
    (gone,) = (each["id"] for each in users if each["email"].startswith("gone@"))
    await home.post(Scope.TENANT, f"/users/{gone}/disable")
    return token


UPGRADE: Final = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip
QUERY: Final = {"timeline": "?correlation_id=anything"}
"""What an address has to say beside its path."""


@dataclass(frozen=True)
class RequestParts:
    """The ids of a path, and the body."""

    ids: dict[str, str]
    body: bytes | None


async def call(
    cast: Cast, each: Route, token: str | None, correlation_id: str, asked: RequestParts
) -> tuple[int, str, httpx.Headers]:
    """Send the request; of a stream only the beginning is read."""
    ids, body = asked.ids, asked.body
    headers = {"X-Correlation-ID": correlation_id}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    if each.websocket and token is not None:  # without one the caller would be asked for it in the first message
        headers |= UPGRADE
    path = each.path.format(**ids) + QUERY.get(each.noun, "") * (not ids.get("instance_id"))
    if each.scope is Scope.RUNTIME and each.method == "GET":
        path += adapter_requests.QUERY
    async with cast.client.stream(each.method, path, content=body, headers=headers) as answer:
        if answer.status_code == 101 or (answer.status_code == 200 and each.media_type == "text/event-stream"):
            return 200, "", answer.headers
        await answer.aread()
        return answer.status_code, answer.text, answer.headers


def code_of(text: str) -> str:
    """The error code of an answer."""
    return str(json.loads(text).get("code", "")) if text.startswith("{") else ""


async def prepared(cast: Cast, each: Route, *, name: str, token: str) -> RequestParts:
    """A request that may succeed; what it changes is made for it."""
    if each.scope is Scope.RUNTIME:
        await adapter_requests.operate(cast.home, await cast.principal(token))
    ids = await cast.home.ids(each, fresh=each.mutates)
    if "token_id" in ids:
        other = each.mutates and name in ("account_with", "account_without", "break_glass_viewer")
        ids["token_id"] = await cast.own_token(name, await _another(cast, each, name) if other else token)
    await made_things.give_terminal(cast.home, ids, lambda: cast.principal(token))
    if each.verb == "enable":
        path, body = each.path.format(**ids).removesuffix("/enable") + "/disable", await body_of(each, cast.home)
        await cast.home.post(each.scope, path, None if body is None else json.loads(body))
    return RequestParts(ids, await body_of(each, cast.home))


async def _another(cast: Cast, each: Route, name: str) -> str:
    """One more token of the same caller."""
    if name == "break_glass_viewer":
        return await cast.entry()
    keys = frozenset({each.action}) if name == "account_with" else SERVICE_ACCOUNT_CEILING - {each.action}
    return await (await cast.account(keys)).token(cast.client)


NO_ROW: Final = frozenset({"replay_dead"})
"""Verbs that may find nothing to do, and then leave no row."""


@every_row("each", GUARDED, ids=lambda each: each.name, by=lambda each: each.noun)
async def test_who_gets_through(cast: Cast, each: Route) -> None:
    seen: dict[str, tuple[Access, int, str]] = {}
    run = fresh_name("run")
    callers = await cast.callers(each)
    strangers = {"anonymous": None, "invalid_token": "mrgs_" + "x" * 43, "disabled_user": cast.tokens["disabled_user"]}
    kept = RequestParts(await cast.home.ids(each, fresh=False), await body_of(each, cast.home))
    for name, token in strangers.items():
        status, text, headers = await call(cast, each, token, f"{run}.{name}", kept)
        seen[name] = (Access.REFUSED, status, code_of(text))
        assert headers["www-authenticate"].startswith("Bearer")
    for name, (token, standing) in callers.items():
        wanted = expected(each, standing)
        if wanted is Access.ALLOWED and each.action == "self.update":
            token = await cast.person(name)  # a new password ends every token of its holder
        elif wanted is Access.ALLOWED and each.name == "close_browser_session":
            token = await (cast.person(name) if name in ROLES else _another(cast, each, name))
        asked = await prepared(cast, each, name=name, token=str(token)) if wanted is Access.ALLOWED else kept
        if wanted is Access.ALLOWED and each.noun == "passkey":
            asked = RequestParts(*await passkey_request(cast.client, cast.world.running.url, each.verb, str(token)))
        status, text, _ = await call(cast, each, token, f"{run}.{name}", asked)
        seen[name] = (wanted, status, code_of(text))
    trail = await cast.trail(f"{run}.")
    for name, (wanted, status, code) in seen.items():
        rows = trail.get(f"{run}.{name}", [])
        if wanted is Access.ALLOWED:
            _assert_allowed(each, name, rows, status=status, code=code)
        else:
            assert (name, status) == (name, STATUS[wanted])
            assert rows == [(wanted.value, each.action, each.key)], name
    assert {"tenant_admin", "account_without", "node", *NOBODY} <= set(seen)


def _assert_allowed(each: Route, name: str, rows: list[Any], *, status: int, code: str) -> None:
    beyond = name.startswith("account_") and code == "grant_exceeds_ceiling"
    assert status in (each.status, 409) or beyond, (name, status, code)
    assert [row for row in rows if row[0] != "done"] == [], name
    if each.mutates and status == each.status and each.verb not in NO_ROW:
        assert rows, f"{name} changed something, and no audit row says so"


@every_row(
    "each",
    [each for each in GUARDED if each.scope in (Scope.TENANT, Scope.PROJECT)],
    ids=lambda each: each.name,
    by=lambda each: each.noun,
)
async def test_nobody_reaches_another_tenants_place(cast: Cast, each: Route) -> None:
    run = fresh_name("foreign")
    kept = RequestParts(await cast.foreign.ids(each, fresh=False), await body_of(each, cast.foreign))
    callers = await cast.callers(each)
    for name in AT_HOME:
        if name in callers:
            status, text, _ = await call(cast, each, callers[name][0], f"{run}.{name}", kept)
            assert (name, status, code_of(text)) == (name, 404, "not_found")
    trail = await cast.trail(f"{run}.")
    assert {row for rows in trail.values() for row in rows} == {("hidden", each.action, each.key)}
    assert len(trail) >= len(AT_HOME) - 1


NOBODYS: Final = {"tenant_id", "project_id", "node_id", "enrolment_token_id", "sku_id", "app_slug", "unit"}
"""The places themselves, and what only the platform has: no other tenant can own one."""
OWN: Final = (Scope.SELF, Scope.NODE, Scope.RUNTIME)
LEAVES: Final = [each for each in GUARDED if set(each.path_parameters) - NOBODYS and each.scope not in OWN]


@every_row("each", LEAVES, ids=lambda each: each.name, by=lambda each: each.noun)
async def test_a_foreign_id_below_ones_own_place_is_not_found(cast: Cast, each: Route) -> None:
    """The admin may do this here, but names a thing of another tenant: the answer is that it does not exist."""
    own = await cast.home.ids(each, fresh=False)
    foreign = await cast.foreign.ids(replace(each, scope=_elsewhere(each)), fresh=False)
    mixed = {name: own[name] if name in ("tenant_id", "project_id") else foreign[name] for name in each.path_parameters}
    asked = RequestParts(mixed, await body_of(each, cast.home))
    admin = each.scope if Role.TENANT_ADMIN in ACTIONS[each.action].roles else Scope.PLATFORM
    status, text, _ = await call(cast, each, cast.home.token(admin), fresh_name("mixed"), asked)
    assert (status, code_of(text)) == (404, "not_found")


def _elsewhere(each: Route) -> Scope:
    """Where the foreign thing stands: what the platform is asked for is a tenant's."""
    return Scope.TENANT if each.scope is Scope.PLATFORM else each.scope


@every_row("each", [each for each in PUBLIC if each.name not in UNPROVEN], ids=lambda each: each.name)
async def test_what_is_public_asks_for_no_token(cast: Cast, each: Route) -> None:
    for token in (None, "mrgs_" + "x" * 43, cast.tokens["disabled_user"], cast.home.tenant.token):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if each.name in ("sign_in", "open_browser_session"):
            body = {"tenant": "acme", "email": "admin@acme.example", "password": PASSWORD}
            headers["X-Mooring-Console"] = "1"
            answer = await cast.client.post(each.path, json=body, headers=headers)
        elif each.name == "get_registry_token":
            # A registry's clients show their token as a password, so the route itself looks who asks.
            answer = await cast.client.get(each.path, auth=("anybody", cast.home.tenant.token))
        elif each.name == "enrol_node":
            body = MachineKeys().request(await new_token(cast.world.admin))
            answer = await cast.client.post(each.path, json=body, headers=headers)
            assert answer.status_code == 201, answer.text
            continue
        elif each.name == "find_runtime_accounts":
            private, public = new_key_pair()
            subject = "key:" + base64.urlsafe_b64encode(public).decode().rstrip("=")
            signed = assertion(subject, "any", private, f"{cast.world.running.url}{each.path}")
            answer = await cast.client.post(each.path, json={"assertion": signed}, headers=headers)
        elif each.name == "exchange_assertion":
            assert await (await cast.account(NOTHING)).token(cast.client)
            continue
        else:
            answer = await cast.client.request(each.method, each.path.format(asset="start.js"), headers=headers)
        assert answer.status_code == 200, answer.text


async def test_no_service_account_gets_a_key_that_is_not_for_accounts(cast: Cast) -> None:
    asked = sorted({each.action for each in GUARDED} - SERVICE_ACCOUNT_CEILING - OF_A_PERSON)
    assert asked
    for key in asked:
        body = {"name": fresh_name("account"), "actions": [key]}
        answer = await cast.client.post(
            cast.home.place(Scope.PROJECT) + "/service-accounts",
            json=body,
            headers={"Authorization": f"Bearer {cast.home.tenant.token}"},
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "grant_exceeds_ceiling"), key


async def nothing(request: Any) -> None:
    """A handler."""


async def silent(request: Any) -> None:
    pass


def test_a_route_cannot_be_declared_without_a_known_action_and_a_text() -> None:
    before = list(ROUTES)
    for action in ("", "tenant.rule", PUBLIC_ACTION):
        with pytest.raises(ValueError, match="not in the table"):
            route("GET", "/new", Scope.PLATFORM, RouteSpec("tenant", "get", action))(nothing)
        with pytest.raises(ValueError, match="not in the table"):
            route_in((Scope.TENANT,), "GET", "/new", RouteSpec("tenant", "get", action))(nothing)
    with pytest.raises(TypeError, match="action"):
        RouteSpec("tenant", "get")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="is public"):
        route_beside("/new", RouteSpec("tenant", "get", "tenant.read"))(nothing)
    silent.__doc__ = None
    with pytest.raises(ValueError, match="no docstring"):
        route("GET", "/new", Scope.PLATFORM, RouteSpec("tenant", "get", "tenant.read"))(silent)
    with pytest.raises(ValueError, match="the path gives"):
        route("GET", "/new/{thing_id}", Scope.PLATFORM, RouteSpec("tenant", "get", "tenant.read"))(nothing)
    assert before == ROUTES


def test_every_route_is_on_the_reviewed_page_of_authorization() -> None:
    page = AUTHORIZATION_PAGE.read_text(encoding="utf-8")
    missing = [each.key for each in ALL_ROUTES if not each.hidden and each.path not in page]
    assert missing == []
    assert [each.action for each in GUARDED if f"`{each.action}`" not in page] == []


CHECKED_BY_THE_HANDLER: Final = {"list_instances", "list_tenant_instances", "list_project_catalog", "explain_anything"}
"""The lists filter by the caller's categories; `why` asks `require_instance_category` once it has found its subject."""


def test_every_route_with_category_keys_names_the_row_that_has_the_category() -> None:
    unnamed = {
        each.name
        for each in GUARDED
        if each.family
        and not {"instance_id", "app_id"} & set(each.path_parameters)
        and (each.body is None or "app" not in each.body.__struct_fields__)
    }
    assert unnamed == CHECKED_BY_THE_HANDLER
