"""Lint: the rules of a manifest that no schema can say, each with its place, the reason and a fix.

A rule is a function over the manifest that yields findings; `RULES` says in one sentence why each exists, for
`mooring manifest explain`. Errors stand in the way of staging, warnings do not. The rules about how members are
started are in `manifest_lint_runtime`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from mooring.core.catalog.compatibility import ShapeWanted
from mooring.core.catalog.manifest import Drain, Manifest, ManifestReading, read_manifest
from mooring.core.catalog.manifest_lint_runtime import RUNTIME_RULES, runtime_findings
from mooring.core.catalog.operating_mode import MODES, NOT_OFFERED, ControlPlaneScope, why_incoherent
from mooring.core.catalog.semver import read_range, read_version
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.finding import FINDINGS_MAX, Finding, below, bounded, error, errors_in, warning
from mooring.core.kernel.form_schema import schema_findings
from mooring.core.kernel.permissions import ACTIONS, SERVICE_ACCOUNT_CEILING, is_app_action

RULES: Final[Mapping[str, str]] = {
    **RUNTIME_RULES,
    "app_other": "The manifest belongs to the app that it is published under.",
    "name_doubled": "A name that stands twice would leave open which is meant.",
    "controller_only": "Actions and several nodes need an adapter that knows the app, which only a controller has.",
    "capacity_contradiction": "No capacity could satisfy two demands that exclude each other.",
    "multi_node_alone": "One member stands on one node, whatever is allowed.",
    "component_counts": "The fewest members are not more than the most.",
    "action_permission": "An action is guarded by a key of its category's family, or by one of the app's own.",
    "mode_incoherent": "Who runs a control plane decides whom it can serve.",
    "mode_not_offered": "The platform does not offer this way of running yet.",
    "required_action": "An operator account holds only what a service account may hold, and keys of its own app.",
    "controller_cannot_work": "An adapter that may not claim and report cannot do anything.",
    "usage_unreported": "What the app meters has to be reported by somebody.",
    "unit_repeats_allocation": "The allocation pays for its capacity already; a unit that repeats it says so.",
    "lifecycle_missing": "A controller says how it is upgraded, rolled back and deleted before it is staged.",
    "runbook_missing": "A controller says what operators do when it does not work before it is staged.",
    "version_range": "Versions and ranges of versions can be read and compared.",
    "upgrade_unused": "Ranges without a way to upgrade have no effect.",
    "rollback_nowhere": "A rollback leads to versions that are named.",
    "drain_config": "The time of a drain is a number of seconds that can be filled in.",
    "attach_nowhere": "Projects attach to a control plane of the scope tenant, and to no other.",
}
"""Every rule of the lint, and why it exists."""

FAMILIES: Final = frozenset(key.removesuffix(".instance.create") for key in ACTIONS if key.endswith(".instance.create"))
"""The categories that have a family of action keys of their own."""

RESERVED_CATEGORIES: Final = frozenset(key.partition(".")[0] for key in ACTIONS) - FAMILIES
"""Words that begin the platform's own keys: a category of that name would borrow them."""

_PAID_BY_ALLOCATION: Final = ("gpu", "cpu", "core", "node", "machine", "allocation", "memory")
_TIMES: Final = ("second", "seconds", "minute", "minutes", "hour", "hours")
_WORKING_KEYS: Final = ("runtime.claim", "runtime.report")


@dataclass(frozen=True, slots=True)
class AppContext:
    """What is known of the app beside the manifest; none where it is linted on its own."""

    app_slug: str | None = None
    category: str | None = None


def examine(value: object, about: AppContext | None = None) -> ManifestReading:
    """Read and lint in one: the manifest where its shape is right, and all findings."""
    reading = read_manifest(value)
    if reading.manifest is None:
        return reading
    return ManifestReading(reading.manifest, lint(reading.manifest, about or AppContext()))


def lint(manifest: Manifest, about: AppContext) -> tuple[Finding, ...]:
    """What the rules say, errors before warnings."""
    found = bounded(
        chain(
            _identity(manifest, about),
            runtime_findings(manifest),
            _names(manifest),
            _capacity(manifest),
            _actions(manifest, about),
            _modes(manifest),
            _required_actions(manifest),
            _usage(manifest),
            _lifecycle(manifest),
        )
    )
    return tuple(sorted(found, key=lambda each: each.severity))


def refuse_errors(findings: tuple[Finding, ...]) -> None:
    """Raise the refusal of a manifest with errors; warnings pass."""
    wrong = errors_in(findings)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Refusal(
            Code.MANIFEST_INVALID,
            f"{wrong[0].pointer or '/'}: {wrong[0].reason}; {wrong[0].fix}{more}",
            {"findings": [each.told() for each in findings[:FINDINGS_MAX]]},
        )


