"""Tasks that adapters make for their own members.

What a task fetches is judged at each making: the digest is one that the instance was pinned to, it is registered in
sight of the project, its evidence proves it under the keys, sources and policy of now. Where it lies, and what opens
that place, is written into the task here; an adapter never handles a registry's name or a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring.commands.catalog.artifact_evaluation import TrustContext, location_of, trust_context
from mooring.commands.fleet.task_blob import inline_artifacts
from mooring.commands.fleet.task_source import trusted_artifacts
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, held, under_correlation
from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact, ArtifactKind
from mooring.core.catalog.artifact_location import SourceType
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.fleet.runtime_secret import SecretGrantRequest, SecretPurpose
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place, Scope
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member_task import (
    FETCH,
    LAUNCH,
    PULL,
    MemberTaskRequest,
    TaskTarget,
    check_ground,
    guards_of,
    named_artifacts,
    require_same,
    roles_of,
    task_request,
)
from mooring.storage.catalog import entitlement as entitlements
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.fleet import task as tasks
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances

GRANT: Final = "secret.grant"
KEPT: Final = frozenset({"destination", "volume", "file", "no_progress_seconds"})
"""What an adapter says of a fetch: where it is put, and how long that may stand still."""
FETCHED_FROM: Final = frozenset({SourceType.OCI, SourceType.HTTPS})


async def make(work: Work[Task], claimed: ClaimRef, operation_id: str | None, request: MemberTaskRequest) -> Answered:
    """Make the task, or answer with the one that was made under this name before."""
    require_grants(work, claimed, request)
    first = [await _ground(work, claimed, operation_id, request)]
    ground = first[0].ground
    work = under_correlation(work, ground.operation or ground.instance)
    wanted = None
    if first[0].earlier is None:
        wanted = await filled(work, ground, request, ArtifactEvaluator(work, ground.instance))

    async def load() -> _TaskContext:
        return first.pop() if first else await _ground(work, claimed, operation_id, request)

    def decide(seen: _TaskContext) -> Decision[Task]:
        if seen.earlier is not None or wanted is None:
            return Decision(require_same(require(seen.earlier, "task"), seen.ground))
        check_ground(seen.ground, request)  # reading what it carries takes its time, and the member may be gone since
        made = make_task(work.context, wanted)
        writes = (guard_of(seen.claim), *guards_of(seen.ground), *made.writes)
        return Decision(made.task, writes, made.events, made.audits)

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _TaskContext:
    """What a task is decided on: the claim, where it goes, and the task that has its name already."""

    claim: InstanceClaim
    ground: TaskTarget
    earlier: Task | None


def require_grants(work: Work[Any], claimed: ClaimRef, request: MemberTaskRequest) -> None:
    """Handing out a secret is an action of its own, beside making the task."""
    place = Place(Scope.RUNTIME, work.acting.tenant_id, claimed.project_id)
    if not request.grants or GRANT in work.authority.at(place):
        return
    raise Refusal(Code.PERMISSION_DENIED, f"{GRANT} is not on this account's list", {"action": GRANT})


async def _ground(
    work: Work[Any], claimed: ClaimRef, operation_id: str | None, request: MemberTaskRequest
) -> _TaskContext:
    database, acting = work.database, work.acting
    claim, instance = await held(work.database, acting, claimed)
    member = require(await instances.find_member(database, acting, claimed.place, request.member_id), "member")
    operation = None
    if operation_id is not None:
        operation = require(await instances.find_operation(database, acting, claimed.place, operation_id), "operation")
    allocation = None
    if member.allocation_id is not None:
        allocation = (await claims.allocations(database, acting, [member.allocation_id])).get(member.allocation_id)
    kept = await runtime_secrets.of_owner(database, acting, claimed.project_id, instance.id) if request.grants else []
    ground = TaskTarget(instance, member, allocation, operation, {each.name: each for each in kept})
    return _TaskContext(claim, ground, await _earlier(work, ground, request))


async def _earlier(work: Work[Any], ground: TaskTarget, request: MemberTaskRequest) -> Task | None:
    operation_id = None if ground.operation is None else ground.operation.id
    named = (operation_id, str(ground.member.allocation_id), request.step)
    return await tasks.find_named(work.database, work.acting, *named)


class ArtifactEvaluator:
    """The measure of one making, of one task or of many: it is read once, and each digest is judged once."""

    def __init__(self, work: Work[Any], instance: Instance) -> None:
        self._work = work
        self._instance = instance
        self._read: tuple[TrustContext, Entitlement | None] | None = None
        self._trusted: dict[str, Artifact] = {}

    async def measure(self) -> TrustContext:
        """Sources, keys and policy of now."""
        return (await self._by())[0]

    async def trusted(self, digests: set[str]) -> dict[str, Artifact]:
        """The artifact of each of these digests; a Refusal for the first that may not be used."""
        measure, entitled = await self._by()
        if unknown := digests - set(self._trusted):
            self._trusted |= await trusted_artifacts(
                self._work.services,
                self._work.acting,
                measure,
                unknown,
                project_id=self._instance.project_id,
                entitlement=entitled,
            )
        return {each: self._trusted[each] for each in digests}

    async def _by(self) -> tuple[TrustContext, Entitlement | None]:
        if self._read is None:
            work, project_id, app_id = self._work, self._instance.project_id, self._instance.app_id
            entitled = await entitlements.of_apps(work.database, work.acting, project_id, [app_id])
            self._read = await trust_context(work.services, work.acting, project_id), entitled.get(app_id)
        return self._read


async def filled(
    work: Work[Any], ground: TaskTarget, request: MemberTaskRequest, judging: ArtifactEvaluator
) -> TaskRequest:
    """The task with all that an adapter leaves to the platform."""
    plain = task_request(ground, request, work.context.actor.id)
    named = named_artifacts(ground, request)
    if not named:
        return plain
    services, acting = work.services, work.acting
    measure = await judging.measure()
    trusted = await judging.trusted({each.digest for each in named})
    if request.type == LAUNCH:
        image = _image(services, measure, trusted[named[0].digest], plain.arguments["image"])
        filled = replace(plain, arguments={**plain.arguments, "image": image})
        return _opened(services, filled, trusted[named[0].digest])
    if request.type == FETCH:
        filled = replace(plain, arguments=_fetch(services, measure, trusted[named[0].digest], plain.arguments))
        return _opened(services, filled, trusted[named[0].digest])
    by_role = {role: trusted[digest] for role, digest in roles_of(ground).items() if digest in trusted}
    return await inline_artifacts(services, acting, plain, by_role)


def _place(services: Services, artifact: Artifact) -> tuple[str, str]:
    """The registry's address and the repository of an artifact that lies in one."""
    location, own = location_of(artifact), services.artifacts.own
    authority, _, repository = location.rest.partition("/")
    return own.url.rstrip("/") if own is not None and services.artifacts.is_own(
        location
    ) else f"https://{authority}", repository


