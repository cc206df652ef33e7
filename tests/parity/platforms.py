"""The two platforms that have to answer the same: the conformance suite's simulated one, and the real server.

Both start with the same instance. Nothing moves by itself on either side: the real server has no workers and no nodes
here, and the simulated one is still. So every difference is one of the rules.
"""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_transitions import new_member
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import WHOLE_KINDS, OperationKind
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime import instance as instances
from mooring_adapter.conformance.fake_api import ApiRequest, FakeApi
from mooring_adapter.conformance.fake_records import FakeAccount, FakeInstance, FakeOperation
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.conformance.fault_proxy import problem
from mooring_adapter.conformance.platform_rules import RequestRefused
from server.tests.support import manifests
from server.tests.support.adapter_site import OPERATOR, AdapterSite, make_operator
from tests.parity.answers import PlatformAnswer

RUNTIME: Final = "/api/v1/runtime"
LIFECYCLE: Final = {**manifests.LIFECYCLE, "restart": {"supported": True}, "configure": {"supported": True}}
FORM: Final = {
    "type": "object",
    "properties": {"greeting": {"type": "string", "maxLength": 20}},
    "additionalProperties": False,
}
OUTPUT: Final = {
    "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"], "additionalProperties": False,
}  # fmt: skip
ACTION: Final = {
    "name": "queue.submit",
    "permission": "app.hello.submit",
    "input_schema": {"type": "object", "properties": {}},
    "output_schema": OUTPUT,
}
MANIFEST: Final = manifests.oci(
    components=[{"key": "head", "min_count": 1, "max_count": 1}, {"key": "worker", "min_count": 0, "max_count": 500}],
    usage_units=[{"unit": "tokens", "title": "Tokens"}],
    actions=[ACTION],
    lifecycle=LIFECYCLE,
    config_schema=FORM,
    required_actions=OPERATOR,
)
NEXT_MANIFEST: Final = {**MANIFEST, "version": "1.1.0", "artifacts": {"main": manifests.digest("b")}}
OPEN_KINDS: Final = """
SELECT kind FROM operation WHERE instance_id = $1 AND status NOT IN ('succeeded', 'failed', 'cancelled')"""
GIVE_AWAY: Final = "UPDATE instance_claim SET service_account_id = $2 WHERE instance_id = $1"
_NUMBERS: Final = itertools.count(1)


@dataclass
class SimulatedSide:
    """The simulated platform, asked without HTTP."""

    store: FakeStore = field(default_factory=FakeStore)
    instance: FakeInstance | None = None
    foreign: FakeInstance | None = None

    def __post_init__(self) -> None:
        self.store.is_still = True
        self.api = FakeApi(self.store)
        actions = frozenset(OPERATOR)
        for name in ("own", "foreign"):
            account = FakeAccount(f"sa_{name}", f"prj_{name}", name, "", ("hello",), actions)
            self.store.accounts[account.id] = account
        self.api.tokens["token"] = ("sa_own", float("inf"))

    def launch(self, workers: int) -> FakeInstance:
        topology = {"head": 1, "worker": workers}
        accounts = self.store.accounts
        self.instance = self.store.create(accounts["sa_own"], MANIFEST, topology, {}, f"app-{next(_NUMBERS)}")
        self.foreign = self.store.create(accounts["sa_foreign"], MANIFEST, topology, {}, f"app-{next(_NUMBERS)}")
        return self.instance

    def ask(self, method: str, path: str, body: dict[str, Any], query: dict[str, str]) -> PlatformAnswer:
        request = ApiRequest(method, f"{RUNTIME}{path}", query, body, "parity", "token")
        try:
            answer = self.api.answer(request)
        except RequestRefused as refused:
            return PlatformAnswer(refused.status, problem(refused))
        return PlatformAnswer(answer.status, answer.body)

    def person(self, verb: str, given: dict[str, Any]) -> FakeOperation | None:
        """What a person asks for, and the real server has accepted."""
        store, instance = self.store, self.instance
        assert instance is not None
        match verb:
            case "cancel":
                store.cancel(instance, instance.operations[given["operation_id"]])
                return None
            case "resume":
                store.resume(instance, instance.members[given["member_id"]])
                return None
            case "add":
                return store.add(instance, "worker", 1)
            case "stop":
                return store.change(instance, "decommission", {}, None)
            case "upgrade":
                made = store.change(instance, "upgrade", {"version": "1.1.0"}, None)
                store.target(made, instance, NEXT_MANIFEST)
                return made
            case "configure":
                return store.change(instance, "configure", {"input": {"greeting": "moin"}, "changed": []}, None)
            case "action":
                return store.change(instance, "action", {"action": "queue.submit", "input": {}}, None)
        request = {"timeout_seconds": 60} if verb in ("drain", "remove") else {}
        member_id = given["member_id"] if verb in ("drain", "remove") else None
        return store.change(instance, verb, request, member_id)


