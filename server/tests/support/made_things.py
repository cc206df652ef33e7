"""Things that addresses name, written down: nodes, tasks, checks, and an app that can be launched with an instance."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from mooring.core.catalog.manifest import manifest_digest
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.fleet.allocation import ALLOCATION, AllocationState
from mooring.core.fleet.runtime_secret import RuntimeSecretSpec, store_secret
from mooring.core.kernel.decision import Insert, StateChange
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Scope
from mooring.core.money.charge import GPU_SECOND, RatedLine, Source, hour_of, postings_of
from mooring.core.money.ledger import BookedHour, Booking, book
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.price import Item, PriceSpec, create_price
from mooring.core.runtime.attachment import ATTACHMENT, AttachmentState
from mooring.core.runtime.exec_recording import ExecRecording
from mooring.core.runtime.instance import INSTANCE, InstanceState
from mooring.core.runtime.member import MEMBER, MemberState
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.runtime import exec_recording as exec_recordings
from server.tests.support.agents import joined
from server.tests.support.endpoint_rows import an_endpoint
from server.tests.support.lifecycle_rows import CLOCK, LifecycleSubject, ProjectRows, context, machines_of, path
from server.tests.support.task_rows import a_receipt, a_task
from server.tests.support.tenant_rows import source_rows

if TYPE_CHECKING:
    from server.tests.support.route_requests import Home

SECRET: str = "access"
"""What the secret of every instance is called that opens its app."""
VALUE: bytes = b"a secret that opens the app"
DIGEST: str = f"sha256:{'d' * 64}"
_RECEIPTS = itertools.count(1)
HELD: str = "UPDATE visit SET opened_at = now(), held_until = now() + interval '1 hour' WHERE id = $1 RETURNING id"
OPERATOR: list[str] = ["runtime.claim", "runtime.report"]


async def new_enrolment_token(home: "Home", scope: Scope) -> dict[str, str]:
    """One more one-time token for a machine."""
    made = await home.post(Scope.PLATFORM, "/nodes/enrolment-tokens", {})
    return {"enrolment_token_id": made["id"]}


async def new_node(home: "Home", scope: Scope) -> dict[str, str]:
    """One more node, ready for work."""
    machine = await joined(home.client, home.world.admin)
    await machine.report(home.client)
    return {"node_id": machine.node_id}


async def new_task(home: "Home", scope: Scope) -> dict[str, str]:
    """One more task of the project's, which waits for its agent."""
    return {"task_id": await a_task(home.project_rows())}


async def new_endpoint(home: "Home", scope: Scope) -> dict[str, str]:
    """One more endpoint, of a web app in an allocation of its own."""
    return {"endpoint_id": (await an_endpoint(home.project_rows())).endpoint_id}


async def held_terminal(home: "Home", scope: Scope) -> dict[str, str]:
    """One more terminal that some process holds, of the caller who made it."""
    allocation_id = (await an_endpoint(home.project_rows())).allocation_id
    made = await home.post(Scope.PROJECT, f"/allocations/{allocation_id}/exec", {"argv": ["sh"]})
    await home.project_rows().database.fetch(PLATFORM, HELD, made["id"])
    return {"terminal_id": made["id"]}


async def give_terminal(home: "Home", ids: dict[str, str], principal: Callable[[], Awaitable[str]]) -> None:
    """Make a terminal, if the ids name one, that of another caller."""
    if "terminal_id" in ids:
        given = "UPDATE visit SET principal_id = $2 WHERE id = $1 RETURNING id"
        await home.project_rows().database.fetch(PLATFORM, given, ids["terminal_id"], await principal())


async def new_receipt(home: "Home", scope: Scope) -> dict[str, str]:
    """One more receipt of the project's."""
    return {"receipt_id": await a_receipt(home.project_rows())}


async def new_statement(home: "Home", scope: Scope) -> dict[str, str]:
    """One more statement of the tenant's, of a month that was charged long ago."""
    return {"statement_id": await home.project_rows().birth("statement", period=date(2020, 1, 1))}


