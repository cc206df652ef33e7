"""Lint: the rules of a manifest that a schema cannot express; each finding has its place, the reason and a fix.

A rule is a function over the manifest that yields findings; `RULES` explains in one sentence why each rule exists, for
`mooring manifest explain`. Errors prevent staging, warnings do not. The rules about how members are started are in
`manifest_lint_runtime`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from mooring.core.catalog.compatibility import ShapeWanted
from mooring.core.catalog.manifest import ADAPTER, Drain, Manifest, ManifestReading, read_manifest
from mooring.core.catalog.manifest_lint_runtime import RUNTIME_RULES, runtime_findings
from mooring.core.catalog.manifest_lint_view import VIEW_RULES, view_findings
from mooring.core.catalog.operating_mode import MODES, NOT_OFFERED, ControlPlaneScope, why_incoherent
from mooring.core.catalog.semver import read_range, read_version
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.finding import FINDINGS_MAX, Finding, below, bounded, error, errors_in, warning
from mooring.core.kernel.form_schema import schema_findings
from mooring.core.kernel.permissions import ACTIONS, OPERATOR_CEILING, RETIRED_ACTIONS, is_app_action
from mooring.core.kernel.safe_regex import Patterns
from mooring.core.kernel.work_budget import WorkBudget, until_spent

RULES: Final[Mapping[str, str]] = {
    **RUNTIME_RULES,
    **VIEW_RULES,
    "app_other": "The manifest must belong to the app that it is published under.",
    "name_doubled": "A name that is used twice is ambiguous.",
    "controller_only": "Actions and several nodes need an adapter that knows the app, and only a controller has one.",
    "capacity_contradiction": "No capacity can satisfy two requirements that exclude each other.",
    "multi_node_alone": "A single member runs on one node, whatever is allowed.",
    "component_counts": "The minimum number of members must not be above the maximum.",
    "action_permission": "An action needs a permission of its category's family, or one of the app's own.",
    "mode_incoherent": "Who runs a control plane determines whom it can serve.",
    "mode_not_offered": "The platform does not offer this operating mode yet.",
    "required_action": "An operator account may have only what a service account may have, and its own app's keys.",
    "controller_cannot_work": "An adapter that may not claim and report cannot do anything.",
    "usage_unreported": "The adapter must be allowed to report the usage that the app meters.",
    "unit_repeats_allocation": "The allocation is already charged for its capacity; such a unit must say so.",
    "lifecycle_missing": "A controller must describe upgrade, rollback and deletion before it is staged.",
    "runbook_missing": "A controller must tell operators how to handle problems before it is staged.",
    "version_range": "Versions and ranges of versions must be valid.",
    "upgrade_unused": "Version ranges have no effect without an upgrade strategy.",
    "rollback_nowhere": "A rollback needs the versions that it leads to.",
    "drain_config": "The drain time must be a field with a number of seconds.",
    "attach_nowhere": "Projects can attach only to a control plane of the scope tenant.",
}
"""Every rule of the lint, and why it exists."""

FAMILIES: Final = frozenset(key.removesuffix(".instance.create") for key in ACTIONS if key.endswith(".instance.create"))
"""The categories that have their own family of action keys."""

RESERVED_CATEGORIES: Final = frozenset(key.partition(".")[0] for key in (*ACTIONS, *RETIRED_ACTIONS)) - FAMILIES
"""The first words of the platform's own action keys: a category with such a name would use these keys."""

_PAID_BY_ALLOCATION: Final = ("gpu", "cpu", "core", "node", "machine", "allocation", "memory")
_TIMES: Final = ("second", "seconds", "minute", "minutes", "hour", "hours")
_WORKING_KEYS: Final = ("runtime.claim", "runtime.report")


@dataclass(frozen=True, slots=True)
class AppContext:
    """What is known about the app besides the manifest; None when a manifest is linted on its own."""

    app_slug: str | None = None
    category: str | None = None


def examine(value: object, about: AppContext | None = None) -> ManifestReading:
    """Parse and lint a manifest."""
    budget = WorkBudget()
    reading = read_manifest(value, budget)
    if reading.manifest is None:
        return reading
    return ManifestReading(reading.manifest, lint(reading.manifest, about or AppContext(), budget))


def lint(manifest: Manifest, about: AppContext, budget: WorkBudget | None = None) -> tuple[Finding, ...]:
    """The findings of all rules, errors before warnings."""
    patterns = Patterns(WorkBudget() if budget is None else budget)
    found = bounded(
        chain(
            _identity(manifest, about),
            runtime_findings(manifest),
            _names(manifest),
            _capacity(manifest),
            until_spent(_actions(manifest, about, patterns)),
            view_findings(manifest),
            _modes(manifest),
            _required_actions(manifest),
            _usage(manifest),
            _lifecycle(manifest),
        )
    )
    return tuple(sorted(found, key=lambda each: each.severity))


