"""Manifests: the developer's description of one version of an app, parsed into typed values.

A manifest arrives as plain JSON values. It is checked in two steps, which both return findings and never raise: first
against the published schema (here), then against the rules that a schema cannot express (`manifest_lint`). A document
that fits the schema becomes a `Manifest` even when the rules find errors: a draft may have errors, and staging refuses
it.

The keys of components, the runtime backend and the names of actions are opaque to the platform: no code in the server
depends on their values.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

from mooring.core.catalog.compatibility import Compatibility, ShapeWanted, need_of
from mooring.core.catalog.manifest_schema import DRAIN_SECONDS, MANIFEST_SCHEMA, MANIFEST_VERSION
from mooring.core.catalog.operating_mode import DEFAULT_MODE, ControlPlaneScope, Mode, OperatingMode
from mooring.core.kernel.finding import Finding, bounded, error
from mooring.core.kernel.form_schema import too_deep
from mooring.core.kernel.json_schema import count_exceeds, depth_exceeds, paid_findings, unstorable
from mooring.core.kernel.work_budget import WorkBudget, until_spent

MANIFEST_BYTES_MAX: Final = 262_144
DEPTH_MAX: Final = 24
STORED_KEPT: Final = 64
"""How many parsed manifests are cached: those of running versions are needed all the time."""

Plain = Mapping[str, Any]
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    value: str | None = None
    from_config: str | None = None
    from_secret: str | None = None


@dataclass(frozen=True, slots=True)
class ManifestPort:
    name: str
    port: int
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True)
class ManifestResources:
    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    shared_memory_bytes: int | None = None
    scratch_bytes: int | None = None
    pids_max: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestProbe:
    kind: str
    port: str | None = None
    path: str | None = None
    command: tuple[str, ...] = ()
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 5
    failures_max: int = 3


@dataclass(frozen=True, slots=True)
class ManifestVolume:
    name: str
    path: str
    kind: str
    artifact: str | None = None
    size_bytes: int | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    image: str | None = None  # a role of `Manifest.artifacts`
    command: tuple[str, ...] = ()
    ports: tuple[ManifestPort, ...] = ()
    env: tuple[Environment, ...] = ()
    resources: ManifestResources = field(default_factory=ManifestResources)
    probes: Mapping[str, ManifestProbe] = field(default_factory=dict)
    volumes: tuple[ManifestVolume, ...] = ()
    user: str | None = None  # of its container


@dataclass(frozen=True, slots=True)
class Component:
    key: str
    max_count: int
    title: str | None = None
    min_count: int = 0
    default_count: int | None = None

    @property
    def launch_count(self) -> int:
        """How many members a launch gets that does not say."""
        return self.min_count if self.default_count is None else self.default_count


@dataclass(frozen=True, slots=True)
class ManifestAction:
    """A verb that the adapter carries out."""

    name: str
    permission: str
    input_schema: Plain
    title: str | None = None
    description: str = ""
    target: str = "instance"
    output_schema: Plain | None = None
    timeout_seconds: int = 300
    destructive: bool = False
    read_only: bool = False
    view: Plain | None = None
    """How a client shows its output; the platform does not interpret it."""


@dataclass(frozen=True, slots=True)
class Connect:
    kind: str
    title: str
    template: str | None = None


@dataclass(frozen=True, slots=True)
class ManifestEndpoint:
    name: str
    protocol: str
    title: str | None = None
    port: str | None = None
    path: str | None = None
    access: str = "platform"
    user: str | None = None
    connect: tuple[Connect, ...] = ()


ADAPTER: Final = "adapter"
PROXY: Final = "proxy"


@dataclass(frozen=True, slots=True)
class UsageUnit:
    unit: str
    title: str
    description: str = ""
    aggregation: str = "sum"
    covered_by_allocation: bool = False  # informative: the allocation already pays for it, so it is not charged
    counted_by: str = ADAPTER  # or PROXY: one for each request that the platform's proxy passes to an endpoint


@dataclass(frozen=True, slots=True)
class Counter:
    """A Prometheus counter that counts a unit; samples with other values of `labels` are left out."""

    metric: str
    unit: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metering:
    """Where the counters of each member are read."""

    port: str
    counters: tuple[Counter, ...]
    path: str = "/metrics"


@dataclass(frozen=True, slots=True)
class Upgrade:
    strategy: str
    from_versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollback:
    supported: bool
    to_versions: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Deletion:
    data: str
    graceful_seconds: int = 60
    note: str = ""


@dataclass(frozen=True, slots=True)
class ManifestRestart:
    supported: bool = False
    instead: str = ""


@dataclass(frozen=True, slots=True)
class ManifestConfigure:
    supported: bool = False
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Attach:
    supported: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """How long a member's work may take when it is drained, unless the request says otherwise."""

    seconds: int = DRAIN_SECONDS
    from_config: str | None = None  # the field of `config_schema` in which the launcher sets it


