"""An instance, its members and an operation, as an adapter's reports are held against them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from mooring.core.catalog.manifest import Manifest, read_manifest
from mooring.core.runtime.adapter_report import ReportContext
from mooring.core.runtime.claim import InstanceClaim
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import Operation, OperationKind
from server.tests.support.manifests import digest, oci

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
ACCOUNT: Final = "sa_1"
PLACE: Final[dict[str, Any]] = {"tenant_id": "ten_1", "project_id": "prj_1"}
TRACED: Final[dict[str, Any]] = {
    "correlation_id": "cor_1", "trace_id": "t" * 32, "created_at": NOW, "generation": 0, "revision": 0,
}  # fmt: skip
PIN: Final = {
    "version_id": "ver_1", "version": "1.0.0", "manifest_digest": digest("0"), "artifacts": {"main": digest("a")},
}  # fmt: skip
NEXT: Final = {**PIN, "version_id": "ver_2", "version": "2.0.0", "artifacts": {"main": digest("b")}}
DOCUMENT: Final = oci(
    components=[{"key": "head", "min_count": 1, "max_count": 1}, {"key": "hand", "max_count": 4}],
    usage_units=[{"unit": "tokens", "title": "Tokens"}],
)


def manifest() -> Manifest:
    """An app with a head and hands."""
    found = read_manifest(DOCUMENT).manifest
    assert found is not None
    return found


def instance(**columns: Any) -> Instance:
    """An instance that runs."""
    made = Instance(
        id="ins_1",
        name="app",
        app_id="app_1",
        app_slug="hello",
        app_category="tool",
        version_id="ver_1",
        version="1.0.0",
        channel=None,
        pin=PIN,
        config={},
        topology={"head": 1},
        placement={},
        operating_mode="tenant_dedicated",
        control_plane_scope="project",
        runtime_backend="container",
        service_account_id=ACCOUNT,
        requested_by="usr_1",
        status="running",
        **PLACE,
        **TRACED,
    )
    return replace(made, **columns)


def member(name: str = "head", status: str = "ready", **columns: Any) -> Member:
    """A member of the component of its name."""
    made = Member(
        id=f"mem_{name}",
        instance_id="ins_1",
        component_key=name.partition("-")[0],
        ordinal=0,
        name=name,
        version_id="ver_1",
        version="1.0.0",
        allocation_id="alc_1",
        status=status,
        **PLACE,
        **TRACED,
    )
    return replace(made, **columns)


def operation(kind: OperationKind, status: str = "running", **columns: Any) -> Operation:
    """An operation that is the adapter's turn."""
    begun = None if status == "accepted" else NOW
    made = Operation(
        id="op_1",
        instance_id="ins_1",
        kind=kind.value,
        request={},
        deadline_at=NOW,
        requested_by="usr_1",
        status=status,
        dispatched_at=NOW,
        started_at=begun,
        attempt_fence=None if begun is None else 3,
        **PLACE,
        **TRACED,
    )
    return replace(made, **columns)


def seen(*members: Member, of: Instance | None = None, during: Operation | None = None, **more: Any) -> ReportContext:
    """What a report under fence 3 is held against."""
    claim = InstanceClaim("ins_1", ACCOUNT, "holder", 3)
    return ReportContext(claim, of or instance(), {each.id: each for each in members}, during, **more)