def why_not_permission(key: str, manifest: Manifest, category: str | None) -> str | None:
    """Why an action may not be guarded by this key; None where it may be."""
    if key.startswith(f"app.{manifest.app}."):
        suffix = key.removeprefix(f"app.{manifest.app}.")
        if is_app_action(key) and any(action.name == suffix for action in manifest.actions):
            return None
        return f"{key!r} names no action of this manifest"
    family = key.partition(".")[0]
    if key in ACTIONS and family in FAMILIES and category in (None, family):
        return None
    if category in FAMILIES:
        return f"{key!r} is neither of the family {category!r} nor of this app"
    return f"{key!r} is not of this app"


def why_not_required(key: str, manifest: Manifest) -> str | None:
    """Why the operator account cannot hold this key; None where it can."""
    if key in SERVICE_ACCOUNT_CEILING:
        return None
    if is_app_action(key):
        return None if key.startswith(f"app.{manifest.app}.") else f"{key!r} is of another app"
    return f"no service account may hold {key!r}" if key in ACTIONS else f"there is no action {key!r}"


def _identity(manifest: Manifest, about: AppContext) -> Iterator[Finding]:
    if about.app_slug is not None and about.app_slug != manifest.app:
        reason = f"the manifest is of {manifest.app!r}, the app is {about.app_slug!r}"
        yield error("/app", "app_other", reason, f"write {about.app_slug!r}, or publish it under its own app")
    try:
        read_version(manifest.version)
    except Refusal as refused:  # the schema's pattern does not bound the length of its numbers
        yield error("/version", "version_range", refused.detail, "use smaller numbers")


