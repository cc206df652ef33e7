"""Endpoints for instances: planning, launching, reading, and changing existing ones."""

from mooring.api.page import AFTER_ALL, Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.runtime.instance import (
    ClosingRecordView,
    InstanceQuery,
    InstanceView,
    OperationView,
    RepairInstance,
    RevealedSecretView,
    UpdateInstance,
    UpgradeInstance,
)
from mooring.api.schemas.runtime.instance_view import (
    InstanceSurroundings,
    closing_record_view,
    instance_view,
    operation_view,
)
from mooring.api.schemas.runtime.launch import CreateInstance, PlanInstance, PlanView, launch_request, plan_view
from mooring.api.wait import WaitQuery, waited
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import instance as commands
from mooring.commands.runtime import secret_reveal
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope, categories_of
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.instance import Instance, InstanceRef
from mooring.core.runtime.instance_launch import LaunchedInstance
from mooring.core.runtime.operation import Operation
from mooring.storage.runtime import instance as instances

PLACES = (Scope.PROJECT,)
PATH = "/app-instances"
ONE = PATH + "/{instance_id}"
USE_SECRET = "project_secret.use"
REFUSED = (
    Code.ADAPTER_MISSING, Code.ALLOCATION_IN_USE, Code.ARTIFACT_REVOKED, Code.ARTIFACT_UNVERIFIED,
    Code.BALANCE_TOO_LOW, Code.BUDGET_EXCEEDED, Code.CIRCUIT_OPEN, Code.INCOMPATIBLE, Code.LIMIT_REACHED,
    Code.MODE_NOT_OFFERED, Code.NAME_TAKEN, Code.NOT_ENTITLED, Code.POLICY_DENIED, Code.QUOTA_EXCEEDED,
    Code.SIGNATURE_MISSING, Code.SOURCE_DENIED, Code.VERSION_DEPRECATED, Code.VERSION_NOT_OFFERED,
)  # fmt: skip
CHANGED = (Code.ILLEGAL_TRANSITION, Code.NOT_SUPPORTED, Code.OPERATION_IN_PROGRESS)
UNTRUSTED = (
    Code.ARTIFACT_NOT_FOUND_AT_SOURCE, Code.ARTIFACT_REVOKED, Code.ARTIFACT_UNVERIFIED, Code.DIGEST_MISMATCH,
    Code.SIGNATURE_INVALID, Code.SIGNATURE_KEY_UNKNOWN, Code.SIGNATURE_MISSING, Code.SIGNATURE_REPLAYED,
    Code.SOURCE_DENIED,
)  # fmt: skip
"""Why an artifact that the instance runs must not be used any more."""


def at(request: RequestContext, instance_id: str) -> InstanceRef:
    """The instance that a request names."""
    return InstanceRef(str(request.place.project_id), instance_id)


def operation_work(request: RequestContext) -> Work[Operation]:
    """Work whose response is an operation."""
    return request.work(lambda made: operation_view(request.caller, made))


async def shown(request: RequestContext, rows: list[Instance]) -> dict[str, InstanceView]:
    """Instance id → its view, with its members, open operations and holder."""
    database, ids = request.services.database, [each.id for each in rows]
    members = await instances.members_of(database, request.acting, ids)
    operations = await instances.open_operations(database, request.acting, ids)
    claims = await instances.claims(database, request.acting, ids)
    now = request.services.clock.now()
    return {
        each.id: instance_view(
            request.caller.authority,
            each,
            InstanceSurroundings(members[each.id], operations[each.id], claims.get(each.id), now),
        )
        for each in rows
    }


