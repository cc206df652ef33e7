"""A request for every mutation that the API has, each with a subject of its own.

The requests are made from the table of routes: a path parameter is filled by making such a thing, a body by its type.
A route that nobody here knows how to ask is an error that names it, so that a new mutation is killed like the others.
"""

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from mooring.api.route import Route
from mooring.api.routes import ROUTES
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Scope
from mooring.gateways.clock import SystemClock
from server.tests.conftest import NO_AUTHORITIES
from server.tests.support import sign_in_subjects
from server.tests.support.agents import joined
from server.tests.support.http_wire import WireClient
from server.tests.support.instance_subjects import BODIES, PARAMETERS, InstanceSubjects
from server.tests.support.lifecycle_rows import CLOCK
from server.tests.support.made_things import HELD
from server.tests.support.root_key import signed
from server.tests.support.route_requests import a_manifest, fresh_public_key, fresh_public_pem
from server.tests.support.server_process import PASSWORD, ProcessTenant, sign_in

PREPARED_KEY = "/api/v1/platform/task-signing-keys/prepare"
MUTATIONS = {route.name: route for route in ROUTES if route.mutates}
PLACES = {Scope.PLATFORM: "/api/v1/platform", Scope.TENANT: "/api/v1/tenants/{}", Scope.PROJECT: "/api/v1/projects/{}"}
RECEIVER = "https://127.0.0.1:9/hook"
"""Nobody listens there, so a connection is refused at once; the tests' servers allow the network."""
SELDOM = "identity.break_glass.opened"
"""What a webhook is made for: no preparation of another mutation happens to fill its outbox."""
DIE = "UPDATE delivery SET status = 'dead', finished_at = now(), revision = revision + 1 WHERE id = $1"
STEP = """
WITH moved AS (
  UPDATE allocation SET status = $3, generation = generation + 1, failed_at = now(), failure_code = 'made',
         releasing_at = now(), retry_at = now() + interval '1 year'
   WHERE id = $1 RETURNING *)
INSERT INTO transition
  (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
SELECT 'allocation', id, generation, tenant_id, $4, $2, $3, now(), 'made' FROM moved"""
NEW_TASK = """
WITH born AS (
  INSERT INTO transition
    (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
  VALUES ('task', $1, 0, $2, '', 'birth', 'queued', now(), 'made'))
INSERT INTO task (id, tenant_id, project_id, status, created_at, allocation_id, node_id, owner, step, type, arguments,
                  maker, correlation_id, trace_id, expires_at)
VALUES ($1, $2, $3, 'queued', now(), $4, $5, $4, $1, 'process.run', '{"argv": ["true"]}', 'system', 'made', '0',
        now() + interval '1 day')"""
NEW_ENDPOINT = """
WITH born AS (
  INSERT INTO transition
    (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
  VALUES ('task', $1, 0, $2, '', 'birth', 'queued', now(), 'made'),
         ('task', $1, 1, $2, 'queued', 'claim', 'claimed', now(), 'made'),
         ('task', $1, 2, $2, 'claimed', 'succeed', 'succeeded', now(), 'made'))
INSERT INTO task (id, tenant_id, project_id, status, generation, created_at, allocation_id, node_id, owner, step, type,
                  arguments, maker, correlation_id, trace_id, expires_at, fence, first_claimed_at, lease_expires_at,
                  finished_at)
VALUES ($1, $2, $3, 'succeeded', 2, now(), $4, $5, $4, $1, 'service.start',
        '{"name": "web", "argv": ["serve"], "endpoint": {"name": "web", "port": 8080, "protocol": "http"}}',
        'system', 'made', '0', now() + interval '1 day', 1, now(), now(), now())"""
NEW_STATEMENT = """
WITH born AS (
  INSERT INTO transition
    (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
  VALUES ('statement', $1, 0, $2, '', 'birth', 'open', now(), 'made'))
INSERT INTO statement (id, tenant_id, period, currency, status, correlation_id, created_at)
SELECT $1, $2, '2020-01-01', 'A' || chr(65 + number / 26) || chr(65 + number % 26), 'open', 'made', now()
  FROM (SELECT count(*)::int AS number FROM statement) s"""
