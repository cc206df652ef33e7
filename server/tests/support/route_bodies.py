"""The smallest valid body of a request to every route: what its schema requires, and no more.

A field that is not known here fails with the name of it: say once what a good value is, and every generic test uses it.
"""

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from mooring.api.openapi import document
from mooring.api.route import Route
from mooring.core.kernel.permissions import Scope
from server.tests.conftest import PASSWORD
from server.tests.support import adapter_requests, made_things
from server.tests.support.root_key import signed
from server.tests.support.route_requests import (
    BLOB,
    NUMBERS,
    RECEIVER,
    ROLE_OF,
    Home,
    a_manifest,
    a_sku,
    fresh_name,
    fresh_public_key,
    fresh_public_pem,
)

Field = Callable[[Home, Scope], Awaitable[object]]


def _always(make: Callable[[], object]) -> Field:
    async def field_(home: Home, scope: Scope) -> object:
        return make()

    return field_


async def _a_user(home: Home, scope: Scope) -> object:
    return (await home.new_user(scope))["user_id"]


async def _the_role(home: Home, scope: Scope) -> object:
    return ROLE_OF[scope]


async def _the_tenant(home: Home, scope: Scope) -> object:
    return home.tenant.id


async def _an_app(home: Home, scope: Scope) -> object:
    return (await home.new_app(Scope.TENANT))["app_id"]


async def _a_manifest(home: Home, scope: Scope) -> object:
    """Of the app that was made last: the one that the request's address names."""
    return a_manifest(list(home.slugs.values())[-1] if home.slugs else "an-app")


async def _a_location(home: Home, scope: Scope) -> object:
    """A new file where the platform reads files; where it reads none, a place that nobody allows."""
    directory = home.world.running.settings.source_file_directory
    if not directory:
        return "file:nowhere"
    sources = await home.post(Scope.PLATFORM, "/artifact-sources?limit=500", method="GET")
    if "file:*" not in {each["pattern"] for each in sources["items"]}:
        await home.post(Scope.PLATFORM, "/artifact-sources", {"name": "files", "pattern": "file:*"})
    name = fresh_name("file")
    (Path(directory) / name).write_bytes(BLOB)
    return f"file:{name}"


async def _a_prepared_key(home: Home, scope: Scope) -> object:
    """A key that waits for the root key, which signs it."""
    home.prepared = signed(await home.post(Scope.PLATFORM, "/task-signing-keys/prepare"))
    return home.prepared["key_id"]


async def _its_signature(home: Home, scope: Scope) -> object:
    return home.prepared["root_signature"]