@route_in(
    PLACES,
    "POST",
    PATH + ":plan",
    RouteSpec("instance", "plan", "instance.create", answer=PlanView, read_only=True, family=True, also=(USE_SECRET,)),
)
async def plan_instance(request: RequestContext, body: PlanInstance) -> PlanView:
    """Evaluate a launch without launching.

    The plan says which version would run, which shapes fit or the smallest change that would help, the price, the
    policy layer that decides, how long earlier launches took, and every refusal; a create would raise the first of
    them.
    """
    if body.secrets:
        request.require_also(USE_SECRET)
    project_id = str(request.place.project_id)
    return plan_view(await commands.plan(request.services, request.acting, project_id, launch_request(body)))


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec(
        "instance", "create", "instance.create", 201, InstanceView, errors=REFUSED, family=True, also=(USE_SECRET,)
    ),
)
async def create_instance(request: RequestContext, body: CreateInstance) -> Answered:
    """Launch an app into existing allocations, or into new capacity that is requested with it."""
    if body.secrets:
        request.require_also(USE_SECRET)
    authority = request.caller.authority

    def view(made: LaunchedInstance) -> InstanceView:
        return instance_view(authority, made.instance, InstanceSurroundings(made.members, (made.operation,)))

    return await commands.create(request.work(view), str(request.place.project_id), launch_request(body))


@route_in(PLACES, "GET", PATH, RouteSpec("instance", "list", "instance.read", answer=Page[InstanceView], family=True))
async def list_instances(request: RequestContext, query: InstanceQuery) -> Page[InstanceView]:
    """List a project's instances, oldest first; stopped ones stay readable."""
    return await _listed(request, query)


@route_in(
    (Scope.TENANT,),
    "GET",
    PATH,
    RouteSpec("instance", "list", "instance.read", answer=Page[InstanceView], family=True),
)
async def list_tenant_instances(request: RequestContext, query: InstanceQuery) -> Page[InstanceView]:
    """List the instances of all projects of a tenant, oldest first; stopped ones stay readable."""
    return await _listed(request, query)


async def _listed(request: RequestContext, query: InstanceQuery) -> Page[InstanceView]:
    newest_first = query.sort == "newest"
    criteria = instances.InstanceFilter(
        None if query.status is None else query.status.value,
        query.app,
        categories_of(request.caller.authority, request.place, "instance.read"),
        prefix=query.q,
        health=query.health,
        needs_attention=query.needs_attention,
        allocation_id=query.allocation_id,
        newest_first=newest_first,
    )
    name = "instance_newest" if newest_first else "instance"  # a cursor of one order means nothing in the other
    window = page_window(query, name, AFTER_ALL if newest_first else "")
    rows = await instances.page(request.services.database, request.acting, request.place, criteria, window)
    views = await shown(request, rows[: query.limit])
    return page(rows, query, name, lambda row: views[row.id])


@route_in(PLACES, "GET", ONE, RouteSpec("instance", "get", "instance.read", answer=InstanceView, family=True))
async def get_instance(request: RequestContext, instance_id: str, query: WaitQuery) -> InstanceView:
    """Read an instance: its state, its health, a summary of its members, its open operation, and its endpoints."""

    async def read() -> InstanceView:
        row = await commands.find(request.services, request.acting, at(request, instance_id))
        return (await shown(request, [row]))[row.id]

    return await waited(request, query, instance_id, read)


@route_in(
    PLACES,
    "POST",
    ONE + "/stop",
    RouteSpec("instance", "stop", "instance.delete", 202, OperationView, errors=CHANGED, family=True),
)
async def stop_instance(request: RequestContext, instance_id: str) -> Answered:
    """Stop an instance for good; repeating it returns the same operation.

    All other open operations are cancelled. The instance is `stopped` when each of its members has a closing record.
    """
    return await commands.stop(operation_work(request), at(request, instance_id))


@route_in(
    PLACES,
    "DELETE",
    ONE,
    RouteSpec("instance", "delete", "instance.delete", 202, OperationView, errors=CHANGED, family=True),
)
async def delete_instance(request: RequestContext, instance_id: str) -> Answered:
    """Stop an instance for good: the same as `stop`."""
    return await commands.stop(operation_work(request), at(request, instance_id))


@route_in(
    PLACES,
    "POST",
    ONE + "/upgrade",
    RouteSpec(
        "instance",
        "upgrade",
        "instance.update",
        202,
        OperationView,
        errors=(*CHANGED, *REFUSED, Code.CONFLICT),
        family=True,
    ),
)
async def upgrade_instance(request: RequestContext, instance_id: str, body: UpgradeInstance) -> Answered:
    """Change to another version, by its number or by a channel.

    The pin moves when the upgrade succeeds. If it fails, the pin stays, and each member shows the version that it runs:
    upgrade again, or roll back.
    """
    if body.version is not None and body.channel is not None:
        raise invalid("channel", "not allowed together with a version")
    channel = None if body.channel is None else body.channel.value
    return await commands.upgrade(operation_work(request), at(request, instance_id), body.version, channel)