STAND = """
WITH moved AS (
  UPDATE allocation SET status = $3, generation = generation + 1, node_id = $5, activated_at = now()
   WHERE id = $1 RETURNING *)
INSERT INTO transition
  (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
SELECT 'allocation', id, generation, tenant_id, $4, $2, $3, now(), 'made' FROM moved"""
NO_SLOTS = "UPDATE allocation SET gpu_count = 0 WHERE id = $1"
ACTIVATION = (("provision", "requested", "provisioning"), ("activate", "provisioning", "active"))
"""How an allocation comes to stand; it takes no slot."""
FAILED_TEARDOWN = (
    ("fail", "requested", "failed"),
    ("release", "failed", "releasing"),
    ("fail_teardown", "releasing", "release_failed"),
)
"""How an allocation comes to where its teardown is tried again."""
BIRTH = """
INSERT INTO transition
  (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
VALUES ('artifact_check', $1, 0, $2, '', 'birth', 'accepted', now(), 'tests')"""
WAITING_CHECK = """
INSERT INTO artifact_check (id, tenant_id, project_id, artifact_id, name, subject, status, due_at, created_at,
                            correlation_id, trace_id, actor_kind, actor_id)
VALUES ($1, $2, $3, $4, 'smoke', 'sha256:' || repeat('0', 64), 'accepted', '2100-01-01', now(),
        'tests', repeat('a', 32), 'system', 'system')"""
INSIDE = {"exec_allocation", "create_allocation_task"}
"""What is done in an allocation that stands."""
MONEY_BODIES: dict[str, dict[str, Any]] = {
    "PutQuota": {"gpus_max": 10**6, "reason": "the tests limit it"},
    "PutBudget": {
        "currency": "EUR",
        "minor_per_month": 10**9,
        "thresholds": [{"percent": 80, "action": "notify"}],
        "reason": "the tests limit it",
    },
    "CreatePayment": {"currency": "EUR", "minor": 10**9, "reason": "the tests paid"},
    "PutPrepaid": {"currency": "EUR", "low_minor": 5, "reason": "the tests pay in advance"},
}
ROLES = {Scope.PLATFORM: "platform_operator", Scope.TENANT: "tenant_admin", Scope.PROJECT: "project_viewer"}


@dataclass(frozen=True)
class Prepared:
    """A mutation that can be sent, and its caller."""

    route: Route
    path: str
    body: Any
    token: str