async def a_transaction(home: "Home", scope: Scope) -> object:
    """One more charge of the project's, in an hour that no worker charges while the test runs."""
    rows = home.project_rows()
    spec = PriceSpec(rows.tenant_id, Item.SKU, "sku_1", "EUR", 200, reason="a contract of two years")
    price = create_price(context(), spec)
    await apply(rows.database, PLATFORM, context(), price)
    hour = hour_of(CLOCK.now()) + timedelta(days=1)
    source = (Source.ALLOCATION.value, CLOCK.mint(Prefix.ALLOCATION), price.result.id, "EUR", GPU_SECOND)
    place = (rows.tenant_id, rows.project_id)
    line = RatedLine(*place, *source, Billing.CHARGED.value, hour, hour, 10**6, 55)
    booked = book(context(), hour, BookedHour((), {}), Booking(rows.tenant_id, postings_of([line]), ()))
    await apply(rows.database, PLATFORM, context(), booked)
    return next(each.row["id"] for each in booked.writes if isinstance(each, Insert))


def manifest_of(slug: str) -> dict[str, Any]:
    """An app that can be changed in every way, with an action that everybody who launches it may ask for."""
    return {
        "manifest_version": 1,
        "app": slug,
        "version": "1.0.0",
        "artifact_kind": "controller",
        "artifacts": {"main": DIGEST},
        "runtime_profile": {"image": "main"},
        "required_actions": OPERATOR,
        "actions": [
            {"name": name, "permission": permission, "input_schema": {"type": "object"}}
            for name, permission in (("look", "instance.read"), ("peek", "attachment.read"))
        ],
        "endpoints": [{"name": "login", "protocol": "terminal", "user": "app"}],
        "components": [{"key": "main", "max_count": 9}],
        "usage_units": [{"unit": "tokens", "title": "Tokens"}],
        "config_schema": {"type": "object", "properties": {"motd": {"type": "string", "maxLength": 20}}},
        "lifecycle": {
            "configure": {"supported": True},
            "upgrade": {"strategy": "none"},
            "rollback": {"supported": False},
            "delete": {"data": "removed"},
            "attach": {"supported": True},
        },
    }


async def new_catalog_version(home: "Home", scope: Scope) -> dict[str, str]:
    """The version of the app that the project may launch."""
    made = await launchable(home)
    return {"app_id": made["app_id"], "catalog_version_id": made["version_id"]}


async def launchable(home: "Home") -> dict[str, str]:
    """An app of the tenant's that the project may launch; once, since it stays."""
    key = (Scope.PROJECT, "launchable")
    if key in home.kept:
        return home.kept[key]
    project_rows = home.project_rows()
    app_id = await project_rows.app("launched", "scheduler")
    slug = str(await project_rows.database.fetchval(PLATFORM, "SELECT slug FROM app WHERE id = $1", app_id))
    await an_artifact(project_rows)
    plain = manifest_of(slug)
    columns = {"manifest": plain, "manifest_digest": manifest_digest(plain), "app_slug": slug, "version": "1.0.0"}
    columns["digests"] = [DIGEST]
    row = replace(project_rows, app_id=app_id).row("app_version") | columns
    await project_rows.write(Insert("app_version", row, machines_of("app_version")))
    subject = LifecycleSubject("app_version", PROMOTION, str(row["id"]), PROMOTION.initial)
    for edge in path(PROMOTION, PromotionState.ACTIVE):
        staged = {"staged_digest": row["manifest_digest"]}
        subject = await project_rows.move(subject, edge, **(staged if edge.target != "retired" else {}))
    body = {"app_id": app_id, "reason": "to launch it", "agreed_actions": OPERATOR}
    await home.post(Scope.PROJECT, "/entitlements", body)
    account = {"name": f"operates-{slug}", "actions": OPERATOR}
    made = await home.post(Scope.PROJECT, "/service-accounts", account)
    sku = {
        "slug": f"sku-of-{slug}"[:40],
        "display_name": "A SKU",
        "shape": "gpu_slice",
        "gpu_model": "made-up",
        "regions": ["local"],
        "allowed_gpu_counts": [1],
        "price_minor_per_gpu_hour": 100,
        "currency": "EUR",
    }
    await home.post(Scope.PLATFORM, "/skus", sku)
    known = {"app_id": app_id, "slug": slug, "version_id": subject.id, "account_id": made["id"], "sku": sku["slug"]}
    home.kept[key] = {name: str(value) for name, value in known.items()}
    return home.kept[key]