@dataclass(frozen=True, slots=True)
class ManifestLifecycle:
    upgrade: Upgrade
    rollback: Rollback
    delete: Deletion
    restart: ManifestRestart = field(default_factory=ManifestRestart)
    attach: Attach = field(default_factory=Attach)
    drain: Drain = field(default_factory=Drain)
    configure: ManifestConfigure = field(default_factory=ManifestConfigure)


@dataclass(frozen=True, slots=True)
class RunbookEntry:
    symptom: str
    steps: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Runbook:
    summary: str
    entries: tuple[RunbookEntry, ...]
    contact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of an app, as its developer describes it."""

    manifest_version: int
    app: str
    version: str
    artifact_kind: str
    artifacts: Mapping[str, str]  # role → digest
    release_notes: str = ""
    runtime_backend: str = "container"
    compatibility: Compatibility = field(default_factory=Compatibility)
    runtime_profile: RuntimeProfile | None = None
    config_schema: Plain | None = None
    components: tuple[Component, ...] = ()
    actions: tuple[ManifestAction, ...] = ()
    endpoints: tuple[ManifestEndpoint, ...] = ()
    usage_units: tuple[UsageUnit, ...] = ()
    metering: tuple[Metering, ...] = ()
    operating_modes: tuple[Mode, ...] = (DEFAULT_MODE,)
    topology_modes: tuple[str, ...] = ()
    required_actions: tuple[str, ...] = ()
    lifecycle: ManifestLifecycle | None = None
    runbook: Runbook | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests that the version needs, each once, sorted."""
        return tuple(sorted(set(self.artifacts.values())))


@dataclass(frozen=True, slots=True)
class ManifestReading:
    """The parsed manifest, None if it does not fit the schema, and all findings."""

    manifest: Manifest | None
    findings: tuple[Finding, ...]