def _names(manifest: Manifest) -> Iterator[Finding]:
    for section, names in (
        ("components", [each.key for each in manifest.components]),
        ("actions", [each.name for each in manifest.actions]),
        ("endpoints", [each.name for each in manifest.endpoints]),
        ("usage_units", [each.unit for each in manifest.usage_units]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield error(below("", section, index), "name_doubled", f"{name!r} stands twice", "rename one of them")
    roles = Counter(manifest.artifacts.values())
    for role, digest in manifest.artifacts.items():
        if roles[digest] > 1:
            reason = "another role has the same digest"
            yield warning(below("/artifacts", role), "name_doubled", reason, "keep one role, or correct the digest")


def _capacity(manifest: Manifest) -> Iterator[Finding]:
    wanted = manifest.compatibility
    if wanted.requires_exclusive_node and wanted.requires_capacity_shape is ShapeWanted.GPU_SLICE:
        reason = "a gpu_slice shares its node, and an exclusive node is asked for"
        fix = "ask for baremetal, or give up the exclusive node"
        yield error("/compatibility", "capacity_contradiction", reason, fix)
    facts = [need.fact for need in wanted.needs]
    for index, fact in enumerate(facts):
        if fact in facts[:index]:
            place = below("/compatibility/needs", index)
            yield error(place, "capacity_contradiction", f"{fact!r} is asked for twice", "say it in one need")
    if wanted.multi_node:
        if manifest.artifact_kind != "controller":
            reason = f"nobody joins the nodes of a version of kind {manifest.artifact_kind}"
            yield error("/compatibility/multi_node", "controller_only", reason, "use the kind `controller`")
        elif wanted.members_max == 1:
            reason = "there is one member, which stands on one node"
            yield error("/compatibility/multi_node", "multi_node_alone", reason, "describe `components`")
    for index, component in enumerate(manifest.components):
        if component.min_count > component.max_count:
            place = below("/components", index, "min_count")
            yield error(place, "component_counts", "min_count is above max_count", "exchange the two")


def _actions(manifest: Manifest, about: AppContext) -> Iterator[Finding]:
    if manifest.config_schema is not None:
        yield from schema_findings(manifest.config_schema, "/config_schema")
    if manifest.actions and manifest.artifact_kind != "controller":
        reason = f"nobody carries out the actions of a version of kind {manifest.artifact_kind}"
        yield error("/actions", "controller_only", reason, "use the kind `controller`")
    for index, action in enumerate(manifest.actions):
        place = below("/actions", index)
        if (why := why_not_permission(action.permission, manifest, about.category)) is not None:
            fix = f"write 'app.{manifest.app}.{action.name}'"
            yield error(below(place, "permission"), "action_permission", why, fix)
        yield from schema_findings(action.input_schema, below(place, "input_schema"))
        if action.output_schema is not None:
            yield from schema_findings(action.output_schema, below(place, "output_schema"))


def _modes(manifest: Manifest) -> Iterator[Finding]:
    for index, mode in enumerate(manifest.operating_modes):
        place = below("/operating_modes", index)
        if (why := why_incoherent(mode)) is not None:
            pairs = "; ".join(f"{operating_mode} with {scope}" for operating_mode, scope in MODES)
            yield error(place, "mode_incoherent", why, f"choose from {pairs}")
        elif mode in NOT_OFFERED:
            reason = f"{mode[0]} with {mode[1]} is refused for instances until the platform offers it"
            yield warning(place, "mode_not_offered", reason, "leave it out, or keep it for later")


def _required_actions(manifest: Manifest) -> Iterator[Finding]:
    for index, key in enumerate(manifest.required_actions):
        if (why := why_not_required(key, manifest)) is not None:
            fix = f"name a key that a service account may hold, or one below 'app.{manifest.app}.'"
            yield error(below("/required_actions", index), "required_action", why, fix)
    missing = [key for key in _WORKING_KEYS if key not in manifest.required_actions]
    if manifest.artifact_kind == "controller" and missing:
        reason = f"the operator account would not hold {' and '.join(missing)}"
        yield warning("/required_actions", "controller_cannot_work", reason, f"add {', '.join(missing)}")
    if manifest.usage_units and "usage.report" not in manifest.required_actions:
        reason = "the operator account would not hold usage.report, so no unit arrives"
        yield warning("/required_actions", "usage_unreported", reason, "add usage.report")


def _usage(manifest: Manifest) -> Iterator[Finding]:
    for index, each in enumerate(manifest.usage_units):
        words = each.unit.split("_")
        if each.covered_by_allocation:
            continue
        if any(word.rstrip("s") in _PAID_BY_ALLOCATION for word in words) and any(word in _TIMES for word in words):
            place = below("/usage_units", index, "unit")
            fix = "meter what the app does, such as requests or tokens, or say `covered_by_allocation`"
            yield error(place, "unit_repeats_allocation", f"{each.unit!r} is what the allocation pays already", fix)


def _lifecycle(manifest: Manifest) -> Iterator[Finding]:
    controller = manifest.artifact_kind == "controller"
    if controller and manifest.runbook is None:
        reason = "a controller is not staged without a runbook"
        yield error("", "runbook_missing", reason, "add `runbook` with a summary and the known troubles")
    if manifest.lifecycle is None:
        if controller:
            reason = "a controller is not staged without its lifecycle"
            yield error("", "lifecycle_missing", reason, "add `lifecycle` with upgrade, rollback and delete")
        return
    upgrade, rollback = manifest.lifecycle.upgrade, manifest.lifecycle.rollback
    yield from _ranges(upgrade.from_versions, "/lifecycle/upgrade/from_versions")
    yield from _ranges(rollback.to_versions, "/lifecycle/rollback/to_versions")
    if upgrade.strategy == "none" and upgrade.from_versions:
        reason = "versions are named, and the strategy is none"
        yield warning("/lifecycle/upgrade", "upgrade_unused", reason, "choose a strategy, or take the versions out")
    if rollback.supported != bool(rollback.to_versions):
        reason = "a rollback is supported, and leads nowhere" if rollback.supported else "it is not supported"
        fix = "name the versions in `to_versions`, or say that it is not supported"
        yield error("/lifecycle/rollback", "rollback_nowhere", reason, fix)
    yield from _drain(manifest, manifest.lifecycle.drain)
    scopes = {scope for _, scope in manifest.operating_modes}
    if manifest.lifecycle.attach.supported and ControlPlaneScope.TENANT not in scopes:
        reason = "projects may attach, and no way of running serves more than one"
        fix = "add the scope tenant to `operating_modes`, or say that it is not supported"
        yield error("/lifecycle/attach", "attach_nowhere", reason, fix)


def _drain(manifest: Manifest, drain: Drain) -> Iterator[Finding]:
    if drain.from_config is None:
        return
    described = (manifest.config_schema or {}).get("properties", {}).get(drain.from_config)
    if described is None or described.get("type") != "integer":
        reason = f"`config_schema` has no field {drain.from_config!r} that is a whole number"
        fix = "describe the field as an integer of seconds, or correct the name"
        yield error("/lifecycle/drain/from_config", "drain_config", reason, fix)


def _ranges(ranges: tuple[str, ...], pointer: str) -> Iterator[Finding]:
    for index, text in enumerate(ranges):
        try:
            read_range(text)
        except Refusal as refused:
            yield error(below(pointer, index), "version_range", refused.detail, "write a range such as >=1.2.0 <2.0.0")
