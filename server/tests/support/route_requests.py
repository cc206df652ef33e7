"""The address of a well-formed request for every route; `route_bodies.py` has the bodies.

What a route's address names is made through the public API by the admin of its place; once for requests that change
nothing, and again for each that does. A route with a parameter that is not known here fails with the name of it: say
once what a good one is, and every generic test uses it.
"""

import base64
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from mooring.api.route import Route
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.permissions import Scope
from mooring.gateways.signing.cosign_keys import new_signing_key
from mooring.gateways.signing.signatures import new_key_pair
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support import adapter_requests, made_things
from server.tests.support.agents import MachineKeys, joined
from server.tests.support.lifecycle_rows import ProjectRows, machines_of
from server.tests.support.soft_authenticator import SoftAuthenticator

RECEIVER: Final = "https://127.0.0.1:1/hook"
"""A webhook's address at which nobody answers, at once; the tests' platform allows loopback."""

BLOB: Final = b"weights"
"""What every blob of the tests holds."""

ROLE_OF: Final = {
    Scope.PLATFORM: "platform_operator",
    Scope.TENANT: "tenant_admin",
    Scope.PROJECT: "project_viewer",
}
NUMBERS: Final = itertools.count(1)


def fresh_name(beginning: str) -> str:
    """A slug that nobody has."""
    return f"{beginning}-{next(NUMBERS)}"


def fresh_public_key() -> str:
    """A public key that nobody has, in base64."""
    return base64.b64encode(new_key_pair()[1]).decode()


PROVIDERS_KEPT: Final = 4