def read_manifest(value: object, budget: WorkBudget | None = None) -> ManifestReading:
    """Parse plain JSON values; the findings cover only the schema, not the lint rules."""
    budget = WorkBudget() if budget is None else budget
    if count_exceeds(value, MANIFEST_BYTES_MAX // 2):  # each value has a character and a comma at least
        return ManifestReading(None, (_too_large(f"more than {MANIFEST_BYTES_MAX}"),))
    if depth_exceeds(value, DEPTH_MAX):
        return ManifestReading(None, (too_deep(""),))
    findings = bounded(unstorable(value))
    findings = findings or bounded(until_spent(paid_findings(value, MANIFEST_SCHEMA, "", budget)))
    if not findings and (size := len(canonical(value))) > MANIFEST_BYTES_MAX:
        findings = (_too_large(str(size)),)
    if findings or not isinstance(value, dict):
        return ManifestReading(None, findings)
    return ManifestReading(_manifest(normal(value)), ())


def _too_large(size: str) -> Finding:
    fix = f"use at most {MANIFEST_BYTES_MAX} bytes; long content belongs into an artifact"
    return error("", "too_large", f"it has {size} bytes", fix)


def stored_manifest(value: Plain) -> Manifest | None:
    """The manifest of a stored version; None when it cannot be read.

    It was validated when it was published, and the schema never gets stricter. Validating it again would take up to a
    tenth of a second for the largest, and a catalog's page shows many. Parsed manifests are cached by their text.
    """
    return _stored(canonical(value))


@lru_cache(maxsize=STORED_KEPT)
def _stored(text: bytes) -> Manifest | None:
    plain = normal(json.loads(text))
    if not isinstance(plain, dict) or plain.get("manifest_version") != MANIFEST_VERSION:
        return None
    try:
        return _manifest(plain)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        return None


def canonical(value: object) -> bytes:
    """The canonical serialisation of JSON values: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_digest(value: object) -> str:
    """The digest of a manifest; it does not depend on the formatting."""
    return f"sha256:{hashlib.sha256(canonical(value)).hexdigest()}"


def normal(value: Any) -> Any:
    """Replace floats without a fraction by integers, recursively: in JSON, 1, 1.0 and 1e0 are the same number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [normal(each) for each in value]
    if isinstance(value, dict):
        return {key: normal(each) for key, each in value.items()}
    return value


def _manifest(plain: Plain) -> Manifest:
    components = _parts(Component, plain.get("components", ()))
    parts: dict[str, Any] = {
        "components": components,
        "compatibility": _compatibility(plain.get("compatibility", {}), components),
        "actions": _parts(ManifestAction, plain.get("actions", ())),
        "endpoints": tuple(
            ManifestEndpoint(**{**each, "connect": _parts(Connect, each.get("connect", ()))})
            for each in plain.get("endpoints", ())
        ),
        "usage_units": _parts(UsageUnit, plain.get("usage_units", ())),
        "metering": tuple(
            Metering(**{**each, "counters": _parts(Counter, each["counters"])}) for each in plain.get("metering", ())
        ),
        "required_actions": tuple(plain.get("required_actions", ())),
        "topology_modes": tuple(plain.get("topology_modes", ())),
    }
    if "operating_modes" in plain:
        parts["operating_modes"] = tuple(
            (OperatingMode(each["operating_mode"]), ControlPlaneScope(each["control_plane_scope"]))
            for each in plain["operating_modes"]
        )
    if "runtime_profile" in plain:
        parts["runtime_profile"] = _runtime_profile(plain["runtime_profile"])
    if "lifecycle" in plain:
        parts["lifecycle"] = _lifecycle(plain["lifecycle"])
    if "runbook" in plain:
        runbook = plain["runbook"]
        parts["runbook"] = Runbook(**{**runbook, "entries": _parts(RunbookEntry, runbook["entries"])})
    return Manifest(**{**plain, **parts})


def _compatibility(plain: Plain, components: tuple[Component, ...]) -> Compatibility:
    needs = tuple(need_of(each) for each in plain.get("needs", ()))
    shape = _shape_wanted(plain.get("requires_capacity_shape", ShapeWanted.ANY))
    members_max = sum(component.max_count for component in components) or 1
    return Compatibility(
        **{**plain, "needs": needs, "requires_capacity_shape": shape, "members_max": members_max},
    )


def _shape_wanted(value: str | list[str]) -> ShapeWanted:
    """One name for the choice; a list of every shape means any of them."""
    if isinstance(value, str):
        return ShapeWanted(value)
    return ShapeWanted(value[0]) if len(value) == 1 else ShapeWanted.ANY


def _runtime_profile(plain: Plain) -> RuntimeProfile:
    parts: dict[str, Any] = {
        "command": tuple(plain.get("command", ())),
        "ports": _parts(ManifestPort, plain.get("ports", ())),
        "env": _parts(Environment, plain.get("env", ())),
        "resources": ManifestResources(**plain.get("resources", {})),
        "probes": {
            name: ManifestProbe(**{**each, "command": tuple(each.get("command", ()))})
            for name, each in plain.get("probes", {}).items()
        },
        "volumes": _parts(ManifestVolume, plain.get("volumes", ())),
    }
    return RuntimeProfile(**{**plain, **parts})


def _lifecycle(plain: Plain) -> ManifestLifecycle:
    upgrade, rollback = plain["upgrade"], plain["rollback"]
    return ManifestLifecycle(
        Upgrade(**{**upgrade, "from_versions": tuple(upgrade.get("from_versions", ()))}),
        Rollback(**{**rollback, "to_versions": tuple(rollback.get("to_versions", ()))}),
        Deletion(**plain["delete"]),
        ManifestRestart(**plain.get("restart", {})),
        Attach(**plain.get("attach", {})),
        Drain(**plain.get("drain", {})),
        ManifestConfigure(**plain.get("configure", {})),
    )


def _parts(type_: type[Part], plain: Any) -> tuple[Part, ...]:
    """The list as typed values; the property names of the schema are the field names."""
    return tuple(type_(**each) for each in plain)