FIELDS: Final[dict[str, Field]] = {
    "app": made_things.an_app,
    "component": made_things.a_component,
    "instance_id": made_things.a_shared_instance,
    "placement": made_things.a_placement,
    "actions": _always(list),
    "agent_version": _always(lambda: "1.0.0"),
    "allowed_gpu_counts": _always(lambda: [1]),
    "events": made_things.some_events,
    "config": _always(lambda: {"motd": "hello"}),
    "cpus": _always(lambda: 4),
    "currency": _always(lambda: "EUR"),
    "free": _always(lambda: 0),
    "gpu_model": _always(lambda: "made-up"),
    "host": _always(lambda: "simulated"),
    "may_be_left": _always(lambda: "nothing that matters"),
    "micro": _always(lambda: 1),
    "transaction_id": made_things.a_transaction,
    "memory_bytes": _always(lambda: 2**30),
    "price_minor_per_gpu_hour": _always(lambda: 100),
    "regions": _always(lambda: ["local"]),
    "shape": _always(lambda: "gpu_slice"),
    "sku": a_sku,
    "app_id": _an_app,
    "argv": _always(lambda: ["id", "-u"]),
    "client_id": _always(lambda: "mooring"),
    "issuer": _always(lambda: f"https://{fresh_name('idp')}.invalid"),
    "credential_id": _always(lambda: "A" * 43),
    "client_data": _always(lambda: "AAAA"),
    "attestation": _always(lambda: "AAAA"),
    "authenticator_data": _always(lambda: "AAAA"),
    "signature": _always(lambda: "AAAA"),
    "identity_provider_id": _always(lambda: f"idp_{'0' * 26}"),
    "certificate_request": _always(lambda: "a request"),
    "category": _always(lambda: "tool"),
    "current_password": _always(lambda: PASSWORD),
    "content_base64": _always(lambda: base64.b64encode(BLOB).decode()),
    "digest": _always(lambda: f"sha256:{hashlib.sha256(BLOB).hexdigest()}"),
    "display_name": _always(lambda: "A name"),
    "enabled": _always(lambda: False),
    "email": _always(lambda: f"{fresh_name('somebody')}@home.example"),
    "low_minor": made_things.a_low_mark,
    "manifest": _a_manifest,
    "minor": _always(lambda: 5_000),
    "minor_per_month": _always(lambda: 10**9),
    "move": _always(lambda: "withdraw"),
    "key_id": _a_prepared_key,
    "item": _always(lambda: "unit"),
    "item_key": _always(lambda: f"{fresh_name('priced')}/token_out"),
    "billing": _always(lambda: "informative"),
    "kind": _always(lambda: "blob"),
    "labels": _always(lambda: {"rack": fresh_name("rack")}),
    "location": _a_location,
    "name": _always(lambda: fresh_name("name")),
    "networks": _always(lambda: ["127.0.0.0/8", f"192.0.2.{next(NUMBERS) % 256}/32"]),
    "new_password": _always(lambda: PASSWORD),
    "pattern": _always(lambda: f"oci://{fresh_name('registry')}.example/*"),
    "proof": _always(lambda: "A" * 86),
    "public_key": _always(fresh_public_key),
    "public_key_pem": _always(fresh_public_pem),
    "reason": _always(lambda: "the tenant asked for help"),
    "reference": _always(lambda: fresh_name("receipt")),
    "reports": _always(list),
    "role": _the_role,
    "root_signature": _its_signature,
    "slug": _always(lambda: fresh_name("slug")),
    "tenant_id": _the_tenant,
    "thresholds": _always(lambda: [{"percent": 80, "action": "notify"}]),
    "type": _always(lambda: "process.run"),
    "url": _always(lambda: RECEIVER),
    "user_id": _a_user,
    "value": _always(lambda: "hidden"),
}
"""A good value for each field that some body requires."""

DOCUMENT: Final = document()


async def body_of(route: Route, home: Home) -> bytes | None:
    """The smallest valid body of a request to the route."""
    if route.scope is Scope.RUNTIME:
        return await adapter_requests.body_of(home, route)
    operation = {} if route.hidden else DOCUMENT["paths"][route.path][route.method.lower()]
    if "requestBody" not in operation:
        return None
    taken = operation["requestBody"]["content"]
    media_type = "application/json" if "application/json" in taken else next(iter(taken))
    content = taken[media_type]
    assert media_type == "application/json", f"{route.key}: a body of {media_type}"
    return json.dumps(await _filled(content["schema"], home, route.scope)).encode()


async def _filled(schema: dict[str, Any], home: Home, scope: Scope) -> dict[str, object]:
    whole = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    body: dict[str, object] = {}
    for name in whole.get("required", ()):
        kind = whole["properties"][name]
        enums = DOCUMENT["components"]["schemas"]
        if name not in FIELDS and "$ref" in kind and "enum" not in enums[kind["$ref"].rpartition("/")[2]]:
            body[name] = await _filled(kind, home, scope)
        else:
            body[name] = await FIELDS[name](home, scope)
    if not body and "display_name" in whole["properties"]:
        body["display_name"] = fresh_name("name")
    if not body and "client_id" in whole["properties"]:
        body["client_id"] = fresh_name("client")
    if not body and "description" in whole["properties"]:
        body["description"] = fresh_name("description")  # so that a change changes something
    return body
