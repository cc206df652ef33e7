"""Small blobs inside a task: a script, a configuration, a program of some kilobytes.

A file of `files.write` may name an artifact by its role instead of its content. The platform reads the bytes from the
source, verifies their digest, and puts them into the task that it signs. So the node needs no access to the source, and
a host without an artifact cache can have the file too. The node fetches larger artifacts itself, with `artifact.fetch`.
"""

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mooring.commands.catalog.artifact_evaluation import location_of, trust_context
from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact, ArtifactKind
from mooring.core.fleet.task_creation import TaskRequest
from mooring.core.kernel.validation import invalid
from mooring.storage.kernel.database import Acting

WRITE: Final = "files.write"
ARTIFACT: Final = "artifact"
INLINE_BYTES_MAX: Final = 128 * 1024


def inlined_roles(type_: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The roles of the artifacts that the files of a task name, without repeats."""
    if type_ != WRITE or not isinstance(arguments.get("files"), list):
        return ()
    named = (each.get(ARTIFACT) for each in arguments["files"] if isinstance(each, Mapping))
    return tuple(dict.fromkeys(each for each in named if isinstance(each, str)))


async def inline_artifacts(
    services: Services, acting: Acting, request: TaskRequest, artifacts: Mapping[str, Artifact]
) -> TaskRequest:
    """The request with the content of the artifacts that its files name by role; the caller has checked their trust."""
    roles = inlined_roles(request.type, request.arguments)
    if not roles:
        return request
    measure = await trust_context(services, acting, request.project_id)
    content = {}
    for role in roles:
        if role not in artifacts:
            raise invalid("arguments/files", f"the pinned version has no artifact with the role {role!r}")
        artifact = artifacts[role]
        if artifact.kind != ArtifactKind.BLOB or artifact.size_bytes > INLINE_BYTES_MAX:
            limit = f"a blob of at most {INLINE_BYTES_MAX} bytes"
            raise invalid("arguments/files", f"{role!r} is not {limit}: fetch it with artifact.fetch")
        location = location_of(artifact)
        source = measure.allowed_source(location, (artifact.tenant_id, artifact.project_id))
        read = await services.artifacts.content(ArtifactKind.BLOB, location, artifact.digest, source, INLINE_BYTES_MAX)
        content[role] = base64.b64encode(read).decode("ascii")
    files = [_filled(each, content) for each in request.arguments["files"]]
    return replace(request, arguments={**request.arguments, "files": files})


def _filled(file: Any, content: Mapping[str, str]) -> Any:
    if not isinstance(file, Mapping) or ARTIFACT not in file:
        return file
    rest = {name: value for name, value in file.items() if name != ARTIFACT}
    return {**rest, "content_base64": content[file[ARTIFACT]]}
