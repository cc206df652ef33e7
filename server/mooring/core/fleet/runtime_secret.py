"""Runtime secrets of apps, granted to one task at a time.

A secret belongs to one instance or to one allocation, and has one purpose from a closed list. The database has it
sealed. A grant gives it to one task for a limited time; the value leaves the platform only inside that task's payload,
sealed to the key of the node. The teardown of its owner destroys the secret: the sealed value is deleted, and the row
stays for the audit trail.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mooring.core.fleet.task_schema import NAME_PATTERN, REPOSITORY_PATTERN
from mooring.core.identity.project_secret import ProjectSecret
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert, Update, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.secret import Sealed
from mooring.core.kernel.validation import invalid

VALUE_BYTES_MAX: Final = 65_536
SECRETS_MAX: Final = 200
GRANT_LIFETIME_MAX: Final = timedelta(hours=1)
_NAME: Final = re.compile(NAME_PATTERN)
_REPOSITORY: Final = re.compile(REPOSITORY_PATTERN)


class SecretPurpose(StrEnum):
    """What a secret is for; a new purpose needs a proven use."""

    ARTIFACT_PULL = "artifact_pull"
    APP_ACCESS = "app_access"
    MEMBER_SECRET = "member_secret"
    CLUSTER_KEY = "cluster_key"


PURPOSE_MEANING: Final[Mapping[SecretPurpose, str]] = MappingProxyType(
    {
        SecretPurpose.ARTIFACT_PULL: "to fetch an image or a blob from its registry or source",
        SecretPurpose.APP_ACCESS: "to sign in to an app; everybody who may connect to the instance may read it",
        SecretPurpose.MEMBER_SECRET: "shared by the members of an instance; nobody else can read it",
        SecretPurpose.CLUSTER_KEY: (
            "a key with which the members of an instance authenticate to each other; nobody else can read it"
        ),
    }
)

# The purposes that an adapter may store secrets for; the platform itself makes the others.
ADAPTER_PURPOSES: Final = (SecretPurpose.APP_ACCESS, SecretPurpose.MEMBER_SECRET, SecretPurpose.CLUSTER_KEY)


@dataclass(frozen=True, slots=True)
class RuntimeSecret:
    """A secret of one instance or allocation, without its value."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str | None
    allocation_id: str | None
    name: str
    purpose: str
    secret_id: str | None  # the sealed value; None after it was destroyed
    revision: int
    created_at: datetime
    destroyed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RuntimeSecretSpec:
    """A secret to store: its owner, its purpose and its sealed value."""

    tenant_id: str
    project_id: str
    name: str
    purpose: str
    sealed: Sealed
    instance_id: str | None = None
    allocation_id: str | None = None


@dataclass(frozen=True, slots=True)
class SecretGrantRequest:
    """A secret for a task under a name: a stored one, one of the project, or a token for one repository.

    The value is read, and the token made, when the task is claimed.
    """

    name: str
    purpose: str
    stored: RuntimeSecret | None = None
    repository: str | None = None
    project_secret: ProjectSecret | None = None
    source_id: str | None = None  # of the repository, if it is in a tenant's private registry


def read_purpose(text: str, path: str = "purpose") -> SecretPurpose:
    """Parse a purpose; refuses an unknown one."""
    try:
        return SecretPurpose(text)
    except ValueError:
        raise invalid(path, f"one of {', '.join(SecretPurpose)}") from None


def store_secret(context: DecisionContext, spec: RuntimeSecretSpec, present: int) -> Decision[RuntimeSecret]:
    """Store a secret for an instance or an allocation that has `present` secrets already."""
    if (spec.instance_id is None) == (spec.allocation_id is None):
        raise invalid("instance_id", "a secret belongs to one instance, or to one allocation")
    if not _NAME.fullmatch(spec.name):
        raise invalid("name", f"a name of the form {NAME_PATTERN}")
    if present >= SECRETS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"there are {SECRETS_MAX} secrets already", {"limit": SECRETS_MAX})
    secret = RuntimeSecret(
        id=context.mint(Prefix.RUNTIME_SECRET),
        tenant_id=spec.tenant_id,
        project_id=spec.project_id,
        instance_id=spec.instance_id,
        allocation_id=spec.allocation_id,
        name=spec.name,
        purpose=read_purpose(spec.purpose).value,
        secret_id=spec.sealed.id,
        revision=0,
        created_at=context.now,
    )
    row = {name: getattr(secret, name) for name in RuntimeSecret.__slots__}
    summary = {"name": secret.name, "purpose": secret.purpose, "belongs_to": secret.instance_id or secret.allocation_id}
    return Decision(
        result=secret,
        writes=(Insert("secret", spec.sealed.row(context.now)), Insert("runtime_secret", row)),
        audits=(
            AuditRecord(
                "secret.create",
                "runtime_secret",
                secret.id,
                secret.tenant_id,
                secret.project_id,
                after=summary,
                app_instance_id=secret.instance_id,
            ),
        ),
    )