def _is_private(measure: TrustContext, artifact: Artifact) -> bool:
    _, source = measure.source(location_of(artifact), (artifact.tenant_id, artifact.project_id))
    return source is None or (source.tenant_id is None and source.reaches_private)


def _image(services: Services, measure: TrustContext, artifact: Artifact, asked: Mapping[str, Any]) -> dict[str, Any]:
    if artifact.source_type != SourceType.OCI or artifact.kind != ArtifactKind.OCI:
        raise Refusal(Code.VALIDATION_FAILED, "arguments/image: this artifact is no image", {"path": "arguments/image"})
    registry, repository = _place(services, artifact)
    return {
        "registry": registry,
        "repository": repository,
        "digest": artifact.digest,
        "private": _is_private(measure, artifact),
        **({"secret": PULL} if services.artifacts.is_own(location_of(artifact)) else {}),
    }


def _fetch(services: Services, measure: TrustContext, artifact: Artifact, asked: Mapping[str, Any]) -> dict[str, Any]:
    location = location_of(artifact)
    if location.source_type not in FETCHED_FROM:
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"a node fetches nothing from {location.source_type}: write a small file with files.write, by its role",
            {"digest": artifact.digest},
        )
    source = location.text
    if location.source_type is SourceType.OCI:
        registry, repository = _place(services, artifact)
        source = f"{registry}/v2/{repository}"
        if artifact.kind == ArtifactKind.BLOB:
            source = f"{source}/blobs/{artifact.digest}"
    kept = {name: value for name, value in asked.items() if name in KEPT}
    return {
        **kept,
        "kind": artifact.kind,
        "digest": artifact.digest,
        "size": artifact.size_bytes,
        "source": source,
        "private": _is_private(measure, artifact),
        **({"secret": PULL} if services.artifacts.is_own(location) else {}),
    }


def _opened(services: Services, request: TaskRequest, artifact: Artifact) -> TaskRequest:
    """What lies in the platform's own registry is opened by a token that is made when the task is claimed."""
    location = location_of(artifact)
    if not services.artifacts.is_own(location):
        return request
    grant = SecretGrantRequest(PULL, SecretPurpose.ARTIFACT_PULL.value, repository=location.rest.partition("/")[2])
    return replace(request, grants=(*request.grants, grant))