async def an_artifact(project_rows: ProjectRows) -> None:
    """The artifact of every launchable app, active and verified, and the source that it is from."""
    there = "SELECT count(*) FROM artifact WHERE digest = $1 AND tenant_id = $2"
    if await project_rows.database.fetchval(PLATFORM, there, DIGEST, project_rows.tenant_id):
        return
    row = project_rows.row("artifact") | {"digest": DIGEST}
    source = {
        "id": CLOCK.mint(Prefix.ARTIFACT_SOURCE),
        "tenant_id": project_rows.tenant_id,
        "name": "any",
        "created_at": CLOCK.now(),
        "pattern": "oci://registry.example/team/*",
    }
    await project_rows.write(Insert("artifact", row, machines_of("artifact")), Insert("artifact_source", source))
    verify = next(edge for edge in TRUST.edges if edge.source == "unverified" and edge.target == "verified")
    await project_rows.write(StateChange("artifact", str(row["id"]), TRUST, verify, 0, project_rows.tenant_id))
    for generation, edge in enumerate(path(PROMOTION, PromotionState.ACTIVE)):
        await project_rows.write(
            StateChange("artifact", str(row["id"]), PROMOTION, edge, generation, project_rows.tenant_id)
        )
    seen = {
        "id": CLOCK.mint(Prefix.ARTIFACT_EVIDENCE),
        "tenant_id": project_rows.tenant_id,
        "artifact_id": row["id"],
        "kind": "presence",
        "digest": DIGEST,
        "observed_at": CLOCK.now(),
        "size_bytes": row["size_bytes"],
    }
    await project_rows.write(Insert("artifact_evidence", seen))


async def make_instance_rows(home: "Home") -> ProjectRows:
    """An instance that runs, where rows of its own are written down."""
    known = await launchable(home)
    project_rows = home.project_rows()
    standing = replace(
        project_rows,
        app_id=known["app_id"],
        version_id=known["version_id"],
        account_id=known["account_id"],
        allocation_id=await project_rows.birth("allocation"),
    )
    columns = {"placement": {"sku": known["sku"]}, "app_slug": known["slug"], "app_category": "scheduler"}
    made = await standing.birth("instance", **columns)
    subject = LifecycleSubject("instance", INSTANCE, made, INSTANCE.initial)
    for edge in path(INSTANCE, InstanceState.RUNNING):
        subject = await standing.move(subject, edge)
    return replace(standing, instance_id=made)


async def new_instance(home: "Home", scope: Scope) -> dict[str, str]:
    """One more instance, which runs and has no member."""
    return {"instance_id": (await make_instance_rows(home)).instance_id}


async def new_late_usage(home: "Home", scope: Scope) -> dict[str, str]:
    """One more event that came too late, of an instance of its own."""
    return {"late_usage_id": await source_rows(await make_instance_rows(home))}


async def some_events(home: "Home", scope: Scope) -> object:
    """A batch of one event, of an instance of its own."""
    return [usage_event((await make_instance_rows(home)).instance_id)]


def usage_event(instance_id: str) -> dict[str, object]:
    """A new event about usage that is accepted."""
    return {
        "specversion": "1.0",
        "type": "mooring.usage",
        "source": "//tests",
        "id": CLOCK.mint(Prefix.USAGE_RECORD),
        "subject": instance_id,
        "time": CLOCK.now().isoformat(),
        "data": {"unit": "tokens", "quantity": 1},
    }


async def new_subject(home: "Home", scope: Scope) -> dict[str, str]:
    """Something that is asked about: one more instance."""
    return {"subject": (await make_instance_rows(home)).instance_id}


async def new_unit(home: "Home", scope: Scope) -> dict[str, str]:
    """A unit of an app that nobody decided about."""
    return {"app_slug": f"metered-{CLOCK.mint(Prefix.METER)[-26:]}", "unit": "token_out"}


async def new_member(home: "Home", scope: Scope) -> dict[str, str]:
    """One more member, which waits for its adapter, of an instance of its own."""
    project_rows = await make_instance_rows(home)
    member_id = await project_rows.birth("member", allocation_id=project_rows.allocation_id)
    return {"instance_id": project_rows.instance_id, "member_id": member_id}


async def new_operation(home: "Home", scope: Scope) -> dict[str, str]:
    """One more operation, which waits for its adapter, of an instance of its own."""
    project_rows = await make_instance_rows(home)
    return {"instance_id": project_rows.instance_id, "operation_id": await project_rows.birth("operation")}


async def new_action(home: "Home", scope: Scope) -> dict[str, str]:
    """An action of one more instance."""
    return await new_instance(home, scope) | {"action_name": "look"}


async def at_terminal(project_rows: ProjectRows) -> None:
    """Let the instance have a member that is up, in an allocation that stands: its terminal is there."""
    placed = replace(project_rows, node_id=await project_rows.birth("node"))
    allocation = await placed.subject("allocation", ALLOCATION, AllocationState.ACTIVE)
    placed = replace(placed, allocation_id=allocation.id)
    made = await placed.birth("member", allocation_id=allocation.id)
    subject = LifecycleSubject("member", MEMBER, made, MEMBER.initial)
    for edge in path(MEMBER, MemberState.READY):
        subject = await placed.move(subject, edge)