@route_in(
    PLACES,
    "POST",
    ONE + "/rollback",
    RouteSpec(
        "instance",
        "rollback",
        "instance.update",
        202,
        OperationView,
        errors=(*CHANGED, *UNTRUSTED, Code.ROLLBACK_UNAVAILABLE),
        family=True,
    ),
)
async def rollback_instance(request: RequestContext, instance_id: str) -> Answered:
    """Change back to the previous version, by the same digests."""
    return await commands.rollback(operation_work(request), at(request, instance_id))


@route_in(
    PLACES,
    "POST",
    ONE + "/reconcile",
    RouteSpec(
        "instance", "reconcile", "instance.update", 202, OperationView, errors=(*CHANGED, *UNTRUSTED), family=True
    ),
)
async def reconcile_instance(request: RequestContext, instance_id: str) -> Answered:
    """Let the adapter compare actual with desired state and correct the difference."""
    return await commands.reconcile(operation_work(request), at(request, instance_id))


@route_in(
    PLACES,
    "PATCH",
    ONE,
    RouteSpec("instance", "update", "instance.update", 202, OperationView, errors=(*CHANGED, *UNTRUSTED), family=True),
)
async def update_instance(request: RequestContext, instance_id: str, body: UpdateInstance) -> Answered:
    """Change the configuration of a running instance.

    The adapter reloads, restarts, or refuses with the reason; until it has succeeded, the old configuration stays.
    """
    return await commands.update(operation_work(request), at(request, instance_id), body.config)


@route_in(
    PLACES,
    "POST",
    ONE + "/repair",
    RouteSpec("instance", "repair", "instance.update", 202, OperationView, errors=(*CHANGED, *UNTRUSTED), family=True),
)
async def repair_instance(request: RequestContext, instance_id: str, body: RepairInstance) -> Answered:
    """Let the adapter rebuild what is broken: everything, the control plane, or one member."""
    return await commands.repair(operation_work(request), at(request, instance_id), body.scope, body.member_id)


@route_in(
    PLACES,
    "POST",
    ONE + "/restart",
    RouteSpec("instance", "restart", "instance.update", 202, OperationView, errors=(*CHANGED, *UNTRUSTED), family=True),
)
async def restart_instance(request: RequestContext, instance_id: str) -> Answered:
    """Restart with the same version, if the manifest allows it; otherwise `details.instead` names the alternative."""
    return await commands.restart(operation_work(request), at(request, instance_id))


@route_in(
    PLACES,
    "GET",
    ONE + "/closing-records",
    RouteSpec("closing_record", "list", "instance.read", answer=Page[ClosingRecordView], family=True),
)
async def list_closing_records(request: RequestContext, instance_id: str, query: PageQuery) -> Page[ClosingRecordView]:
    """List the proof that each member is gone: a receipt, that nothing was started, or a write-off."""
    ref, window = at(request, instance_id), page_window(query, "closing_record")
    await commands.find(request.services, request.acting, ref)
    rows = await instances.closing_records(request.services.database, request.acting, ref, window)
    return page(rows, query, "closing_record", closing_record_view)


@route_in(
    PLACES,
    "POST",
    ONE + "/secrets/{secret_name}/reveal",
    RouteSpec("instance", "reveal", "instance.connect", answer=RevealedSecretView, one_time_secret=True),
)
async def reveal_instance_secret(request: RequestContext, instance_id: str, secret_name: str) -> Answered:
    """Show the secret that gives access to the app, such as its token; the audit trail records it."""
    work: Work[secret_reveal.RevealedSecret] = request.work(
        lambda revealed: RevealedSecretView(name=revealed.name, value=revealed.value)
    )
    return await secret_reveal.reveal(work, at(request, instance_id), secret_name)
