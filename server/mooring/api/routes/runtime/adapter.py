"""Endpoints for adapters: claims, reports under them, and tasks for the nodes of their members.

They act in the one project of the calling service account, and take no Idempotency-Key: a fence or a name makes each of
them safe to repeat.
"""

from functools import partial

from mooring.api.guess_limits import GuessKind
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
from mooring.core.kernel.errors import Code
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
"""Why a digest is not given to a node."""


@route(
    "POST",
    ACCOUNTS,
    Scope.PUBLIC,
    RouteSpec("runtime", "accounts", PUBLIC_ACTION, answer=AdapterAccounts, errors=(Code.ASSERTION_REFUSED,)),
)
async def find_runtime_accounts(request: RequestContext, body: FindAccounts) -> AdapterAccounts:
    """Find the service accounts that a key opens, so that an adapter of many projects learns its accounts.

    The assertion is a JWT as for a token, with `iss` and `sub` both `key:<the public key in base64url>`, any `kid`, and
    `aud` the URL of this endpoint. It is signed with that key.
    """
    audiences = tuple(f"{address}/api/v1{ACCOUNTS}" for address in request.tools.addresses)
    listed = await accounts_of_key(
        request.services,
        request.context,
        body.assertion,
        audiences,
        request.origin,
        after=body.after or "",
        guessed=partial(request.tools.guesses.wrong, GuessKind.ASSERTION, request.origin.remote_address),
    )
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
    """Wait for instances: one request renews all held claims, claims what is offered, and returns changes.

    An instance is offered when it has an open operation in the adapter's phase, or when it runs and nobody watches it.
    The response comes early with a claim, a change or a loss. Without `after` every held instance counts as changed.
    """
    settings = request.services.settings
    poll = ClaimPoll(
        requester=_requester(request, body.holder),
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
    """Release claims at a clean shutdown, so that another holder need not wait for the leases to expire."""
    released = await request.tools.claims.release(_requester(request, body.holder), held_of(body.held))
    return ReleasedInstances(released=released)


@route("GET", ONE, Scope.RUNTIME, RouteSpec("runtime", "get", "runtime.claim", answer=RuntimeWhole, errors=FENCED))
async def get_runtime_instance(request: RequestContext, instance_id: str, query: FenceQuery) -> RuntimeWhole:
    """Read a held instance with everything that its adapter needs to continue: manifest, members, open operations,
    their tasks.

    All of it except the nodes is read at one moment, so an operation never appears without what was written together
    with it.
    """
    ref = claim_ref(request, instance_id, query.fence)
    return runtime_whole(await commands.load_for_adapter(request.services, request.acting, ref))


@route(
    "POST",
    ONE + "/reports",
    Scope.RUNTIME,
    RouteSpec("runtime", "report", "runtime.report", answer=Reported, errors=DECIDED),
)
async def report_instance(request: RequestContext, instance_id: str, body: MakeReport) -> Answered:
    """Report what was observed: steps of an operation, members, endpoints, health; all of it or nothing.

    What is already stored is accepted and writes nothing.
    """
    ref = claim_ref(request, instance_id, body.fence)
    work: Work[Instance] = request.work(lambda instance: Reported(etag=instance_etag(instance)))
    return await commands.report(work, ref, body.operation_id, report_of(body))


@route(
    "POST",
    ONE + "/operations/{operation_id}/finish",
    Scope.RUNTIME,
    RouteSpec("runtime", "finish", "runtime.report", answer=FinishedOperation, errors=DECIDED),
)
async def finish_runtime_operation(
    request: RequestContext, instance_id: str, operation_id: str, body: FinishOperation
) -> Answered:
    """End an operation with evidence, or with a failure that has a code and the last log lines.

    A launch succeeds when every component has its minimum of members, a drain when the members were observed idle. A
    teardown passes to the platform, which completes and verifies it. Repeating the same end is accepted.
    """
    ref = claim_ref(request, instance_id, body.fence)
    return await commands.finish(request.work(finished_operation), ref, operation_id, ending_of(body))


@route(
    "POST",
    ONE + "/tasks",
    Scope.RUNTIME,
    RouteSpec(
        "runtime",
        "make_task",
        "task.create",
        answer=RuntimeTask,
        errors=(Code.LEASE_LOST, Code.CONFLICT, Code.NAME_TAKEN, Code.TOO_MANY_OPEN_TASKS, *TRUST),
        also=(member_task.GRANT,),
    ),
)
async def make_member_task(request: RequestContext, instance_id: str, body: MakeMemberTask) -> Answered:
    """Create a task on the node of a member; operation and step name it, and it is created only once.

    Name an image by `{"artifact": "<role>"}` or `{"digest": "sha256:…"}`; the platform fills in registry, repository
    and credentials. Every digest is evaluated again each time.
    """
    ref = claim_ref(request, instance_id, body.fence)
    return await member_task.make(request.work(runtime_task), ref, body.operation_id, task_request_of(body))


@route(
    "POST",
    ONE + "/tasks:batch",
    Scope.RUNTIME,
    RouteSpec("runtime", "make_tasks", "task.create", answer=MadeTasks, errors=FENCED, also=(member_task.GRANT,)),
)
async def make_member_tasks(request: RequestContext, instance_id: str, body: MakeMemberTasks) -> Answered:
    """Create several tasks at once, each as `make_member_task` would; a refused one does not affect the others.

    The response has the outcome of each: its task, or the code and detail of its refusal. A node runs the tasks of one
    member in their order.
    """
    ref = claim_ref(request, instance_id, body.fence)
    requests = [task_request_of(each) for each in body.tasks]
    return await make_many(request.work(made_tasks), ref, body.operation_id, requests)


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
    ref = claim_ref(request, instance_id, query.fence)

    async def read() -> RuntimeTask:
        await commands.require_claim(request.services.database, request.acting, ref)
        row = await claims.find_task(
            request.services.database, request.acting, ref.project_id, ref.instance_id, task_id
        )
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
    """Store a secret for the instance, with a given value or a generated one; the value is never returned here.

    If the name is already used, that secret is returned and nothing changes.
    """
    ref = claim_ref(request, instance_id, body.fence)
    spec = adapter_secret.SecretSpec(body.name, body.purpose, body.value, body.generate_bytes)
    work: Work[adapter_secret.StoredSecret] = request.work(
        lambda stored: KeptSecret(name=stored.secret.name, purpose=stored.secret.purpose, created=stored.created)
    )
    return await adapter_secret.store(work, ref, spec)


def _requester(request: RequestContext, holder: str) -> ClaimRequester:
    place = request.place
    return ClaimRequester(request.caller.actor.id, str(place.tenant_id), str(place.project_id), holder)


def claim_ref(request: RequestContext, instance_id: str, fence: int) -> ClaimRef:
    """The claim under which an adapter acts."""
    return ClaimRef(request.caller.actor.id, str(request.place.project_id), instance_id, fence)