class MutationSubjects:
    """Where subjects are made: one platform, one tenant, one project."""

    def __init__(self, url: str, connection: asyncpg.Connection, *, admin_token: str, tenant: ProcessTenant) -> None:
        self._url = url
        self._connection = connection
        self.admin_token, self.tenant = admin_token, tenant
        self._numbers = itertools.count(1)
        self.project_id = ""
        self._files = Path()
        self._slug = ""  # of the app that was made last
        self.instances = InstanceSubjects(self.tenant.id)

    async def open(self, files: Path) -> None:
        """Make the project that the subjects live in; `files` is the directory that the server reads blobs from."""
        self._files = files
        self.project_id = await self._project()
        everything = {"name": "files", "pattern": "file:*"}
        await self._post("/api/v1/platform/artifact-sources", everything, token=self.admin_token)

    async def prepare(self, route: Route) -> Prepared:
        """A request of this kind that would succeed now."""
        subject: dict[str, str] = {}
        if set(route.path_parameters) & PARAMETERS:
            subject = {"project_id": self.project_id} | await self.instances.made(self.project_id, route)
        for name in route.path_parameters:
            if name not in subject:
                subject[name] = await self._subject(name, route, subject)
        body = None
        if route.body is not None:
            kind = route.body.__name__
            if kind in sign_in_subjects.BODIES:
                body = await sign_in_subjects.body(self._url, kind, self._token_of(route.scope))
            else:
                body = await (self._money(route, kind) if kind in MONEY_BODIES else self._body(route))
        if route.verb == "replay_dead":
            await self._dead_letter(route.scope)
        if route.name == "prepare_task_signing_key":  # so that each of them replaces one
            await self._post(PREPARED_KEY, token=self.admin_token)
        token = await self._token(route)
        return Prepared(route, route.path.format(**subject), body, token)

    def _new(self, word: str) -> str:
        return f"{word}-{next(self._numbers)}"

    async def _post(self, path: str, body: object = None, *, token: str | None = None, status: int = 201) -> Any:
        async with WireClient(self._url, token or self.tenant.token) as caller:
            return await caller.post(path, body, status=status)

    def _place(self, scope: Scope) -> str:
        return PLACES[scope].format(self.tenant.id if scope is Scope.TENANT else self.project_id)

    def _token_of(self, scope: Scope) -> str:
        return self.admin_token if scope is Scope.PLATFORM else self.tenant.token

    async def _token(self, route: Route) -> str:
        if route.name == "change_own_password":
            user = await self._user(Scope.TENANT)
            return await sign_in(self._url, user["email"], user["one_time_code"], self.tenant.slug)
        if route.name == "close_statement":
            return self.admin_token
        return self._token_of(route.scope)

    async def _project(self) -> str:
        body = {"slug": self._new("project"), "display_name": "A project"}
        return str((await self._post(f"{self.tenant.path}/projects", body))["id"])

    async def _user(self, scope: Scope) -> Any:
        home = Scope.PLATFORM if scope is Scope.PLATFORM else Scope.TENANT
        body = {"email": f"{self._new('user')}@acme.example", "display_name": "A user"}
        return await self._post(f"{self._place(home)}/users", body, token=self._token_of(home))

    async def _session(self, scope: Scope) -> str:
        """A session of one more user; returns the id of its token."""
        made = await self._user(scope)
        body = {"email": made["email"], "one_time_code": made["one_time_code"], "new_password": PASSWORD}
        if scope is not Scope.PLATFORM:
            body["tenant"] = self.tenant.slug
        return str((await self._post("/api/v1/sign-in", body, status=200))["token_id"])

    async def _account(self) -> str:
        body = {"name": self._new("account"), "actions": ["project.read"]}
        return str((await self._post(f"{self._place(Scope.PROJECT)}/service-accounts", body))["id"])

    async def _webhook(self, scope: Scope, event_type: str) -> str:
        body = {"url": RECEIVER, "event_types": [event_type]}
        return str((await self._post(f"{self._place(scope)}/webhooks", body, token=self._token_of(scope)))["id"])

    async def _delivery(self, scope: Scope) -> str:
        """A delivery that waits; its webhook is paused, so that it takes no part in what comes."""
        webhook_id = await self._webhook(scope, "identity.project.updated")
        place = self._place(scope)
        async with WireClient(self._url, self.tenant.token) as admin:
            renamed = {"display_name": self._new("renamed")}
            (await admin.call("PATCH", f"/api/v1/projects/{self.project_id}", renamed)).expect(200)
        async with WireClient(self._url, self._token_of(scope)) as holder:
            (await holder.call("PATCH", f"{place}/webhooks/{webhook_id}", {"enabled": False})).expect(200)
            found = await holder.get(f"{place}/deliveries?webhook_id={webhook_id}")
        return str(found["items"][0]["id"])

    async def _app(self, scope: Scope) -> str:
        self._slug = self._new("app")
        body = {"slug": self._slug, "display_name": "An app", "category": "tool"}
        return str((await self._post(f"{self._place(scope)}/apps", body, token=self._token_of(scope)))["id"])

    def _blob(self) -> dict[str, Any]:
        """A file that the server may read, as it is registered."""
        name = self._new("blob")
        (self._files / name).write_bytes(name.encode())
        digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        return {"kind": "blob", "location": f"file:{name}", "digest": digest}

    async def _catalog_subject(self, name: str, place: str, token: str) -> str:
        """An artifact, a source or a signer key."""
        paths = {
            "artifact_id": ("artifacts", self._blob),
            "source_id": ("artifact-sources", lambda: {"name": "any", "pattern": f"oci://{self._new('r')}.example/*"}),
            "signer_key_id": ("signer-keys", lambda: {"name": "any", "public_key_pem": fresh_public_pem()}),
        }
        path, body = paths[name]
        return str((await self._post(f"{place}/{path}", body(), token=token))["id"])

    async def _node_subject(self, name: str, route: Route) -> str:
        """A node that is ready, a one-time token, or a SKU."""
        if name == "node_id":
            headers = {"Authorization": f"Bearer {self.admin_token}"}
            async with (
                httpx.AsyncClient(base_url=self._url, timeout=30, verify=NO_AUTHORITIES) as client,
                httpx.AsyncClient(base_url=self._url, timeout=30, headers=headers, verify=NO_AUTHORITIES) as admin,
            ):
                waits = route.verb in ("approve", "reject")
                machine = await joined(client, admin, token={"approval": "required"} if waits else {})
                await machine.report(client)
                if route.verb == "resume":
                    await admin.post(f"/api/v1/platform/nodes/{machine.node_id}/drain")
            return machine.node_id
        paths = {"enrolment_token_id": ("nodes/enrolment-tokens", {}), "sku_id": ("skus", self._sku())}
        path, body = paths[name]
        return str((await self._post(f"/api/v1/platform/{path}", body, token=self.admin_token))["id"])

    async def _capacity(self) -> dict[str, Any]:
        """What a request for capacity names: a SKU of its own."""
        made = await self._post("/api/v1/platform/skus", self._sku(), token=self.admin_token)
        return {"shape": "gpu_slice", "sku": made["slug"]}

    async def _allocation(self, route: Route) -> str:
        """An allocation that waits for a place, or one whose teardown left something."""
        made = await self._post(f"{self._place(Scope.PROJECT)}/allocations", await self._capacity())
        if route.verb == "retry":
            for trigger, source, target in FAILED_TEARDOWN:
                await self._connection.execute(STEP, made["id"], trigger, target, source)
        if route.name in INSIDE:
            await self._activate(str(made["id"]), await self._node_subject("node_id", route))
        return str(made["id"])

    async def _activate(self, allocation_id: str, node_id: str) -> None:
        """Its sandbox stands, written down as its node's reports do."""
        async with self._connection.transaction():
            # An allocation keeps its number of GPUs, and needs a slot for each: only without triggers can it have none.
            await self._connection.execute("SET LOCAL session_replication_role = replica")
            await self._connection.execute(NO_SLOTS, allocation_id)
        for trigger, source, target in ACTIVATION:
            await self._connection.execute(STAND, allocation_id, trigger, target, source, node_id)

    async def _endpoint(self, route: Route) -> str:
        """A port that an app declared in an allocation that stands."""
        task_id, node_id = SystemClock().mint(Prefix.TASK), await self._node_subject("node_id", route)
        allocation_id = await self._allocation(route)
        await self._activate(allocation_id, node_id)
        await self._connection.execute(NEW_ENDPOINT, task_id, self.tenant.id, self.project_id, allocation_id, node_id)
        return task_id

    async def _terminal(self, route: Route) -> str:
        """A terminal of the caller's that some process holds."""
        allocation_id = await self._allocation(route)
        await self._activate(allocation_id, await self._node_subject("node_id", route))
        path = f"{self._place(Scope.PROJECT)}/allocations/{allocation_id}/exec"
        terminal_id = str((await self._post(path, {"argv": ["sh"]}))["id"])
        await self._connection.execute(HELD, terminal_id)
        return terminal_id

    def _sku(self) -> dict[str, Any]:
        return {
            "slug": self._new("sku"),
            "display_name": "A SKU",
            "shape": "gpu_slice",
            "gpu_model": "made-up",
            "regions": ["local"],
            "allowed_gpu_counts": [1],
            "price_minor_per_gpu_hour": 100,
            "currency": "EUR",
        }

    def _pricing(self) -> dict[str, dict[str, Any]]:
        """The bodies of the pricing wing, by type."""
        item = {"item": "unit", "item_key": f"{self._new('priced')}/token_out"}
        price = item | {"currency": "EUR", "minor": 250, "reason": "the tests set a price"}
        return {"CreatePrice": price, "PutMeter": {"billing": "informative"}}

    async def _waiting_check(self, artifact_id: str, scope: Scope) -> str:
        """A check that nobody begins: it is due in a far future."""
        tenant_id = None if scope is Scope.PLATFORM else self.tenant.id
        place = (tenant_id, self.project_id if scope is Scope.PROJECT else None)
        check_id = CLOCK.mint(Prefix.ARTIFACT_CHECK)
        async with self._connection.transaction():
            await self._connection.execute(BIRTH, check_id, place[0] or "platform")
            await self._connection.execute(WAITING_CHECK, check_id, *place, artifact_id)
        return check_id

    async def _dead_letter(self, scope: Scope) -> None:
        """A worker makes one only after hours of attempts: here it is written down."""
        await self._connection.execute(DIE, await self._delivery(scope))

    async def _task(self, route: Route) -> str:
        """A task that waits for its agent, written down as making it does."""
        task_id, node_id = SystemClock().mint(Prefix.TASK), await self._node_subject("node_id", route)
        allocation_id = await self._allocation(route)
        await self._connection.execute(NEW_TASK, task_id, self.tenant.id, self.project_id, allocation_id, node_id)
        return task_id

    async def _subject(self, name: str, route: Route, others: dict[str, str]) -> str:
        """A new thing for one path parameter, in the state in which the route takes it."""
        place = self._place(route.scope) if route.scope in PLACES else ""
        token = self._token_of(route.scope)
        if name == "tenant_id":
            return self.tenant.id
        if name == "project_id":
            return await self._project() if route.name == "delete_project" else self.project_id
        if name == "user_id":
            user_id = str((await self._user(route.scope))["id"])
            if route.verb == "enable":
                await self._post(f"{place}/users/{user_id}/disable", token=token, status=200)
            return user_id
        if name == "service_account_id":
            account_id = await self._account()
            if route.verb == "enable":
                await self._post(f"{place}/service-accounts/{account_id}/disable", status=200)
            return account_id
        if name == "key_id":
            path = f"{place}/service-accounts/{others['service_account_id']}/keys"
            return str((await self._post(path, {"public_key": fresh_public_key()}))["id"])
        if name == "membership_id":
            body = {"user_id": (await self._user(route.scope))["id"], "role": ROLES[route.scope]}
            return str((await self._post(f"{place}/memberships", body, token=token))["id"])
        if name == "webhook_id":
            return await self._webhook(route.scope, SELDOM)
        if name == "secret_id":
            return str((await self._post(f"{place}/secrets", {"name": self._new("secret"), "value": "hidden"}))["id"])
        if name == "delivery_id":
            return await self._delivery(route.scope)
        if name == "entitlement_id":
            body = {"app_id": await self._app(Scope.TENANT), "reason": "the tests entitle it"}
            return str((await self._post(f"{place}/entitlements", body, token=token))["id"])
        if name == "app_id":
            return await self._app(route.scope)
        if name == "version_id":
            path = f"{place}/apps/{others['app_id']}/versions"
            return str((await self._post(path, {"manifest": a_manifest(self._slug)}, token=token))["id"])
        if name == "terminal_id":
            return await self._terminal(route)
        if name == "check_id":
            return await self._waiting_check(others["artifact_id"], route.scope)
        if name in ("artifact_id", "source_id", "signer_key_id"):
            return await self._catalog_subject(name, place, token)
        if name == "user_token_id":
            return await self._session(route.scope)
        if name in ("identity_provider_id", "passkey_id"):
            return await sign_in_subjects.made(self._url, name, place, token)
        if name in ("app_slug", "unit"):
            return {"app_slug": self._new("metered"), "unit": "token_out"}[name]
        if name == "token_id":
            return str((await self._post("/api/v1/tokens", {"name": "a token"}))["id"])
        if name == "allocation_id":
            return await self._allocation(route)
        if name == "group_id":
            body = {"name": self._new("group"), **await self._capacity()}
            return str((await self._post(f"{place}/allocation-groups", body))["id"])
        if name in ("node_id", "enrolment_token_id", "sku_id"):
            return await self._node_subject(name, route)
        if name == "task_id":
            return await self._task(route)
        if name == "endpoint_id":
            return await self._endpoint(route)
        if name == "statement_id":
            statement_id = CLOCK.mint(Prefix.STATEMENT)
            await self._connection.execute(NEW_STATEMENT, statement_id, self.tenant.id)
            return statement_id
        raise LookupError(f"{route.key}: say here how a {name} is made")

    async def _money(self, route: Route, kind: str) -> dict[str, Any]:
        """A limit, or a payment; who is to pay in advance has paid before."""
        paid = MONEY_BODIES["CreatePayment"] | {"reference": self._new("receipt")}
        if kind == "PutPrepaid":
            await self._post(f"/api/v1/tenants/{self.tenant.id}/payments", paid, token=self.admin_token)
        if kind == "CreatePayment":
            return paid
        path = route.path.format(tenant_id=self.tenant.id, project_id=self.project_id)
        async with WireClient(self._url, self._token_of(route.scope)) as holder:  # so that each run changes a row
            (await holder.call("PUT", path, MONEY_BODIES[kind])).expect(200)
        return MONEY_BODIES[kind]

    async def _body(self, route: Route) -> dict[str, Any]:
        """A body of the type that the route takes."""
        assert route.body is not None
        kind = route.body.__name__
        if kind in BODIES:
            return await self.instances.body(self.project_id, kind)
        bodies = self._pricing() | {
            "RunCommand": {"argv": ["id"]},
            "MakeTask": {"type": "process.run", "arguments": {"argv": ["true"]}},
            "AddSignerKey": {"name": "made", "public_key_pem": fresh_public_pem()},
            "CreateArtifactSource": {"name": "made", "pattern": f"oci://{self._new('made')}.example/*"},
            "PromoteArtifact": {"move": "withdraw", "reason": "the tests take it back"},
            "PublishArtifact": {"name": self._new("made")},
            "RegisterArtifact": self._blob(),
            "RevokeArtifact": {"reason": "the tests revoke it"},
            "ChangePassword": {"current_password": PASSWORD, "new_password": "another " + PASSWORD},
            "CreateApp": {"slug": self._new("made"), "display_name": "Made", "category": "tool"},
            "UpdateApp": {"description": self._new("described")},
            "CreateVersion": {"manifest": a_manifest(self._slug)},
            "ReplaceManifest": {"manifest": a_manifest(self._slug) | {"release_notes": self._new("notes")}},
            "PromoteVersion": {"move": "withdraw", "reason": "the tests take it back"},
            "SwitchEntitlement": {"reason": "the tests switch it"},
            "UpdateEntitlement": {"enabled": False, "reason": "the tests switch it off"},
            "CreateKey": {"public_key": fresh_public_key()},
            "SetAdapterKey": {"public_key": fresh_public_key()},
            "CreateProject": {"slug": self._new("made"), "display_name": "Made"},
            "CreateServiceAccount": {"name": self._new("made"), "actions": ["project.read"]},
            "CreateTenant": {
                "slug": self._new("made"),
                "display_name": "Made",
                "first_admin": {"email": "admin@made.example", "display_name": "Admin"},
            },
            "CreateToken": {"name": "made"},
            "CreateSecret": {"name": self._new("made"), "value": "hidden"},
            "RotateSecret": {"value": self._new("rotated")},
            "CreateEnrolmentToken": {"region": "local"},
            "CreateSku": self._sku(),
            "UpdateSku": {"price_minor_per_gpu_hour": 250, "reason": "the tests raise the price"},
            "CordonNode": {"reason": "the tests look at it"},
            "LabelNode": {"labels": {"rack": self._new("rack")}},
            "RejectNode": {"reason": "the tests refuse it"},
            "ResolveLateUsage": {"reason": "the tests resolve it"},
            "RetireNode": {"reason": "the tests retire it"},
            "WriteOffNode": {"reason": "the tests give it up", "may_be_left": "nothing"},
            "CreateUser": {"email": f"{self._new('made')}@acme.example", "display_name": "Made"},
            "OpenBreakGlass": {"tenant_id": self.tenant.id, "reason": "the tests kill what is under way"},
            "CreateWebhook": {"url": RECEIVER, "event_types": [SELDOM]},
            "UpdateWebhook": {"description": self._new("described")},
            "Rename": {"display_name": self._new("renamed")},
            "PutSourceNetworks": {"networks": ["127.0.0.0/8", f"192.0.2.{next(self._numbers) % 250}/32"]},
            "UpdateServiceAccount": {"description": self._new("described")},
        }
        if kind == "PutPolicy":
            stated = {"rules": {"apps": {"deny": [self._new("denied")]}}, "reason": "the tests narrow it"}
            async with WireClient(self._url, self._token_of(route.scope)) as holder:  # so that each run changes a layer
                (await holder.call("PUT", f"{self._place(route.scope)}/policy", stated)).expect(200)
            return {"rules": {}, "reason": "the tests take it back"}
        if kind == "CreateAllocation":
            return await self._capacity()
        if kind == "InstallKey":
            return dict(signed(await self._post(PREPARED_KEY, token=self.admin_token)))
        if kind == "CreateAllocationGroup":
            return {"name": self._new("made"), **await self._capacity()}
        if kind == "CreateEntitlement":
            return {"app_id": await self._app(Scope.TENANT), "reason": "the tests entitle it"}
        if kind == "CreateMembership":
            return {"user_id": (await self._user(route.scope))["id"], "role": ROLES[route.scope]}
        if kind not in bodies:
            raise LookupError(f"{route.key}: say here what a {kind} looks like")
        return bodies[kind]