async def new_terminal(home: "Home") -> str:
    """One more instance, at whose terminal commands run."""
    project_rows = await make_instance_rows(home)
    await at_terminal(project_rows)
    return project_rows.instance_id


async def new_secret(home: "Home", scope: Scope) -> dict[str, str]:
    """The secret that opens one more instance."""
    project_rows = await make_instance_rows(home)
    services = home.world.running.platform.services
    sealed = services.secrets.seal(
        VALUE, id=CLOCK.mint(Prefix.SECRET), tenant_id=project_rows.tenant_id, purpose="runtime_secret"
    )
    place = (project_rows.tenant_id, project_rows.project_id)
    requested = RuntimeSecretSpec(*place, SECRET, "app_access", sealed, instance_id=project_rows.instance_id)
    await apply(project_rows.database, project_rows.acting, context(), store_secret(context(), requested, 0))
    return {"instance_id": project_rows.instance_id, "secret_name": SECRET}


_PARTS = itertools.count(1)


async def new_recording(home: "Home", scope: Scope) -> dict[str, str]:
    """One more recorded session, with one part."""
    project_rows, id = home.project_rows(), CLOCK.mint(Prefix.EXEC_RECORDING)
    recording = ExecRecording(
        id,
        project_rows.tenant_id,
        project_rows.project_id,
        "alc_1",
        "vis_1",
        "usr_1",
        CLOCK.mint(Prefix.CORRELATION),
        CLOCK.now(),
    )
    await exec_recordings.begin(project_rows.database, recording)
    await exec_recordings.add(project_rows.database, recording, next(_PARTS), "{}\n", 3)
    return {"recording_id": id}


async def shared_instance(home: "Home") -> dict[str, object]:
    """One more instance of another project of the tenant, which the tenant's projects attach to."""
    known = await launchable(home)
    standing = replace(
        home.project_rows(), app_id=known["app_id"], version_id=known["version_id"], account_id=known["account_id"]
    )
    return await standing.shared_instance(app_slug=known["slug"], app_category="scheduler")


async def new_attachment(home: "Home", scope: Scope) -> dict[str, str]:
    """One more attachment of the project, which is active."""
    project_rows, around = home.project_rows(), await shared_instance(home)
    made = await project_rows.birth("attachment", **around)
    subject = LifecycleSubject("attachment", ATTACHMENT, made, ATTACHMENT.initial)
    await project_rows.move(subject, path(ATTACHMENT, AttachmentState.ACTIVE)[0])
    return {"attachment_id": made}


async def new_attached_operation(home: "Home", scope: Scope) -> dict[str, str]:
    """One more operation that is for an attachment of the project."""
    project_rows, around = home.project_rows(), await shared_instance(home)
    made = await project_rows.birth("attachment", **around)
    owner = replace(project_rows, project_id=str(around["owning_project_id"]), instance_id=str(around["instance_id"]))
    attachment = {"id": made, "project_id": project_rows.project_id, "account_name": "p-train"}
    return {"attachment_id": made, "operation_id": await owner.birth("operation", request={"attachment": attachment})}


async def new_attached_action(home: "Home", scope: Scope) -> dict[str, str]:
    """An action of an instance that the project is attached to."""
    return await new_attachment(home, scope) | {"action_name": "peek"}


async def a_shared_instance(home: "Home", scope: Scope) -> object:
    """The id of an instance that the project may be attached to."""
    return (await shared_instance(home))["instance_id"]


async def an_app(home: "Home", scope: Scope) -> object:
    """The slug of an app that can be launched."""
    return (await launchable(home))["slug"]


async def a_component(home: "Home", scope: Scope) -> object:
    """The component of every launchable app."""
    return "main"


async def a_placement(home: "Home", scope: Scope) -> object:
    """An allocation that waits for a place, and that nobody is in."""
    return {"allocations": [await home.project_rows().birth("allocation")]}


async def a_low_mark(home: "Home", scope: Scope) -> object:
    """From where on a balance is low; the tenant has paid, so that it may pay in advance."""
    number = next(_RECEIPTS)
    body = {"currency": "EUR", "minor": 10**9, "reference": f"receipt {number}", "reason": "paid by wire"}
    await home.post(Scope.PLATFORM, f"/api/v1/tenants/{home.tenant.id}/payments", body)
    return number
