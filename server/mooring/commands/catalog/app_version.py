"""Use cases for versions: publishing, replacing a draft's manifest, and every step of the promotion.

Staging runs the checks itself: lint of the stored manifest, and smoke, which for a version means that the last smoke
check of each of its artifacts passed. The results are stored together with the transition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from mooring.commands.catalog.artifact_evaluation import evaluate_artifacts
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import (
    AppVersion,
    VersionFacts,
    VersionPart,
    create_version,
    move_version,
    replace_manifest,
    set_canary_percentage,
    why_version_ahead,
)
from mooring.core.catalog.artifact_promotion import CheckResult, Hold, PromotionRequest
from mooring.core.catalog.manifest import ManifestReading
from mooring.core.catalog.manifest_lint import AppContext, examine, refuse_errors
from mooring.core.catalog.promotion_lifecycle import PromotionState, PromotionTrigger
from mooring.core.kernel.decision import Decision, DecisionContext, Insert
from mooring.core.kernel.finding import Finding, errors_in
from mooring.core.kernel.ids import Prefix, is_id
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import app_version as versions


async def examine_apart(services: Services, tenant: str, manifest: object, about: AppContext) -> ManifestReading:
    """Parse and lint a manifest in a thread, because a large one takes longer than other requests should wait."""
    return await services.threads.run(tenant, examine, manifest, about)


async def create(work: Work[AppVersion], app_id: str, manifest: object) -> Answered:
    async def load() -> tuple[App, ManifestReading]:
        app = await _app(work, app_id)
        return app, await _examined(work, app, manifest)

    return await work.execute(load, lambda loaded: create_version(work.context, loaded[0], manifest, loaded[1]))


async def update(
    work: Work[AppVersion], app_id: str, version_id: str, manifest: object, revision_seen: int | None
) -> Answered:
    async def load() -> _ReplacedContext:
        app, version = await _app(work, app_id), await _version(work, app_id, version_id)
        holds = await versions.holds(work.database, work.acting, version.id)
        return _ReplacedContext(app, version, await _examined(work, app, manifest), holds)

    def decide(loaded: _ReplacedContext) -> Decision[AppVersion]:
        decision = replace_manifest(
            work.context,
            loaded.app,
            loaded.version,
            manifest,
            revision_seen,
            reading=loaded.reading,
            holds=loaded.holds,
        )
        after = decision.result
        if after.promotion == PromotionState.DRAFT:
            return decision
        # The same artifacts passed smoke, and lint was repeated: both hold for the corrected manifest.
        smoke = CheckResult("smoke", after.manifest_digest, True, "each artifact passed it when the version was staged")
        checks = (_linted(after, loaded.reading.findings), smoke)
        return replace(decision, writes=(*decision.writes, *_check_rows(work.context, after, checks)))

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _ReplacedContext:
    """A version, its app, its examined new manifest, and what uses the version."""

    app: App
    version: AppVersion
    reading: ManifestReading
    holds: Sequence[Hold]


async def _examined(work: Work[Any], app: App, manifest: object) -> ManifestReading:
    tenant = work.acting.tenant_id or work.context.actor.id
    return await examine_apart(work.services, tenant, manifest, AppContext(app.slug, app.category))


@dataclass(frozen=True, slots=True)
class _VersionContext:
    """A version, its app, and the facts that decide about its promotion."""

    app: App
    version: AppVersion
    facts: VersionFacts
    reading: ManifestReading | None = None  # of a draft that is to be staged


async def promote(work: Work[AppVersion], app_id: str, version_id: str, request: PromotionRequest) -> Answered:
    """Promote a version one step, or change the percentage of a canary."""

    async def load() -> _VersionContext:
        app, version = await _app(work, app_id), await _version(work, app_id, version_id)
        facts, reading = await _facts(work, version, request), None
        if request.trigger is PromotionTrigger.STAGE and version.promotion == PromotionState.DRAFT:
            reading = await _examined(work, app, version.manifest)
        return _VersionContext(app, version, facts, reading)

    def decide(loaded: _VersionContext) -> Decision[AppVersion]:
        version = loaded.version
        if request.trigger is PromotionTrigger.CANARY and version.promotion == PromotionState.CANARY:
            return set_canary_percentage(work.context, version, request.canary_percentage or 0, request.reason)
        if loaded.reading is not None:
            return _staged(work.context, version, request, loaded.facts, loaded.reading.findings)
        return move_version(work.context, version, request, loaded.facts)

    return await work.execute(load, decide)


def _staged(
    context: DecisionContext,
    version: AppVersion,
    request: PromotionRequest,
    facts: VersionFacts,
    findings: tuple[Finding, ...],
) -> Decision[AppVersion]:
    """Stage a version with its checks; a manifest with errors is refused with all findings."""
    refuse_errors(findings)
    behind = why_version_ahead(version, PromotionState.STAGED, facts.parts)
    if behind is not None:
        raise behind
    checks = (_linted(version, findings), *facts.checks)
    decision = move_version(context, version, request, replace(facts, checks=checks))
    return replace(decision, writes=(*decision.writes, *_check_rows(context, version, checks)))


def _linted(version: AppVersion, findings: tuple[Finding, ...]) -> CheckResult:
    return CheckResult("lint", version.manifest_digest, not errors_in(findings), f"{len(findings)} warnings")


def _check_rows(context: DecisionContext, version: AppVersion, checks: Sequence[CheckResult]) -> tuple[Insert, ...]:
    return tuple(
        Insert(
            "app_version_check",
            {
                "id": context.mint(Prefix.APP_VERSION_CHECK),
                "tenant_id": version.tenant_id,
                "version_id": version.id,
                "name": each.name,
                "subject": each.subject,
                "passed": each.passed,
                "detail": each.detail,
                "created_at": context.now,
            },
        )
        for each in checks
    )


async def _smoke(work: Work[Any], version: AppVersion, parts: Sequence[VersionPart]) -> CheckResult:
    """The smoke check of a version: whether the last smoke check of each artifact passed."""
    smoked = await versions.smoked(work.database, work.acting, [each.artifact.id for each in parts if each.artifact])
    failed = [each.role for each in parts if each.artifact is not None and not smoked.get(each.artifact.id, False)]
    detail = f"not passed by: {', '.join(failed)}" if failed else "each artifact passed it"
    return CheckResult("smoke", version.manifest_digest, not failed, detail)


async def _facts(work: Work[Any], version: AppVersion, request: PromotionRequest) -> VersionFacts:
    registered = await versions.artifacts(work.database, work.acting, version.digests, version.tenant_id)
    roles: dict[str, str] = version.manifest.get("artifacts", {})
    measured = await evaluate_artifacts(work.services, work.acting, None, list(registered.values()))
    trust = {each.artifact.digest: each.trust for each in measured}
    parts = [
        VersionPart(role, digest, registered.get(digest), trust.get(digest)) for role, digest in sorted(roles.items())
    ]
    checks = [await _smoke(work, version, parts)] if request.trigger is PromotionTrigger.STAGE else []
    successor = None
    if request.superseded_by is not None and is_id(request.superseded_by, Prefix.APP_VERSION):
        successor = await versions.find(work.database, work.acting, version.app_id, request.superseded_by)
    holds = await versions.holds(work.database, work.acting, version.id)
    grace_period = timedelta(days=work.services.settings.promotion_grace_days)
    return VersionFacts(parts, checks, holds, successor, grace_period)


async def _app(work: Work[Any], app_id: str) -> App:
    return require(await apps.find(work.database, work.acting, app_id), "app")


async def _version(work: Work[Any], app_id: str, version_id: str) -> AppVersion:
    return require(await versions.find(work.database, work.acting, app_id, version_id), "version")