@dataclass
class Home:
    """A tenant with a project, or the platform itself, and a caller who may make things there."""

    world: World
    client: httpx.AsyncClient  # anybody's: it says with each request for whom it speaks
    tenant: TenantWithAdmin
    project_id: str
    kept: dict[tuple[Scope, str], dict[str, str]] = field(default_factory=dict)
    slugs: dict[str, str] = field(default_factory=dict)  # of the apps that were made, the last one last
    node: MachineKeys | None = None
    node_secret: str = ""
    providers: list[tuple[Scope, str]] = field(default_factory=list)  # those that were made, the last one last
    prepared: dict[str, str] = field(default_factory=dict)  # the key that waits for the root key, as it is put into use

    async def node_token(self) -> str:
        """The token of a node that stays."""
        if self.node is None:
            self.node = await joined(self.client, self.world.admin)
        if not self.node_secret:
            self.node_secret = await self.node.token(self.client)
        return self.node_secret

    def project_rows(self) -> ProjectRows:
        """Where rows of this project are written down."""
        return ProjectRows(self.world.running.platform.services.database, self.tenant.id, self.project_id)

    def token(self, scope: Scope) -> str:
        """The token of the admin of this kind of place."""
        platform = str(self.world.admin.headers["Authorization"]).removeprefix("Bearer ")
        return platform if scope is Scope.PLATFORM else self.tenant.token

    def place(self, scope: Scope) -> str:
        """The address of this kind of place."""
        places = {
            Scope.PLATFORM: "/api/v1/platform",
            Scope.TENANT: f"/api/v1/tenants/{self.tenant.id}",
            Scope.PROJECT: f"/api/v1/projects/{self.project_id}",
        }
        return places[scope]

    async def post(self, scope: Scope, path: str, body: object = None, method: str = "POST") -> Any:
        """Do something as the admin of the place, which must succeed."""
        headers = {"Authorization": f"Bearer {self.token(scope)}"}
        sent = None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers["Content-Type"] = "application/json"
        url = self.place(scope) + path if not path.startswith("/api/") else path
        answer = await self.client.request(method, url, content=sent, headers=headers)
        assert answer.status_code < 300, f"{method} {url}: {answer.text}"
        return answer.json() if answer.content else None

    async def ids(self, route: Route, *, fresh: bool) -> dict[str, str]:
        """The ids that the route's address names."""
        if route.scope is Scope.RUNTIME:
            return await adapter_requests.ids_of(self, route)
        scope = Scope.TENANT if route.scope is Scope.SELF else route.scope
        named = {"tenant_id": self.tenant.id, "project_id": self.project_id}
        leaves = [each for each in route.path_parameters if each not in named]
        if fresh and not leaves and route.method == "DELETE":
            named["project_id"] = await self.new_project()
        if leaves:
            key = (scope, "/".join(leaves) if leaves[0] == "attachment_id" else leaves[-1])
            if fresh or key not in self.kept:
                made = await MAKERS[key[1]](self, scope)
                if fresh:
                    return named | made
                self.kept[key] = made
            named |= self.kept[key]
        return {name: named[name] for name in route.path_parameters}

    async def new_project(self) -> str:
        """One more project, empty."""
        body = {"slug": fresh_name("project"), "display_name": "A project"}
        return str((await self.post(Scope.TENANT, "/projects", body))["id"])

    async def new_user(self, scope: Scope) -> dict[str, str]:
        """One more user of the tenant's, or of the platform's."""
        body = {"email": f"{fresh_name('user')}@home.example", "display_name": "A user"}
        home = Scope.PLATFORM if scope is Scope.PLATFORM else Scope.TENANT
        return {"user_id": (await self.post(home, "/users", body))["id"]}

    async def new_person(self, scope: Scope, role: str) -> str:
        """One more user with a role at this kind of place; the token of a session of his."""
        email = f"{fresh_name('person')}@home.example"
        home = Scope.PLATFORM if scope is Scope.PLATFORM else Scope.TENANT
        made = await self.post(home, "/users", {"email": email, "display_name": "A person"})
        await self.post(scope, "/memberships", {"user_id": made["id"], "role": role})
        slug = None if scope is Scope.PLATFORM else self.tenant.slug
        return await self.world.sign_in(email, made["one_time_code"], slug)

    async def new_user_token(self, scope: Scope) -> dict[str, str]:
        """A session of one more user."""
        token = await self.new_person(scope, ROLE_OF[scope])
        whoami = await self.world.client(token).get("/api/v1/whoami")
        return {"user_token_id": str(whoami.json()["token_id"])}

    async def new_membership(self, scope: Scope) -> dict[str, str]:
        """One more role of somebody's, at exactly this place."""
        body = {**await self.new_user(scope), "role": ROLE_OF[scope]}
        return {"membership_id": (await self.post(scope, "/memberships", body))["id"]}

    async def new_account(self, scope: Scope) -> dict[str, str]:
        """One more service account, which may do nothing."""
        body = {"name": fresh_name("account"), "actions": []}
        return {"service_account_id": (await self.post(scope, "/service-accounts", body))["id"]}

    async def new_key(self, scope: Scope) -> dict[str, str]:
        """One more service account, with a key."""
        account = await self.new_account(scope)
        path = f"/service-accounts/{account['service_account_id']}/keys"
        return account | {"key_id": (await self.post(scope, path, {"public_key": fresh_public_key()}))["id"]}

    async def new_token(self, scope: Scope) -> dict[str, str]:
        """One more token of the tenant's admin."""
        made = await self.post(Scope.TENANT, "/api/v1/tokens", {"name": "a token"})
        return {"token_id": made["id"]}

    async def new_webhook(self, scope: Scope) -> dict[str, str]:
        """One more webhook; those of before go, since a place has a bounded number."""
        for each in (await self.post(scope, "/webhooks", method="GET"))["items"]:
            if each["id"] not in {kept.get("webhook_id") for kept in self.kept.values()}:
                await self.post(scope, f"/webhooks/{each['id']}", method="DELETE")
        return {"webhook_id": (await self.post(scope, "/webhooks", {"url": RECEIVER}))["id"]}

    async def new_delivery(self, scope: Scope) -> dict[str, str]:
        """One more delivery: a webhook, and then something that happens in its place."""
        webhook = await self.new_webhook(scope)
        await self.new_membership(scope)
        found = await self.post(scope, f"/deliveries?webhook_id={webhook['webhook_id']}", method="GET")
        return webhook | {"delivery_id": found["items"][0]["id"]}

    async def new_app(self, scope: Scope) -> dict[str, str]:
        """One more app of this place; of the tenant for a project, which has none of its own."""
        body = {"slug": fresh_name("app"), "display_name": "An app", "category": "tool"}
        made = await self.post(Scope.TENANT if scope is Scope.PROJECT else scope, "/apps", body)
        self.slugs[made["id"]] = made["slug"]
        return {"app_id": made["id"]}

    async def new_version(self, scope: Scope) -> dict[str, str]:
        """One more version, a draft, of an app of its own."""
        app = await self.new_app(scope)
        manifest = a_manifest(self.slugs[app["app_id"]])
        made = await self.post(scope, f"/apps/{app['app_id']}/versions", {"manifest": manifest})
        return app | {"version_id": made["id"]}

    async def new_entitlement(self, scope: Scope) -> dict[str, str]:
        """One more entitlement of the project's, for an app of its own."""
        app = await self.new_app(Scope.TENANT)
        body = {"app_id": app["app_id"], "reason": "to have such a thing"}
        return {"entitlement_id": (await self.post(Scope.PROJECT, "/entitlements", body))["id"]}


