"""Instances, members and operations that mutations are asked of, each in the state in which its route takes it."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mooring.api.route import Route
from mooring.core.catalog.manifest import manifest_digest
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.fleet.runtime_secret import RuntimeSecretSpec, store_secret
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.attachment import ATTACHMENT, AttachmentState
from mooring.core.runtime.instance import INSTANCE, InstanceState
from mooring.core.runtime.member import MEMBER, MemberState
from mooring.gateways.secrets import SecretBox
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.lifecycle_rows import CLOCK, LifecycleSubject, ProjectRows, context, machines_of, path
from server.tests.support.made_things import (
    DIGEST,
    OPERATOR,
    SECRET,
    VALUE,
    an_artifact,
    at_terminal,
    manifest_of,
    usage_event,
)
from server.tests.support.tenant_rows import source_rows

PARAMETERS: Final = {"instance_id", "attachment_id", "late_usage_id"}
BODIES: Final = {
    "CreateInstance", "UpgradeInstance", "RepairInstance", "CancelOperation", "AddMembers", "DrainMember",
    "RemoveMember", "ReplaceMember", "StartAction", "CreateAttachment", "DetachProject", "StartAttachedAction",
    "RunAtTerminal", "RecordMeterEvents",
}  # fmt: skip
MEMBER_STATE: Final = {"drain": MemberState.READY, "resume": MemberState.DRAINING}
LIFECYCLE: Final = {
    "upgrade": {"strategy": "rolling"}, "rollback": {"supported": True}, "delete": {"data": "removed"},
    "restart": {"supported": True}, "attach": {"supported": True},
}  # fmt: skip
_NUMBERS: Final = itertools.count(1)


class InstanceSubjects:
    """Where they are written down: beside the server, in its database."""

    def __init__(self, tenant_id: str) -> None:
        self._tenant_id = tenant_id
        self._database: Database | None = None
        self._secrets: SecretBox | None = None
        self._known: dict[str, ProjectRows] = {}
        self._versions: dict[str, str] = {}
        self._slug = ""

    async def open(self, database_url: str, master_key: Path) -> None:
        """Know the database, and the key under which the server seals."""
        self._database = Database(PoolSettings(database_url, 1))
        await self._database.open()
        self._secrets = SecretBox(master_key)

    async def close(self) -> None:
        """Let go of the database."""
        if self._database is not None:
            await self._database.close()

    async def made(self, project_id: str, route: Route) -> dict[str, str]:
        """What the address of the route names."""
        if "attachment_id" in route.path_parameters:
            return await self._attachment(project_id)
        rows = await self._instance(project_id, route.verb)
        if route.name == "exec_instance":
            await at_terminal(rows)
        named = {"instance_id": rows.instance_id}
        if "late_usage_id" in route.path_parameters:
            named["late_usage_id"] = await source_rows(rows)
        if "member_id" in route.path_parameters:
            named["member_id"] = await self._member(rows, route)
        if "operation_id" in route.path_parameters:
            named["operation_id"] = await rows.birth("operation")
        if "action_name" in route.path_parameters:
            named["action_name"] = "look"
        if "secret_name" in route.path_parameters:
            named["secret_name"] = await self._secret(rows)
        return named

    async def body(self, project_id: str, kind: str) -> dict[str, Any]:
        """A body of this type that is accepted."""
        rows = await self._project_rows(project_id)
        placement = {"allocations": [await rows.birth("allocation")]}
        bodies: dict[str, dict[str, Any]] = {
            "CreateInstance": {
                "app": self._slug,
                "name": f"made-{next(_NUMBERS)}",
                "placement": placement,
                "version": "1.0.0",
                "service_account_id": rows.account_id,
            },
            "UpgradeInstance": {"version": "1.1.0"},
            "AddMembers": {"component": "main", "placement": placement},
            "ReplaceMember": {"surge": False},
        }
        if kind == "RecordMeterEvents":
            return {"events": [usage_event((await self._instance(project_id, "record")).instance_id)]}
        if kind == "CreateAttachment":
            return {"instance_id": (await rows.shared_instance(app_slug=self._slug))["instance_id"]}
        return bodies.get(kind, {})

    async def _project_rows(self, project_id: str) -> ProjectRows:
        """An app with two versions that the project may launch."""
        if project_id in self._known:
            return self._known[project_id]
        assert self._database is not None
        bare = ProjectRows(self._database, self._tenant_id, project_id)
        app_id = await bare.app("launched", "scheduler")
        self._slug = str(await self._database.fetchval(PLATFORM, "SELECT slug FROM app WHERE id = $1", app_id))
        await an_artifact(bare)
        rows = replace(bare, app_id=app_id, account_id=await bare.birth("service_account", actions=OPERATOR))
        for number in ("1.0.0", "1.1.0"):
            self._versions[number] = await self._version(rows, number)
        row = {
            "id": CLOCK.mint(Prefix.ENTITLEMENT),
            "tenant_id": self._tenant_id,
            "project_id": project_id,
            "app_id": app_id,
            "app_slug": self._slug,
            "enabled": True,
            "rules": {},
            "agreed_actions": OPERATOR,
            "created_at": CLOCK.now(),
            "updated_at": CLOCK.now(),
        }
        await rows.write(Insert("entitlement", row))
        self._known[project_id] = replace(rows, version_id=self._versions["1.0.0"])
        return self._known[project_id]

    async def _version(self, rows: ProjectRows, number: str) -> str:
        plain = manifest_of(self._slug) | {"version": number, "lifecycle": LIFECYCLE}
        columns = {
            "manifest": plain,
            "manifest_digest": manifest_digest(plain),
            "app_slug": self._slug,
            "version": number,
            "digests": [DIGEST],
        }
        row = rows.row("app_version") | columns
        await rows.write(Insert("app_version", row, machines_of("app_version")))
        subject = LifecycleSubject("app_version", PROMOTION, str(row["id"]), PROMOTION.initial)
        for edge in path(PROMOTION, PromotionState.ACTIVE):
            subject = await rows.move(subject, edge, staged_digest=row["manifest_digest"])
        return subject.id

    async def _instance(self, project_id: str, verb: str) -> ProjectRows:
        """An instance that runs; one that is rolled back came from another version."""
        rows = await self._project_rows(project_id)
        columns: dict[str, Any] = {"app_slug": self._slug, "topology": {"main": 1}}
        if verb == "rollback":
            digest = await rows.database.fetchval(
                PLATFORM, "SELECT manifest_digest FROM app_version WHERE id = $1", self._versions["1.1.0"]
            )
            columns["previous_pin"] = {
                "version_id": self._versions["1.1.0"],
                "version": "1.1.0",
                "manifest_digest": digest,
                "artifacts": {"main": DIGEST},
            }
        made = await rows.birth("instance", **columns)
        subject = LifecycleSubject("instance", INSTANCE, made, INSTANCE.initial)
        for edge in path(INSTANCE, InstanceState.RUNNING):
            subject = await rows.move(subject, edge)
        return replace(rows, instance_id=made, allocation_id=await rows.birth("allocation"))

    async def _attachment(self, project_id: str) -> dict[str, str]:
        """An attachment that is active, and an action of what it is to."""
        rows = await self._project_rows(project_id)
        made = await rows.birth("attachment", **await rows.shared_instance(app_slug=self._slug))
        subject = LifecycleSubject("attachment", ATTACHMENT, made, ATTACHMENT.initial)
        await rows.move(subject, path(ATTACHMENT, AttachmentState.ACTIVE)[0])
        return {"attachment_id": made, "action_name": "look"}

    async def _member(self, rows: ProjectRows, route: Route) -> str:
        made = await rows.birth("member", allocation_id=rows.allocation_id)
        subject = LifecycleSubject("member", MEMBER, made, MEMBER.initial)
        for edge in path(MEMBER, MEMBER_STATE.get(route.verb, MemberState.READY)):
            subject = await rows.move(subject, edge)
        return made

    async def _secret(self, rows: ProjectRows) -> str:
        assert self._secrets is not None
        sealed = self._secrets.seal(
            VALUE, id=CLOCK.mint(Prefix.SECRET), tenant_id=self._tenant_id, purpose="runtime_secret"
        )
        requested = RuntimeSecretSpec(
            self._tenant_id, rows.project_id, SECRET, "app_access", sealed, instance_id=rows.instance_id
        )
        await apply(rows.database, rows.acting, context(), store_secret(context(), requested, 0))
        return SECRET
