"""Which sources a task may fetch from: only those that the source lists allow.

The creator of a task names the registry or the URL, and a node of the platform connects to it from inside the
platform's network. So the location is checked against the same lists as an artifact's. The digest must also belong to
an artifact that the project can see and that is trusted now, because a node serves from its cache whatever has the
digest, even if another tenant had it fetched. Private networks and plain http are only for the platform's own registry
and for sources that the platform allows by name. The task tells its node about that; otherwise the node connects only
to public addresses.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mooring.commands.catalog.artifact_evaluation import TrustContext, evaluate_under, trust_context
from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_location import Location, read_location
from mooring.core.catalog.artifact_trust import trust_of_digests
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.fleet.task_creation import TaskRequest
from mooring.core.fleet.task_family import FAMILIES, argument_findings
from mooring.core.kernel.address import DEFAULT_PORT, Reach, Target, read_url, refused_because
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.validation import invalid
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting

LAUNCH: Final = "container.launch"
FETCH: Final = "artifact.fetch"
PRIVATE: Final = "private"
"""The argument that lets a node connect to private networks; only the platform sets it."""


async def within_sources(services: Services, acting: Acting, request: TaskRequest) -> TaskRequest:
    """Check that the task may fetch what it names, and set whether its node may use private networks for it."""
    if request.type not in (LAUNCH, FETCH) or argument_findings(FAMILIES[request.type], request.arguments):
        return request  # it fetches nothing, or its creation will be refused anyway
    target, location = _named(request.type, request.arguments)
    measure = await trust_context(services, acting, request.project_id)
    private = _is_private(measure, location, request)
    if not private:
        _check_public(target)
    image = request.arguments["image"] if request.type == LAUNCH else request.arguments
    await trusted_artifacts(services, acting, measure, {image["digest"]}, project_id=request.project_id)
    return replace(request, arguments=_with(request.type, request.arguments, private=private))


async def trusted_artifacts(
    services: Services,
    acting: Acting,
    measure: TrustContext,
    digests: set[str],
    *,
    project_id: str,
    entitlement: Entitlement | None = None,
) -> dict[str, Artifact]:
    """The artifact of each digest; a Refusal for the first that may not be used now.

    An entitlement narrows the project's policy.
    """
    registered = await artifacts.find_many(services.database, acting, sorted(digests), project_id)
    found = trust_of_digests(await evaluate_under(services, acting, measure, entitlement, registered))
    for digest in sorted(digests):
        if digest not in found:
            raise Refusal(
                Code.ARTIFACT_NOT_REGISTERED,
                f"the project sees no registered artifact with the digest {digest}",
                {"digest": digest},
            )
        artifact, trust = found[digest]
        if (refusal := trust.refusal(artifact)) is not None:
            raise refusal
    return {digest: artifact for digest, (artifact, _) in found.items()}


def _named(type_: str, arguments: Mapping[str, Any]) -> tuple[Target, Location]:
    if type_ == LAUNCH:
        path, image = "arguments/image", arguments["image"]
        return _repository(image["registry"], image["repository"], path)
    path, source = "arguments/source", str(arguments["source"])
    if arguments["kind"] == "oci":
        registry, _, repository = source.rpartition("/v2/")
        return _repository(registry, repository, path)
    target = read_url(source, path)
    return target, read_location(f"https://{_authority(target)}{target.path.partition('?')[0]}", path)


def _repository(registry: str, repository: str, path: str) -> tuple[Target, Location]:
    target = read_url(registry, path)
    if target.path != "/":
        raise invalid(path, "a registry without a path")
    return target, read_location(f"oci://{_authority(target)}/{repository}", path)


def _authority(target: Target) -> str:
    """Lists assume https, so plain http is written with its port."""
    bare = target.scheme == "http" and target.port == DEFAULT_PORT["http"]
    return f"{target.authority}:{target.port}" if bare else target.authority


def _is_private(measure: TrustContext, location: Location, request: TaskRequest) -> bool:
    for owner in ((request.tenant_id, request.project_id), (request.tenant_id, None), (None, None)):
        allowed, source = measure.source(location, owner)
        if allowed:
            return source is None or (source.tenant_id is None and source.reaches_private)
    raise Refusal(Code.SOURCE_DENIED, f"no source on the list names {location.text}", {"location": location.text})


def _check_public(target: Target) -> None:
    because = None if target.literal is None else refused_because(target.literal, Reach(), target.scheme)
    if target.scheme != "https":
        because = "not allowed without TLS"
    if because is not None:
        raise Refusal(Code.SOURCE_DENIED, f"{target.authority} is {because}", {"location": target.authority})


def _with(type_: str, arguments: Mapping[str, Any], *, private: bool) -> dict[str, Any]:
    if type_ == LAUNCH:
        return {**arguments, "image": {**arguments["image"], PRIVATE: private}}
    return {**arguments, PRIVATE: private}
