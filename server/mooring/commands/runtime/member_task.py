"""Tasks that adapters create for their own members.

What a task fetches is evaluated each time one is created: the instance must be pinned to the digest, the artifact must
be registered and visible to the project, and its evidence must prove it under the current keys, sources and policy. The
platform writes the location and the credentials into the task here; an adapter never handles a registry's name or a
token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring.commands.catalog.artifact_evaluation import TrustContext, location_of, trust_context
from mooring.commands.fleet.task_blob import inline_artifacts
from mooring.commands.fleet.task_source import trusted_artifacts
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, require_claim, under_correlation
from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact, ArtifactKind
from mooring.core.catalog.artifact_location import ArtifactSource, SourceType
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.fleet.runtime_secret import SecretGrantRequest, SecretPurpose
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import TaskRequest, check_room, make_task
from mooring.core.identity.project_secret import ProjectSecret
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place, Scope
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member_task import (
    FETCH,
    LAUNCH,
    PULL,
    STARTS_PROGRAM,
    MemberTaskRequest,
    TaskTarget,
    check_target,
    guards_of,
    named_artifacts,
    require_same,
    roles_of,
    task_request,
)
from mooring.storage.catalog import entitlement as entitlements
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.fleet import task as tasks
from mooring.storage.identity import project_secret as project_secrets
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances

GRANT: Final = "secret.grant"
FETCH_ARGUMENTS: Final = frozenset({"destination", "volume", "file", "no_progress_seconds"})
"""The arguments of a fetch that an adapter sets: the destination, and how long it may make no progress."""
FETCHED_FROM: Final = frozenset({SourceType.OCI, SourceType.HTTPS})


async def make(work: Work[Task], ref: ClaimRef, operation_id: str | None, request: MemberTaskRequest) -> Answered:
    """Create the task, or return the one that was created under this name before."""
    require_grants(work, ref, request)
    with work.services.open_tasks.reserve(ref.project_id, 1) as reserved:
        return await _make(work, ref, operation_id, request, reserved=reserved)


async def _make(
    work: Work[Task], ref: ClaimRef, operation_id: str | None, request: MemberTaskRequest, *, reserved: int
) -> Answered:
    first = [await _load(work, ref, operation_id, request)]
    target = first[0].target
    work = work if target.operation is None else under_correlation(work, target.operation)
    new_request = None
    if first[0].earlier is None:
        new_request = await complete_request(work, target, request, ArtifactEvaluator(work, target.instance))

    async def load() -> _TaskContext:
        return first.pop() if first else await _load(work, ref, operation_id, request)

    def decide(current: _TaskContext) -> Decision[Task]:
        if current.earlier is not None or new_request is None:
            return Decision(require_same(require(current.earlier, "task"), current.target))
        check_target(current.target, request)  # evaluating artifacts takes a while, and the member may be gone by now
        check_room(current.open_count + reserved, work.services.settings.open_tasks_per_project_max)
        made = make_task(work.context, new_request)
        writes = (guard_of(current.claim), *guards_of(current.target), *made.writes)
        return Decision(made.task, writes, made.events, made.audits, traceless=made.task.is_quiet)

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _TaskContext:
    """The facts on which a task is decided: the claim, its target, and an earlier task of the same name."""

    claim: InstanceClaim
    target: TaskTarget
    earlier: Task | None
    open_count: int


def require_grants(work: Work[Any], ref: ClaimRef, request: MemberTaskRequest) -> None:
    """Refuse to grant secrets without the action for it, which is separate from creating tasks."""
    place = Place(Scope.RUNTIME, work.acting.tenant_id, ref.project_id)
    if not request.grants or GRANT in work.authority.at(place):
        return
    raise Refusal(Code.PERMISSION_DENIED, f"this account does not have {GRANT}", {"action": GRANT})


async def _load(work: Work[Any], ref: ClaimRef, operation_id: str | None, request: MemberTaskRequest) -> _TaskContext:
    database, acting = work.database, work.acting
    claim, instance = await require_claim(work.database, acting, ref)
    member = require(await instances.find_member(database, acting, ref.instance, request.member_id), "member")
    operation = None
    if operation_id is not None:
        operation = require(await instances.find_operation(database, acting, ref.instance, operation_id), "operation")
    allocation = None
    if member.allocation_id is not None:
        allocation = (await claims.allocations(database, acting, [member.allocation_id])).get(member.allocation_id)
    secrets = await runtime_secrets.of_owner(database, acting, ref.project_id, instance.id) if request.grants else []
    launched_with = await launch_secrets(work, instance, [request])
    by_name = {each.name: each for each in secrets}
    target = TaskTarget(instance, member, allocation, operation, by_name, launched_with)
    return _TaskContext(claim, target, await _earlier(work, target, request), await count_open(work, ref))


async def launch_secrets(
    work: Work[Any], instance: Instance, requests: Sequence[MemberTaskRequest]
) -> dict[str, ProjectSecret]:
    """The secrets of the project that the launch names, if one of these tasks starts a program."""
    if not instance.secrets or not any(each.type in STARTS_PROGRAM for each in requests):
        return {}
    names = list(instance.secrets.values())
    return await project_secrets.find_named(work.database, work.acting, instance.project_id, names)


async def count_open(work: Work[Any], ref: ClaimRef) -> int:
    """How many tasks of the project are open, as far as that matters for the limit."""
    limit = work.services.settings.open_tasks_per_project_max
    return await tasks.count_open(work.database, work.acting, ref.project_id, limit)


async def _earlier(work: Work[Any], target: TaskTarget, request: MemberTaskRequest) -> Task | None:
    operation_id = None if target.operation is None else target.operation.id
    key = (operation_id, str(target.member.allocation_id), request.step)
    return await tasks.find_named(work.database, work.acting, *key)


class ArtifactEvaluator:
    """Evaluates artifacts for one request of one or many tasks: reads the trust context once, and each digest once."""

    def __init__(self, work: Work[Any], instance: Instance) -> None:
        self._work = work
        self._instance = instance
        self._read: tuple[TrustContext, Entitlement | None] | None = None
        self._trusted: dict[str, Artifact] = {}
        self._logins: dict[tuple[str, str], bool] = {}

    async def context(self) -> TrustContext:
        return (await self._by())[0]

    async def trusted(self, digests: set[str]) -> dict[str, Artifact]:
        """The artifact of each digest; raises a Refusal for the first that must not be used."""
        trust_context_, entitled = await self._by()
        if unknown := digests - set(self._trusted):
            self._trusted |= await trusted_artifacts(
                self._work.services,
                self._work.acting,
                trust_context_,
                unknown,
                project_id=self._instance.project_id,
                entitlement=entitled,
            )
        return {each: self._trusted[each] for each in digests}

    async def needs_login(self, source: ArtifactSource, repository: str) -> bool:
        """Whether a private registry asks for its credential; a Refusal when it does not accept it."""
        key = (source.id, repository)
        if key not in self._logins:
            header = await self._work.services.artifacts.pull_authorization(source, repository)
            self._logins[key] = header is not None
        return self._logins[key]

    async def _by(self) -> tuple[TrustContext, Entitlement | None]:
        if self._read is None:
            work, project_id, app_id = self._work, self._instance.project_id, self._instance.app_id
            entitled = await entitlements.of_apps(work.database, work.acting, project_id, [app_id])
            self._read = await trust_context(work.services, work.acting, project_id), entitled.get(app_id)
        return self._read


async def complete_request(
    work: Work[Any], target: TaskTarget, request: MemberTaskRequest, evaluator: ArtifactEvaluator
) -> TaskRequest:
    """The task request with everything that the platform fills in for an adapter."""
    plain = task_request(target, request, work.context.actor.id)
    named = named_artifacts(target, request)
    if not named:
        return plain
    services, acting = work.services, work.acting
    trust_context_ = await evaluator.context()
    trusted = await evaluator.trusted({each.digest for each in named})
    if request.type == LAUNCH:
        image = _image(services, trust_context_, trusted[named[0].digest], plain.arguments["image"])
        completed = replace(plain, arguments={**plain.arguments, "image": image})
        return await _opened(services, evaluator, completed, trusted[named[0].digest])
    if request.type == FETCH:
        completed = replace(
            plain, arguments=_fetch(services, trust_context_, trusted[named[0].digest], plain.arguments)
        )
        return await _opened(services, evaluator, completed, trusted[named[0].digest])
    by_role = {role: trusted[digest] for role, digest in roles_of(target).items() if digest in trusted}
    return await inline_artifacts(services, acting, plain, by_role)


def _registry_location(services: Services, artifact: Artifact) -> tuple[str, str]:
    """The registry's URL and the repository of an artifact that lies in a registry."""
    location, own = location_of(artifact), services.artifacts.own
    authority, _, repository = location.rest.partition("/")
    return own.url.rstrip("/") if own is not None and services.artifacts.is_own(
        location
    ) else f"https://{authority}", repository