@dataclass
class RealSide:
    """The real server, asked over HTTP."""

    site: AdapterSite
    adapter: httpx.AsyncClient
    person_client: httpx.AsyncClient
    retired_account: str
    foreign: Instance
    foreign_member: str
    next_version_id: str
    instance: Instance | None = None

    @classmethod
    async def opened(cls, site: AdapterSite) -> "RealSide":
        """A project with two versions of the app, and a foreign instance of another account."""
        rows = site.project_rows
        version_id = await rows.birth("app_version", app_slug="hello", manifest=MANIFEST, version="1.0.1")
        next_id = await rows.birth("app_version", app_slug="hello", manifest=NEXT_MANIFEST, version="1.1.0")
        site = replace(site, project_rows=replace(rows, version_id=version_id))
        for character in "ab":
            await site.artifact(manifests.digest(character))
        retired, _ = await make_operator(site.world, site.tenant, site.project_id, list(OPERATOR))
        instance, members, _ = await site.launch(1)
        await site.services.database.fetch(PLATFORM, GIVE_AWAY, instance.id, retired.id)
        client = site.world.client
        clients = client(site.token), client(site.tenant.token)
        return cls(site, *clients, retired.id, instance, members[0].id, next_id)

    async def launch(self, workers: int) -> tuple[list[str], str]:
        """A new instance; its members and its first operation."""
        self.instance, members, operation = await self.site.launch(workers)
        return [each.id for each in members], operation.id

    async def retire(self) -> None:
        """Hide the instance from the account of the next history."""
        assert self.instance is not None
        await self.site.services.database.fetch(PLATFORM, GIVE_AWAY, self.instance.id, self.retired_account)

    async def ask(self, method: str, path: str, body: dict[str, Any], query: dict[str, str]) -> PlatformAnswer:
        given: dict[str, Any] = {"json": body} if method == "POST" else {}
        response = await self.adapter.request(method, f"{RUNTIME}{path}", params=query, **given)
        return PlatformAnswer(response.status_code, response.json())

    async def person(self, verb: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """What a person asks for over the API; None if the server refuses it."""
        assert self.instance is not None
        if verb == "add":
            return await self._add()
        if verb == "upgrade":
            return await self._upgrade()
        base = f"/api/v1/projects/{self.site.project_id}/app-instances/{self.instance.id}"
        member = f"/members/{given.get('member_id')}"
        path, body = {
            "drain": (f"{member}/drain", {"timeout_seconds": 60}),
            "remove": (f"{member}/remove", {"timeout_seconds": 60}),
            "resume": (f"{member}/resume", {}),
            "cancel": (f"/operations/{given.get('operation_id')}/cancel", {}),
            "stop": ("/stop", {}),
            "restart": ("/restart", {}),
            "reconcile": ("/reconcile", {}),
            "repair": ("/repair", {}),
            "action": ("/actions/queue.submit", {"input": {}}),
            "configure": ("", {"config": {"greeting": "moin"}}),
        }[verb]
        method = "PATCH" if verb == "configure" else "POST"
        response = await self.person_client.request(method, base + path, json=body)
        assert response.status_code < 500, response.text
        return dict(response.json()) if response.status_code < 300 else None

    async def _add(self) -> dict[str, Any] | None:
        """Add a member to a running instance, written as the command does: this needs no capacity."""
        assert self.instance is not None
        site, instance = self.site, await self.site.instance(self.instance.id)
        if instance.status != "running":
            return None
        taken = {each.ordinal for each in await self._members() if each.component_key == "worker"}
        ordinal = next(each for each in itertools.count() if each not in taken)
        template = site.made(1)[1][1]
        member = replace(template, instance_id=instance.id, ordinal=ordinal, name=f"worker-{ordinal}")
        await site.apply(new_member(instance, member))
        operation = await site.ask(instance, OperationKind.ADD, [member])
        return {"id": operation.id, "member_ids": [member.id]}

    async def _upgrade(self) -> dict[str, Any] | None:
        """Upgrade a running instance, if nothing else concerns all of it; the catalogue's rules are not compared."""
        assert self.instance is not None
        site, instance = self.site, await self.site.instance(self.instance.id)
        open_kinds = await site.services.database.fetch(PLATFORM, OPEN_KINDS, instance.id)
        if instance.status != "running" or {row[0] for row in open_kinds} & WHOLE_KINDS or instance.version == "1.1.0":
            return None
        pin = {**instance.pin, "version": "1.1.0", "version_id": self.next_version_id}
        pin["artifacts"] = dict(NEXT_MANIFEST["artifacts"])
        members = [each for each in await self._members() if each.status != "removing"]
        operation = await site.ask(instance, OperationKind.UPGRADE, members, target_pin=pin)
        return {"id": operation.id}

    async def _members(self) -> list[Member]:
        assert self.instance is not None
        database = self.site.services.database
        return list((await instances.members_of(database, PLATFORM, [self.instance.id]))[self.instance.id])


def unknown_id(prefix: Prefix) -> str:
    """A well-formed id that nobody has."""
    return f"{prefix.value}_0{'z' * 25}"