def a_manifest(slug: str) -> dict[str, Any]:
    """A small manifest of the right shape, of this app."""
    return {
        "manifest_version": 1,
        "app": slug,
        "version": "1.0.0",
        "artifact_kind": "oci",
        "artifacts": {"main": f"sha256:{'a' * 64}"},
        "runtime_profile": {"image": "main"},
    }


async def _new_artifact(home: Home, scope: Scope) -> dict[str, str]:
    """One more artifact of this place, a draft, written down, from where no source allows anybody to ask."""
    project_rows = home.project_rows()
    row = project_rows.row("artifact") | {"location": f"oci://unlisted.example/team/{fresh_name('app')}"}
    if scope is Scope.PLATFORM:
        row |= {"tenant_id": None, "visibility": "platform"}
    if scope is Scope.PROJECT:
        row |= {"project_id": home.project_id, "visibility": "project"}
    acting = PLATFORM if scope is Scope.PLATFORM else project_rows.acting
    made = Insert("artifact", row, machines_of("artifact"))
    await project_rows.write(made, acting=acting)
    return {"artifact_id": str(row["id"])}


async def _new_project_secret(home: Home, scope: Scope) -> dict[str, str]:
    """One more secret of the project; those of before go, since a project has a bounded number."""
    kept = {each.get("secret_id") for each in home.kept.values()}
    for each in (await home.post(Scope.PROJECT, "/secrets?limit=500", method="GET"))["items"]:
        if each["id"] not in kept:
            await home.post(Scope.PROJECT, f"/secrets/{each['id']}", method="DELETE")
    body = {"name": fresh_name("secret"), "value": "hidden"}
    return {"secret_id": (await home.post(Scope.PROJECT, "/secrets", body))["id"]}


async def _new_source(home: Home, scope: Scope) -> dict[str, str]:
    """One more source on the list of this place."""
    body = {"name": "any", "pattern": f"oci://{fresh_name('registry')}.example/*"}
    return {"source_id": (await home.post(scope, "/artifact-sources", body))["id"]}


async def _new_signer_key(home: Home, scope: Scope) -> dict[str, str]:
    """One more trusted key; those of before go, since a place has a bounded number."""
    kept = {each.get("signer_key_id") for each in home.kept.values()}
    for each in (await home.post(scope, "/signer-keys?limit=500", method="GET"))["items"]:
        if each["id"] not in kept and "signer_key.update" in each["allowed_actions"]:
            await home.post(scope, f"/signer-keys/{each['id']}", method="DELETE")
    body = {"name": "any", "public_key_pem": fresh_public_pem()}
    return {"signer_key_id": (await home.post(scope, "/signer-keys", body))["id"]}


async def a_sku(home: Home, scope: Scope) -> object:
    """A kind of capacity that is sold in one size, so that a request needs no number."""
    return (await _made_sku(home, 1))["slug"]


async def _made_sku(home: Home, *counts: int) -> Any:
    body = {
        "slug": fresh_name("sku"),
        "display_name": "A kind of capacity",
        "shape": "gpu_slice",
        "gpu_model": "made-up",
        "regions": ["local"],
        "allowed_gpu_counts": counts,
        "price_minor_per_gpu_hour": 100,
        "currency": "EUR",
    }
    return await home.post(Scope.PLATFORM, "/skus", body)


async def _new_allocation(home: Home, scope: Scope) -> dict[str, str]:
    """One more allocation, which waits for a place."""
    body = {"shape": "gpu_slice", "sku": await a_sku(home, scope)}
    return {"allocation_id": (await home.post(Scope.PROJECT, "/allocations", body))["id"]}


async def _new_group(home: Home, scope: Scope) -> dict[str, str]:
    """One more group with one allocation, which waits for a place."""
    body = {"name": fresh_name("group"), "shape": "gpu_slice", "sku": await a_sku(home, scope)}
    return {"group_id": (await home.post(Scope.PROJECT, "/allocation-groups", body))["id"]}