def refuse_errors(findings: tuple[Finding, ...]) -> None:
    """Refuse a manifest with errors; warnings are allowed."""
    wrong = errors_in(findings)
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Refusal(
            Code.MANIFEST_INVALID,
            f"{wrong[0].pointer or '/'}: {wrong[0].reason}; {wrong[0].fix}{more}",
            {"findings": [each.as_dict() for each in findings[:FINDINGS_MAX]]},
        )


def why_not_permission(key: str, manifest: Manifest, category: str | None) -> str | None:
    """Why an action cannot have this permission; None when it can."""
    if key.startswith(f"app.{manifest.app}."):
        suffix = key.removeprefix(f"app.{manifest.app}.")
        if is_app_action(key) and any(action.name == suffix for action in manifest.actions):
            return None
        return f"this manifest has no action {key!r}"
    family = key.partition(".")[0]
    if key in ACTIONS and family in FAMILIES and category in (None, family):
        return None
    if category in FAMILIES:
        return f"{key!r} belongs neither to the family {category!r} nor to this app"
    return f"{key!r} does not belong to this app"


def why_not_required(key: str, manifest: Manifest) -> str | None:
    """Why the operator account cannot have this key; None when it can."""
    if key in OPERATOR_CEILING or key in RETIRED_ACTIONS:
        return None
    if is_app_action(key):
        return None if key.startswith(f"app.{manifest.app}.") else f"{key!r} belongs to another app"
    return f"no service account may have {key!r}" if key in ACTIONS else f"there is no action {key!r}"


def _identity(manifest: Manifest, about: AppContext) -> Iterator[Finding]:
    if about.app_slug is not None and about.app_slug != manifest.app:
        reason = f"the manifest is for {manifest.app!r}, the app is {about.app_slug!r}"
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
                yield error(below("", section, index), "name_doubled", f"{name!r} is used twice", "rename one of them")
    roles = Counter(manifest.artifacts.values())
    for role, digest in manifest.artifacts.items():
        if roles[digest] > 1:
            reason = "another role has the same digest"
            yield warning(below("/artifacts", role), "name_doubled", reason, "keep one role, or correct the digest")


def _capacity(manifest: Manifest) -> Iterator[Finding]:
    wanted = manifest.compatibility
    if wanted.requires_exclusive_node and wanted.requires_capacity_shape is ShapeWanted.GPU_SLICE:
        reason = "a gpu_slice shares its node, but an exclusive node is required"
        fix = "require baremetal, or drop the exclusive node"
        yield error("/compatibility", "capacity_contradiction", reason, fix)
    facts = [need.fact for need in wanted.needs]
    for index, fact in enumerate(facts):
        if fact in facts[:index]:
            place = below("/compatibility/needs", index)
            yield error(place, "capacity_contradiction", f"{fact!r} is required twice", "combine both into one need")
    if wanted.multi_node:
        if manifest.artifact_kind != "controller":
            reason = f"a version of kind {manifest.artifact_kind} has no adapter that joins its nodes"
            yield error("/compatibility/multi_node", "controller_only", reason, "use the kind `controller`")
        elif wanted.members_max == 1:
            reason = "there is only one member, which runs on one node"
            yield error("/compatibility/multi_node", "multi_node_alone", reason, "describe `components`")
    for index, component in enumerate(manifest.components):
        if component.min_count > component.max_count:
            place = below("/components", index, "min_count")
            yield error(place, "component_counts", "min_count is above max_count", "swap the two")
        elif not component.min_count <= component.launch_count <= component.max_count:
            place = below("/components", index, "default_count")
            reason = "default_count is not between min_count and max_count"
            yield error(place, "component_counts", reason, "choose a number between the two")


def _actions(manifest: Manifest, about: AppContext, patterns: Patterns) -> Iterator[Finding]:
    if manifest.config_schema is not None:
        yield from schema_findings(manifest.config_schema, patterns, "/config_schema")
    if manifest.actions and manifest.artifact_kind != "controller":
        reason = f"a version of kind {manifest.artifact_kind} has no adapter that carries out actions"
        yield error("/actions", "controller_only", reason, "use the kind `controller`")
    for index, action in enumerate(manifest.actions):
        place = below("/actions", index)
        if (why := why_not_permission(action.permission, manifest, about.category)) is not None:
            fix = f"write 'app.{manifest.app}.{action.name}'"
            yield error(below(place, "permission"), "action_permission", why, fix)
        yield from schema_findings(action.input_schema, patterns, below(place, "input_schema"))
        if action.output_schema is not None:
            yield from schema_findings(action.output_schema, patterns, below(place, "output_schema"))


