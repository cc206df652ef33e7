"""The platform's workload adapter: it operates images and programs whose app has no adapter of its own.

A platform admin sets its public key once. An operator account gets the key when a tenant's admin agrees to the
entitlement, and only if the app has no key of its own and its newest offered version is an image or a program. So the
adapter acts nowhere without an agreement, and there only with the agreed actions, in that one project.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.app import KEYS_KNOWN_MAX, App
from mooring.core.identity.service_account import ED25519_KEY_BYTES
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

OPERATED_KINDS: Final = frozenset({"oci", "launchable"})
"""The kinds of versions that the workload adapter can operate; a controller has an adapter of its own."""

OPERATOR_KEYS: Final = ("runtime.claim", "runtime.report")
"""The actions that an operator account needs at least."""


class OperatedBy(StrEnum):
    """Whose adapter has the key of an operator account."""

    APP = "app"
    PLATFORM = "platform"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class WorkloadAdapter:
    """The key of the platform's workload adapter; there is at most one."""

    id: str
    public_key: bytes | None
    revision: int
    created_at: datetime
    keys_before: list[bytes] = field(default_factory=list)  # former keys, which accounts may still have

    @property
    def known_keys(self) -> list[bytes]:
        """Every key that accounts may have from here."""
        return [*self.keys_before, *([] if self.public_key is None else [self.public_key])]


def operating_key(app: App | None, kind: str | None, workload: WorkloadAdapter | None) -> bytes | None:
    """The key that an operator account of this app gets: the app's own, otherwise that of the workload adapter.

    `kind` is the kind of the newest version that is offered; without one, nobody knows who can operate the app.
    """
    if app is None or app.adapter_key is not None:
        return None if app is None else app.adapter_key
    if workload is None or kind not in OPERATED_KINDS:
        return None
    return workload.public_key


def why_not_operated(app_slug: str, kind: str, actions: Collection[str], *, has_key: bool) -> Refusal | None:
    """Why no adapter can ever operate this image or program with its operator account; None if one can.

    A controller is left alone: its team may give the account a key after the launch.
    """
    if kind not in OPERATED_KINDS:
        return None
    missing = [each for each in OPERATOR_KEYS if each not in actions]
    if has_key and not missing:
        return None
    because = (
        f"its operator account lacks {' and '.join(missing)}" if has_key else "its operator account has no adapter key"
    )
    details = {"app": app_slug, "missing_actions": missing, "has_key": has_key}
    return Refusal(Code.ADAPTER_MISSING, f"no adapter operates {app_slug} in this project: {because}", details)


def set_workload_key(
    context: DecisionContext, current: WorkloadAdapter | None, public_key: bytes | None
) -> Decision[WorkloadAdapter]:
    """Set the key, or remove it; the former keys stay stored, so that a repeated request can revoke them."""
    if public_key is not None and len(public_key) != ED25519_KEY_BYTES:
        raise validation.invalid("public_key", f"the {ED25519_KEY_BYTES} bytes of an Ed25519 public key, in base64")
    if current is None:
        made = WorkloadAdapter(context.mint(Prefix.WORKLOAD_ADAPTER), public_key, 0, context.now)
        return _decision(made, Insert("workload_adapter", asdict(made)), None)
    if current.public_key == public_key:
        return Decision(current)
    known = [each for each in current.known_keys if each != public_key]
    columns: dict[str, Any] = {"public_key": public_key, "keys_before": known[-KEYS_KNOWN_MAX:]}
    after = replace(current, revision=current.revision + 1, **columns)
    return _decision(after, Update("workload_adapter", current.id, current.revision, columns), current.public_key)


def _decision(after: WorkloadAdapter, write: Insert | Update, before: bytes | None) -> Decision[WorkloadAdapter]:
    data: Mapping[str, object] = {"key": _fingerprint(after.public_key)}
    return Decision(
        after,
        (write,),
        (EventRecord(EventType.WORKLOAD_ADAPTER_CHANGED, "workload_adapter", after.id, None, data=data),),
        (
            AuditRecord(
                "app.update", "workload_adapter", after.id, None, before={"key": _fingerprint(before)}, after=data
            ),
        ),
    )


def _fingerprint(public_key: bytes | None) -> str | None:
    return None if public_key is None else f"sha256:{hashlib.sha256(public_key).hexdigest()}"