def destroy_secrets(
    context: DecisionContext, secrets: Iterable[RuntimeSecret]
) -> tuple[tuple[Write, ...], tuple[AuditRecord, ...]]:
    """Writes and audit records that destroy these secrets, for the decision that ends their owner."""
    writes: list[Write] = []
    audits: list[AuditRecord] = []
    for each in secrets:
        if each.destroyed_at is not None:
            continue
        gone = {"secret_id": None, "destroyed_at": context.now}
        writes.append(Update("runtime_secret", each.id, each.revision, gone))
        audits.append(
            AuditRecord(
                "secret.destroy",
                "runtime_secret",
                each.id,
                each.tenant_id,
                each.project_id,
                before={"name": each.name, "purpose": each.purpose},
                app_instance_id=each.instance_id,
            )
        )
    return tuple(writes), tuple(audits)


def destroy_all(context: DecisionContext, secrets: Sequence[RuntimeSecret]) -> Decision[tuple[RuntimeSecret, ...]]:
    """Destroy these secrets, independent of their owner."""
    writes, audits = destroy_secrets(context, secrets)
    after = tuple(
        replace(each, secret_id=None, destroyed_at=context.now, revision=each.revision + 1) for each in secrets
    )
    return Decision(result=after, writes=writes, audits=audits)


def check_grant(request: SecretGrantRequest, instance_id: str | None, allocation_id: str, path: str) -> None:
    """Refuse a secret of another owner, or for another purpose than it was stored for."""
    if not _NAME.fullmatch(request.name):
        raise invalid(f"{path}/name", f"a name of the form {NAME_PATTERN}")
    purpose = read_purpose(request.purpose, f"{path}/purpose")
    if sum(each is not None for each in (request.stored, request.repository, request.project_secret)) != 1:
        raise invalid(path, "a stored secret, a secret of the project, or a repository")
    if request.repository is not None:
        if purpose is not SecretPurpose.ARTIFACT_PULL:
            raise invalid(f"{path}/purpose", f"a repository is read for {SecretPurpose.ARTIFACT_PULL}")
        if len(request.repository) > 255 or not _REPOSITORY.fullmatch(request.repository):
            raise invalid(f"{path}/repository", "a repository such as team/app")
    stored = request.stored
    if stored is None:
        return
    own = stored.instance_id == instance_id if stored.instance_id else stored.allocation_id == allocation_id
    if not own:
        raise Refusal(Code.NOT_FOUND, f"{path}: there is no such secret, or this task may not have it")
    if stored.destroyed_at is not None:
        raise Refusal(Code.NOT_FOUND, f"{path}: the secret was destroyed")
    if stored.purpose != purpose:
        raise invalid(f"{path}/purpose", f"the secret was stored for {stored.purpose}")


def grant_row(
    context: DecisionContext,
    request: SecretGrantRequest,
    *,
    tenant_id: str,
    project_id: str,
    task_id: str,
    until: datetime,
) -> Insert:
    return Insert(
        "secret_grant",
        {
            "id": context.mint(Prefix.SECRET_GRANT),
            "tenant_id": tenant_id,
            "project_id": project_id,
            "task_id": task_id,
            "name": request.name,
            "purpose": request.purpose,
            "runtime_secret_id": None if request.stored is None else request.stored.id,
            "project_secret_id": None if request.project_secret is None else request.project_secret.id,
            "repository": request.repository,
            "source_id": request.source_id,
            "expires_at": min(until, context.now + GRANT_LIFETIME_MAX),
            "created_at": context.now,
        },
    )