def fresh_public_pem() -> str:
    """A public key for signatures that nobody has, in PEM form."""
    return new_signing_key().trusted("").pem


async def _new_sku(home: Home, scope: Scope) -> dict[str, str]:
    """One more kind of capacity."""
    return {"sku_id": (await _made_sku(home, 1, 2))["id"]}


async def _new_check(home: Home, scope: Scope) -> dict[str, str]:
    """One more artifact with a check that is accepted and due in a far future, so that nobody begins it."""
    artifact = await _new_artifact(home, scope)
    project_rows = home.project_rows()
    row = project_rows.row("artifact_check") | artifact
    if scope is not Scope.PROJECT:
        row["project_id"] = None
    if scope is Scope.PLATFORM:
        row["tenant_id"] = None
    acting = PLATFORM if scope is Scope.PLATFORM else project_rows.acting
    made = Insert("artifact_check", row, machines_of("artifact_check"))
    await project_rows.write(made, acting=acting)
    return artifact | {"check_id": str(row["id"])}


async def _new_passkey(home: Home, scope: Scope) -> dict[str, str]:
    """One more passkey of the tenant's admin."""
    begun = await home.post(Scope.TENANT, "/api/v1/whoami/passkeys/options")
    device = SoftAuthenticator(home.world.running.url, "127.0.0.1")
    made = await home.post(Scope.TENANT, "/api/v1/whoami/passkeys", device.registration(begun["public_key"]))
    return {"passkey_id": str(made["id"])}


async def _new_identity_provider(home: Home, scope: Scope) -> dict[str, str]:
    """One more provider, whose name does not resolve: nobody asks it anything."""
    body = {"name": "A provider", "issuer": f"https://{fresh_name('idp')}.invalid", "client_id": "mooring"}
    body["client_secret"] = "hidden"
    made = await home.post(scope, "/identity-providers", body)
    home.providers.append((scope, str(made["id"])))
    while len(home.providers) > PROVIDERS_KEPT:  # there may be ten at a place
        old_scope, old = home.providers.pop(1)  # the first one stays, which other rows name
        headers = {"Authorization": f"Bearer {home.token(old_scope)}"}
        await home.client.delete(f"{home.place(old_scope)}/identity-providers/{old}", headers=headers)
    return {"identity_provider_id": str(made["id"])}


MAKERS: Final[dict[str, Callable[[Home, Scope], Awaitable[dict[str, str]]]]] = {
    "user_id": Home.new_user,
    "passkey_id": _new_passkey,
    "identity_provider_id": _new_identity_provider,
    "membership_id": Home.new_membership,
    "service_account_id": Home.new_account,
    "key_id": Home.new_key,
    "token_id": Home.new_token,
    "user_token_id": Home.new_user_token,
    "webhook_id": Home.new_webhook,
    "artifact_id": _new_artifact,
    "check_id": _new_check,
    "source_id": _new_source,
    "secret_id": _new_project_secret,
    "signer_key_id": _new_signer_key,
    "delivery_id": Home.new_delivery,
    "allocation_id": _new_allocation,
    "group_id": _new_group,
    "app_id": Home.new_app,
    "entitlement_id": Home.new_entitlement,
    "version_id": Home.new_version,
    "catalog_version_id": made_things.new_catalog_version,
    "enrolment_token_id": made_things.new_enrolment_token,
    "node_id": made_things.new_node,
    "sku_id": _new_sku,
    "task_id": made_things.new_task,
    "receipt_id": made_things.new_receipt,
    "endpoint_id": made_things.new_endpoint,
    "terminal_id": made_things.held_terminal,
    "instance_id": made_things.new_instance,
    "member_id": made_things.new_member,
    "operation_id": made_things.new_operation,
    "action_name": made_things.new_action,
    "secret_name": made_things.new_secret,
    "late_usage_id": made_things.new_late_usage,
    "recording_id": made_things.new_recording,
    "attachment_id": made_things.new_attachment,
    "attachment_id/operation_id": made_things.new_attached_operation,
    "attachment_id/action_name": made_things.new_attached_action,
    "statement_id": made_things.new_statement,
    "subject": made_things.new_subject,
    "unit": made_things.new_unit,
}
"""How the thing is made that a parameter of an address names."""