def _source(trust_context_: TrustContext, artifact: Artifact) -> ArtifactSource | None:
    return trust_context_.source(location_of(artifact), (artifact.tenant_id, artifact.project_id))[1]


def _is_private(trust_context_: TrustContext, artifact: Artifact) -> bool:
    source = _source(trust_context_, artifact)
    return source is None or (source.tenant_id is None and source.reaches_private)


def _image(
    services: Services, trust_context_: TrustContext, artifact: Artifact, requested: Mapping[str, Any]
) -> dict[str, Any]:
    if artifact.source_type != SourceType.OCI or artifact.kind != ArtifactKind.OCI:
        raise Refusal(
            Code.VALIDATION_FAILED, "arguments/image: this artifact is not an image", {"path": "arguments/image"}
        )
    registry, repository = _registry_location(services, artifact)
    return {
        "registry": registry,
        "repository": repository,
        "digest": artifact.digest,
        "private": _is_private(trust_context_, artifact),
    }


def _fetch(
    services: Services, trust_context_: TrustContext, artifact: Artifact, requested: Mapping[str, Any]
) -> dict[str, Any]:
    location = location_of(artifact)
    if location.source_type not in FETCHED_FROM:
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"nodes cannot fetch from {location.source_type}: write a small file with files.write, by its role",
            {"digest": artifact.digest},
        )
    source = location.text
    if location.source_type is SourceType.OCI:
        registry, repository = _registry_location(services, artifact)
        source = f"{registry}/v2/{repository}"
        if artifact.kind == ArtifactKind.BLOB:
            source = f"{source}/blobs/{artifact.digest}"
    arguments = {name: value for name, value in requested.items() if name in FETCH_ARGUMENTS}
    return {
        **arguments,
        "kind": artifact.kind,
        "digest": artifact.digest,
        "size": artifact.size_bytes,
        "source": source,
        "private": _is_private(trust_context_, artifact),
    }


async def _opened(
    services: Services, evaluator: ArtifactEvaluator, request: TaskRequest, artifact: Artifact
) -> TaskRequest:
    """Grant a pull token for the platform's own registry, or for a tenant's private one.

    The token is created when the task is claimed. A private registry is asked now too, so that a wrong credential is
    refused here with its reason, and not by the node.
    """
    location, source = location_of(artifact), _source(await evaluator.context(), artifact)
    if location.source_type is not SourceType.OCI:
        return request
    repository, purpose = location.rest.partition("/")[2], SecretPurpose.ARTIFACT_PULL.value
    if services.artifacts.is_own(location):
        grant = SecretGrantRequest(PULL, purpose, repository=repository)
    elif source is not None and source.username is not None:
        if not await evaluator.needs_login(source, repository):
            return request
        grant = SecretGrantRequest(PULL, purpose, repository=repository, source_id=source.id)
    else:
        return request
    arguments = {**request.arguments}
    if request.type == LAUNCH:
        arguments["image"] = {**arguments["image"], "secret": PULL}
    else:
        arguments["secret"] = PULL
    return replace(request, arguments=arguments, grants=(*request.grants, grant))
