"""Runtime secrets: what an app needs to know, handed to one task at a time.

A secret belongs to one instance, or to one allocation, and has one purpose of a closed registry. It lies sealed in the
database. A grant hands it to one task, for a bounded time; its value leaves the platform only inside that task's
payload, sealed to the key of the node. With the teardown of what it belongs to it is destroyed: the row stays, so that
the trail can be read, and the sealed value is deleted.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mooring.core.fleet.task_schema import NAME_PATTERN, REPOSITORY_PATTERN
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
    """What a secret is for; another purpose comes only with a use that is shown."""

    ARTIFACT_PULL = "artifact_pull"
    APP_ACCESS = "app_access"
    MEMBER_SECRET = "member_secret"
    CLUSTER_KEY = "cluster_key"


PURPOSE_MEANING: Final[Mapping[SecretPurpose, str]] = MappingProxyType(
    {
        SecretPurpose.ARTIFACT_PULL: "to fetch an image or a blob from where it lies",
        SecretPurpose.APP_ACCESS: "to enter an app; whoever may connect to the instance may have it shown",
        SecretPurpose.MEMBER_SECRET: "for the members of an instance among themselves; nobody is shown it",
        SecretPurpose.CLUSTER_KEY: (
            "a key by which the members of one instance prove themselves to each other; nobody is shown it"
        ),
    }
)

# What an adapter has kept for its instance; the rest is the platform's own to make.
ADAPTER_PURPOSES: Final = (SecretPurpose.APP_ACCESS, SecretPurpose.MEMBER_SECRET, SecretPurpose.CLUSTER_KEY)


@dataclass(frozen=True, slots=True)
class RuntimeSecret:
    """A secret of one instance or allocation; its value is not here."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str | None
    allocation_id: str | None
    name: str
    purpose: str
    secret_id: str | None  # the sealed value; none when it is destroyed
    revision: int
    created_at: datetime
    destroyed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RuntimeSecretSpec:
    """A secret to be kept: whose, for what, and its value sealed."""

    tenant_id: str
    project_id: str
    name: str
    purpose: str
    sealed: Sealed
    instance_id: str | None = None
    allocation_id: str | None = None


@dataclass(frozen=True, slots=True)
class SecretGrantRequest:
    """A secret that a task gets under a name: a stored one, or a token for one repository that is made at the claim."""

    name: str
    purpose: str
    stored: RuntimeSecret | None = None
    repository: str | None = None


def read_purpose(text: str, path: str = "purpose") -> SecretPurpose:
    """The purpose that a text names; an unknown one is refused."""
    try:
        return SecretPurpose(text)
    except ValueError:
        raise invalid(path, f"one of {', '.join(SecretPurpose)}") from None


def store_secret(context: DecisionContext, spec: RuntimeSecretSpec, present: int) -> Decision[RuntimeSecret]:
    """Keep a secret for an instance or an allocation, of which `present` are there already."""
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
    told = {"name": secret.name, "purpose": secret.purpose, "belongs_to": secret.instance_id or secret.allocation_id}
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
                after=told,
                app_instance_id=secret.instance_id,
            ),
        ),
    )


def destroy_secrets(
    context: DecisionContext, secrets: Iterable[RuntimeSecret]
) -> tuple[tuple[Write, ...], tuple[AuditRecord, ...]]:
    """What destroys these secrets, to be put into the decision that ends what they belong to."""
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
    """Destroy these secrets, whatever becomes of what they belong to."""
    writes, audits = destroy_secrets(context, secrets)
    after = tuple(
        replace(each, secret_id=None, destroyed_at=context.now, revision=each.revision + 1) for each in secrets
    )
    return Decision(result=after, writes=writes, audits=audits)


def check_grant(request: SecretGrantRequest, instance_id: str | None, allocation_id: str, path: str) -> None:
    """A task gets what belongs to its own instance or allocation, for the purpose that it was kept for."""
    if not _NAME.fullmatch(request.name):
        raise invalid(f"{path}/name", f"a name of the form {NAME_PATTERN}")
    purpose = read_purpose(request.purpose, f"{path}/purpose")
    if (request.stored is None) == (request.repository is None):
        raise invalid(path, "either a stored secret or a repository")
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
        raise Refusal(Code.NOT_FOUND, f"{path}: there is no such secret, or it is not this task's to have")
    if stored.destroyed_at is not None:
        raise Refusal(Code.NOT_FOUND, f"{path}: the secret was destroyed")
    if stored.purpose != purpose:
        raise invalid(f"{path}/purpose", f"the secret was kept for {stored.purpose}")


def grant_row(
    context: DecisionContext, request: SecretGrantRequest, task: tuple[str, str, str], until: datetime
) -> Insert:
    """The row of a grant; `task` names tenant, project and task."""
    tenant_id, project_id, task_id = task
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
            "repository": request.repository,
            "expires_at": min(until, context.now + GRANT_LIFETIME_MAX),
            "created_at": context.now,
        },
    )
