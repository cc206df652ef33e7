"""Endpoints of adapters: claims, what is reported under them, and what is asked for the nodes of one's own members.

They act in the one project of the service account that calls, and take no Idempotency-Key: a fence, or a name, makes
each of them safe to repeat.
"""

from mooring.api.request_context import RequestContext
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route
from mooring.api.schemas.runtime.adapter import (
    ClaimInstances,
    FenceQuery,
    FindAccounts,
    FinishOperation,
    MakeMemberTask,
    MakeMemberTasks,
    MakeReport,
    MakeSecret,
    MemberTaskQuery,
    ReleaseInstances,
    ending_of,
    held_of,
    report_of,
    task_request_of,
)
from mooring.api.schemas.runtime.adapter_view import (
    AdapterAccount,
    AdapterAccounts,
    ClaimedInstances,
    FinishedOperation,
    KeptSecret,
    MadeTasks,
    ReleasedInstances,
    Reported,
    RuntimeTask,
    RuntimeWhole,
    claimed_instances,
    finished_operation,
    instance_etag,
    made_tasks,
    runtime_task,
    runtime_whole,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity.adapter_account import ACCOUNTS_MAX, accounts_of_key
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.live.claim_broker import ClaimPoll
from mooring.commands.runtime import adapter as commands
from mooring.commands.runtime import adapter_secret, member_task
from mooring.commands.runtime.adapter import ClaimRef
from mooring.commands.runtime.member_task_batch import make_many
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.instance import Instance
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime.claim import ClaimRequester

ACCOUNTS = "/runtime/accounts"
ONE = "/runtime/instances/{instance_id}"
FENCED = (Code.LEASE_LOST,)
DECIDED = (Code.LEASE_LOST, Code.CONFLICT, Code.ILLEGAL_TRANSITION, Code.LIMIT_REACHED)
TRUST = (
    Code.ARTIFACT_NOT_PINNED, Code.ARTIFACT_NOT_REGISTERED, Code.ARTIFACT_UNVERIFIED, Code.ARTIFACT_REVOKED,
    Code.SIGNATURE_MISSING, Code.SIGNATURE_INVALID, Code.SIGNATURE_KEY_UNKNOWN, Code.SIGNATURE_REPLAYED,
    Code.SOURCE_DENIED, Code.DIGEST_MISMATCH, Code.ARTIFACT_NOT_FOUND_AT_SOURCE, Code.NOT_SUPPORTED,
)  # fmt: skip
"""Why a digest is not handed to a node."""


@route(
    "POST",
    ACCOUNTS,
    Scope.PUBLIC,
    RouteSpec("runtime", "accounts", PUBLIC_ACTION, answer=AdapterAccounts, errors=(Code.ASSERTION_REFUSED,)),
)
async def find_runtime_accounts(request: RequestContext, body: FindAccounts) -> AdapterAccounts:
    """Find the service accounts that a key opens: how an adapter of many projects learns of its accounts.

    The assertion is a JWT as for a token, with `iss` and `sub` both `key:<the public key in base64url>`, any `kid`, and
    `aud` this endpoint's address. It is signed with that key.
    """
    who = f"address {request.origin.remote_address}"
    if request.tools.failures.left(who) < 1:
        request.tools.failures.take(who)
    audiences = tuple(f"{address}/api/v1{ACCOUNTS}" for address in request.tools.addresses)
    try:
        listed = await accounts_of_key(
            request.services, request.context, body.assertion, audiences, request.origin, after=body.after or ""
        )
    except Refusal as refusal:
        if refusal.code is Code.ASSERTION_REFUSED:
            request.tools.failures.take(who)
        raise
    return AdapterAccounts(
        accounts=[
            AdapterAccount(
                service_account_id=each.service_account_id,
                project_id=each.project_id,
                key_id=each.key_id,
                apps=each.apps,
            )
            for each in listed
        ],
        next_after=listed[-1].service_account_id if len(listed) == ACCOUNTS_MAX else None,
    )


@route(
    "POST", "/runtime/claims", Scope.RUNTIME, RouteSpec("runtime", "claim", "runtime.claim", answer=ClaimedInstances)
)
async def claim_instances(request: RequestContext, body: ClaimInstances) -> ClaimedInstances:
    """Wait for instances: heartbeat of all that is held, claim of what is offered, and news, in one request.

    An instance is offered when it has an open operation that is the adapter's turn, or when it runs and nobody watches
    it. The answer comes early with a claim, a change or a loss. Without `after` every held instance counts as changed.
    """
    settings = request.services.settings
    poll = ClaimPoll(
        requester=_asking(request, body.holder),
        held=held_of(body.held),
        free=body.free,
        wait_seconds=min(body.wait_seconds, settings.wait_seconds_max),
        after=body.after,
    )
    return claimed_instances(await request.tools.claims.poll(poll, request.gone), settings.adapter_lease_seconds)


@route(
    "POST",
    "/runtime/releases",
    Scope.RUNTIME,
    RouteSpec("runtime", "release", "runtime.claim", answer=ReleasedInstances),
)
async def release_instances(request: RequestContext, body: ReleaseInstances) -> ReleasedInstances:
    """Give claims back at a clean end, so that another holder need not wait for the leases to run out."""
    released = await request.tools.claims.release(_asking(request, body.holder), held_of(body.held))
    return ReleasedInstances(released=released)


@route("GET", ONE, Scope.RUNTIME, RouteSpec("runtime", "get", "runtime.claim", answer=RuntimeWhole, errors=FENCED))
async def get_runtime_instance(request: RequestContext, instance_id: str, query: FenceQuery) -> RuntimeWhole:
    """Read a held instance with all that its adapter goes on from: manifest, members, open operations, their tasks.

    All but what is told of nodes is as it was at one moment: an operation is never shown without what was written with
    it.
    """
    claimed = under(request, instance_id, query.fence)
    return runtime_whole(await commands.whole(request.services, request.acting, claimed))


@route(
    "POST",
    ONE + "/reports",
    Scope.RUNTIME,
    RouteSpec("runtime", "report", "runtime.report", answer=Reported, errors=DECIDED),
)
async def report_instance(request: RequestContext, instance_id: str, body: MakeReport) -> Answered:
    """Report what was observed: steps of an operation, members, endpoints, health; all of it or nothing.

    What is so already is accepted and writes nothing.
    """
    claimed = under(request, instance_id, body.fence)
    work: Work[Instance] = request.work(lambda instance: Reported(etag=instance_etag(instance)))
    return await commands.report(work, claimed, body.operation_id, report_of(body))


@route(
    "POST",
    ONE + "/operations/{operation_id}/finish",
    Scope.RUNTIME,
    RouteSpec("runtime", "finish", "runtime.report", answer=FinishedOperation, errors=DECIDED),
)
async def finish_runtime_operation(
    request: RequestContext, instance_id: str, operation_id: str, body: FinishOperation
) -> Answered:
    """End an operation with evidence, or with a failure that has a code and the last lines.

    A launch succeeds when every component has the members that it needs, a drain when they were observed quiet. What
    tears down goes over to the platform, which closes and verifies. The same end once more is accepted.
    """
    claimed = under(request, instance_id, body.fence)
    return await commands.finish(request.work(finished_operation), claimed, operation_id, ending_of(body))


@route(
    "POST",
    ONE + "/tasks",
    Scope.RUNTIME,
    RouteSpec(
        "runtime",
        "make_task",
        "task.create",
        answer=RuntimeTask,
        errors=(Code.LEASE_LOST, Code.CONFLICT, Code.NAME_TAKEN, *TRUST),
    ),
)
async def make_member_task(request: RequestContext, instance_id: str, body: MakeMemberTask) -> Answered:
    """Have something done on the node of a member; the task is named by operation and step, and made once.

    An image is named by `{"artifact": "<role>"}` or `{"digest": "sha256:…"}`; registry, repository and the secret that
    opens it are filled in. Every digest is judged again at each making.
    """
    claimed = under(request, instance_id, body.fence)
    return await member_task.make(request.work(runtime_task), claimed, body.operation_id, task_request_of(body))


@route(
    "POST",
    ONE + "/tasks:batch",
    Scope.RUNTIME,
    RouteSpec("runtime", "make_tasks", "task.create", answer=MadeTasks, errors=FENCED),
)
async def make_member_tasks(request: RequestContext, instance_id: str, body: MakeMemberTasks) -> Answered:
    """Have several things done at once, each as `make_member_task` would; one that is refused keeps no other back.

    The answer has the outcome of each: its task, or the code and detail of its refusal. A node does those of one member
    in the order in which they stand.
    """
    claimed = under(request, instance_id, body.fence)
    wishes = [task_request_of(each) for each in body.tasks]
    return await make_many(request.work(made_tasks), claimed, body.operation_id, wishes)


@route(
    "GET",
    ONE + "/tasks/{task_id}",
    Scope.RUNTIME,
    RouteSpec("runtime", "get_task", "task.create", answer=RuntimeTask, errors=FENCED),
)
async def get_member_task(
    request: RequestContext, instance_id: str, task_id: str, query: MemberTaskQuery
) -> RuntimeTask:
    """Read a task of a held instance; `?until=succeeded,failed,cancelled,expired` waits for its end."""
    claimed = under(request, instance_id, query.fence)

    async def read() -> RuntimeTask:
        await commands.held(request.services.database, request.acting, claimed)
        row = await claims.find_task(request.services.database, request.acting, *claimed.place, task_id)
        return runtime_task(require(row, "task"))

    waiting = WaitQuery(wait=query.wait, until=query.until, changed_from=query.changed_from)
    return await waited(request, waiting, task_id, read)


@route(
    "POST",
    ONE + "/secrets",
    Scope.RUNTIME,
    RouteSpec(
        "runtime",
        "keep_secret",
        "secret.create",
        answer=KeptSecret,
        errors=(Code.LEASE_LOST, Code.CONFLICT, Code.NAME_TAKEN, Code.LIMIT_REACHED),
    ),
)
async def keep_instance_secret(request: RequestContext, instance_id: str, body: MakeSecret) -> Answered:
    """Keep a secret for the instance, given or made by the platform; its value is never told here.

    Under a name that is there the first one is answered, and nothing changes.
    """
    claimed = under(request, instance_id, body.fence)
    wanted = adapter_secret.SecretSpec(body.name, body.purpose, body.value, body.generate_bytes)
    work: Work[adapter_secret.StoredSecret] = request.work(
        lambda kept: KeptSecret(name=kept.secret.name, purpose=kept.secret.purpose, created=kept.created)
    )
    return await adapter_secret.store(work, claimed, wanted)


def _asking(request: RequestContext, holder: str) -> ClaimRequester:
    place = request.place
    return ClaimRequester(request.caller.actor.id, str(place.tenant_id), str(place.project_id), holder)


def under(request: RequestContext, instance_id: str, fence: int) -> ClaimRef:
    """The claim under which an adapter acts."""
    return ClaimRef(request.caller.actor.id, str(request.place.project_id), instance_id, fence)
