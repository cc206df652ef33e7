"""Secrets that people store in a project: the token of a model hub, the password of a registry, the key of a bucket.

The value is sealed before it is stored, and no response ever shows it again. A launch names a secret, and the programs
of the instance get its value as a variable of their environment, through a grant for one task that is sealed to the key
of the node. A rotation replaces the value: what starts later gets the new one. The name is what launches refer to, so a
secret that was deleted can be created again under its name.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.secret import Sealed
from mooring.core.kernel.validation import invalid

SECRETS_MAX: Final = 100
"""How many secrets a project may have."""
VALUE_BYTES_MAX: Final = 32_768
"""A variable of a program's environment may be this long."""
NAME_PATTERN: Final = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
VARIABLE_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
VARIABLES_MAX: Final = 16
"""How many secrets a launch may name."""
SEALED_FOR: Final = "project_secret"
USERS_SHOWN_MAX: Final = 10
_NAME: Final = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class ProjectSecret:
    """A secret of a project, without its value."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    description: str
    secret_id: str  # the sealed value
    version: int  # 1 after the creation; each rotation adds one
    created_by: str
    revision: int
    created_at: datetime
    rotated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProjectSecretSpec:
    """A secret to store: its name, what it is for, and its sealed value."""

    tenant_id: str
    project_id: str
    name: str
    description: str
    sealed: Sealed


def check_value(value: str) -> bytes:
    """The bytes of a value; a refusal never repeats it."""
    content = value.encode()
    if not 1 <= len(content) <= VALUE_BYTES_MAX or b"\0" in content:
        raise invalid("value", f"1 to {VALUE_BYTES_MAX} bytes of text without NUL; encode anything else as base64")
    return content


def create_secret(context: DecisionContext, spec: ProjectSecretSpec, present: int) -> Decision[ProjectSecret]:
    """Store a secret in a project that has `present` secrets already."""
    if not _NAME.fullmatch(spec.name):
        raise invalid("name", "1 to 63 lower-case letters, digits, dots, hyphens and underscores, such as hub-token")
    if present >= SECRETS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a project has at most {SECRETS_MAX} secrets", {"limit": SECRETS_MAX})
    secret = ProjectSecret(
        id=context.mint(Prefix.PROJECT_SECRET),
        tenant_id=spec.tenant_id,
        project_id=spec.project_id,
        name=spec.name,
        description=validation.remark(spec.description, "description"),
        secret_id=spec.sealed.id,
        version=1,
        created_by=context.actor.id,
        revision=0,
        created_at=context.now,
    )
    summary = _summary(secret)
    return Decision(
        result=secret,
        writes=(Insert("secret", spec.sealed.row(context.now)), Insert("project_secret", asdict(secret))),
        events=(_happened(secret, {"change": "created", **summary}),),
        audits=(_audited("project_secret.create", secret, after=summary),),
    )


def rotate_secret(context: DecisionContext, secret: ProjectSecret, sealed: Sealed) -> Decision[ProjectSecret]:
    """Replace the value; a trigger of the database deletes the sealed value that was replaced."""
    changed = {"secret_id": sealed.id, "version": secret.version + 1, "rotated_at": context.now}
    after = replace(secret, revision=secret.revision + 1, **changed)  # type: ignore[arg-type]
    return Decision(
        result=after,
        writes=(
            Insert("secret", sealed.row(context.now)),
            Update("project_secret", secret.id, secret.revision, changed),
        ),
        events=(_happened(after, {"change": "rotated", **_summary(after)}),),
        audits=(_audited("project_secret.rotate", secret, before=_summary(secret), after=_summary(after)),),
    )


@dataclass(frozen=True, slots=True)
class SecretUsers:
    """The names of what uses a secret: instances that are not ended, and sources of the tenant."""

    instances: Sequence[str] = ()
    sources: Sequence[str] = ()


def delete_secret(
    context: DecisionContext, secret: ProjectSecret, users: SecretUsers, *, force: bool
) -> Decision[ProjectSecret]:
    """Delete a secret with its value; refused while something uses it, unless forced."""
    used = bool(users.instances or users.sources)
    if used and not force:
        raise Refusal(
            Code.SECRET_IN_USE,
            f"{secret.name} is used by {len(users.instances)} instances and {len(users.sources)} artifact sources",
            {
                "instances": list(users.instances[:USERS_SHOWN_MAX]),
                "sources": list(users.sources[:USERS_SHOWN_MAX]),
                "count": len(users.instances) + len(users.sources),
            },
        )
    before = {**_summary(secret), "forced": used}
    return Decision(
        result=secret,
        writes=(Remove("project_secret", secret.id, secret.revision),),
        events=(_happened(secret, {"change": "deleted", **_summary(secret)}),),
        audits=(_audited("project_secret.delete", secret, before=before),),
    )


def refused_variables(variables: Mapping[str, str], known: Collection[str]) -> Iterator[Refusal]:
    """What is wrong with the secrets that a launch names: variable → name; `known` are the project's."""
    if len(variables) > VARIABLES_MAX:
        yield invalid("secrets", f"at most {VARIABLES_MAX}")
    for variable, name in variables.items():
        if name not in known:
            yield invalid(f"secrets.{variable}", f"the project has no secret {name!r}")


def _summary(secret: ProjectSecret) -> dict[str, object]:
    return {"name": secret.name, "description": secret.description, "version": secret.version}


def _happened(secret: ProjectSecret, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(
        EventType.PROJECT_SECRET_CHANGED, "project_secret", secret.id, secret.tenant_id, secret.project_id, data=data
    )


def _audited(
    action: str,
    secret: ProjectSecret,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(
        action, "project_secret", secret.id, secret.tenant_id, secret.project_id, before=before, after=after
    )