def _modes(manifest: Manifest) -> Iterator[Finding]:
    for index, mode in enumerate(manifest.operating_modes):
        place = below("/operating_modes", index)
        if (why := why_incoherent(mode)) is not None:
            pairs = "; ".join(f"{operating_mode} with {scope}" for operating_mode, scope in MODES)
            yield error(place, "mode_incoherent", why, f"choose from {pairs}")
        elif mode in NOT_OFFERED:
            reason = f"instances cannot use {mode[0]} with {mode[1]} until the platform offers it"
            yield warning(place, "mode_not_offered", reason, "remove it, or keep it for later")


def _required_actions(manifest: Manifest) -> Iterator[Finding]:
    for index, key in enumerate(manifest.required_actions):
        if (why := why_not_required(key, manifest)) is not None:
            fix = f"use a key that a service account may have, or one that begins with 'app.{manifest.app}.'"
            yield error(below("/required_actions", index), "required_action", why, fix)
    missing = [key for key in _WORKING_KEYS if key not in manifest.required_actions]
    if manifest.artifact_kind == "controller" and missing:
        reason = f"the operator account would not have {' and '.join(missing)}"
        yield warning("/required_actions", "controller_cannot_work", reason, f"add {', '.join(missing)}")
    reported = [each for each in manifest.usage_units if each.counted_by == ADAPTER]
    if reported and "usage.report" not in manifest.required_actions:
        reason = "the operator account would not have usage.report, so it cannot report any unit"
        yield warning("/required_actions", "usage_unreported", reason, "add usage.report")


def _usage(manifest: Manifest) -> Iterator[Finding]:
    for index, each in enumerate(manifest.usage_units):
        words = each.unit.split("_")
        if each.covered_by_allocation:
            continue
        if any(word.rstrip("s") in _PAID_BY_ALLOCATION for word in words) and any(word in _TIMES for word in words):
            place = below("/usage_units", index, "unit")
            fix = "meter what the app does, such as requests or tokens, or set `covered_by_allocation`"
            yield error(place, "unit_repeats_allocation", f"the allocation already pays for {each.unit!r}", fix)


def _lifecycle(manifest: Manifest) -> Iterator[Finding]:
    controller = manifest.artifact_kind == "controller"
    if controller and manifest.runbook is None:
        reason = "a controller cannot be staged without a runbook"
        yield error("", "runbook_missing", reason, "add `runbook` with a summary and the known problems")
    if manifest.lifecycle is None:
        if controller:
            reason = "a controller cannot be staged without a lifecycle"
            yield error("", "lifecycle_missing", reason, "add `lifecycle` with upgrade, rollback and delete")
        return
    upgrade, rollback = manifest.lifecycle.upgrade, manifest.lifecycle.rollback
    yield from _ranges(upgrade.from_versions, "/lifecycle/upgrade/from_versions")
    yield from _ranges(rollback.to_versions, "/lifecycle/rollback/to_versions")
    if upgrade.strategy == "none" and upgrade.from_versions:
        reason = "versions are listed, but the strategy is none"
        yield warning("/lifecycle/upgrade", "upgrade_unused", reason, "choose a strategy, or remove the versions")
    if rollback.supported != bool(rollback.to_versions):
        supported = "a rollback is supported, but no version is listed"
        unsupported = "versions are listed, but a rollback is not supported"
        reason = supported if rollback.supported else unsupported
        fix = "list the versions in `to_versions`, or set `supported` to false"
        yield error("/lifecycle/rollback", "rollback_nowhere", reason, fix)
    yield from _drain(manifest, manifest.lifecycle.drain)
    scopes = {scope for _, scope in manifest.operating_modes}
    if manifest.lifecycle.attach.supported and ControlPlaneScope.TENANT not in scopes:
        reason = "projects may attach, but no operating mode serves more than one project"
        fix = "add the scope tenant to `operating_modes`, or set `supported` to false"
        yield error("/lifecycle/attach", "attach_nowhere", reason, fix)


def _drain(manifest: Manifest, drain: Drain) -> Iterator[Finding]:
    if drain.from_config is None:
        return
    described = (manifest.config_schema or {}).get("properties", {}).get(drain.from_config)
    if described is None or described.get("type") != "integer":
        reason = f"`config_schema` has no integer field {drain.from_config!r}"
        fix = "describe the field as an integer of seconds, or correct the name"
        yield error("/lifecycle/drain/from_config", "drain_config", reason, fix)


def _ranges(ranges: tuple[str, ...], pointer: str) -> Iterator[Finding]:
    for index, text in enumerate(ranges):
        try:
            read_range(text)
        except Refusal as refused:
            yield error(below(pointer, index), "version_range", refused.detail, "write a range such as >=1.2.0 <2.0.0")
