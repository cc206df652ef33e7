"""Use cases of versions: publishing, replacing a draft's manifest, and every step of the promotion.

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
from mooring.core.catalog.artifact_promotion import CheckResult, PromotionRequest
from mooring.core.catalog.manifest_lint import AppContext, examine, refuse_errors
from mooring.core.catalog.promotion_lifecycle import PromotionState, PromotionTrigger
from mooring.core.kernel.decision import Decision, DecisionContext, Insert
from mooring.core.kernel.finding import errors_in
from mooring.core.kernel.ids import Prefix, is_id
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import app_version as versions


async def create(work: Work[AppVersion], app_id: str, manifest: object) -> Answered:
    return await work.execute(lambda: _app(work, app_id), lambda app: create_version(work.context, app, manifest))


async def update(
    work: Work[AppVersion], app_id: str, version_id: str, manifest: object, revision_seen: int | None
) -> Answered:
    async def load() -> tuple[App, AppVersion]:
        return await _app(work, app_id), await _version(work, app_id, version_id)

    return await work.execute(load, lambda loaded: replace_manifest(work.context, *loaded, manifest, revision_seen))


@dataclass(frozen=True, slots=True)
class _VersionContext:
    """A version, its app, and the facts that decide about its promotion."""

    app: App
    version: AppVersion
    facts: VersionFacts


async def promote(work: Work[AppVersion], app_id: str, version_id: str, request: PromotionRequest) -> Answered:
    """Promote a version one step, or change the percentage of a canary."""

    async def load() -> _VersionContext:
        app, version = await _app(work, app_id), await _version(work, app_id, version_id)
        return _VersionContext(app, version, await _facts(work, version, request))

    def decide(loaded: _VersionContext) -> Decision[AppVersion]:
        version = loaded.version
        if request.trigger is PromotionTrigger.CANARY and version.promotion == PromotionState.CANARY:
            return set_canary_percentage(work.context, version, request.canary_percentage or 0, request.reason)
        if request.trigger is PromotionTrigger.STAGE and version.promotion == PromotionState.DRAFT:
            return _staged(work.context, loaded.app, version, request, loaded.facts)
        return move_version(work.context, version, request, loaded.facts)

    return await work.execute(load, decide)


def _staged(
    context: DecisionContext, app: App, version: AppVersion, request: PromotionRequest, facts: VersionFacts
) -> Decision[AppVersion]:
    """Stage a version with its checks; a manifest with errors is refused with all findings."""
    findings = examine(version.manifest, AppContext(app.slug, app.category)).findings
    refuse_errors(findings)
    behind = why_version_ahead(version, PromotionState.STAGED, facts.parts)
    if behind is not None:
        raise behind
    linted = CheckResult("lint", version.manifest_digest, not errors_in(findings), f"{len(findings)} warnings")
    checks = (linted, *facts.checks)
    decision = move_version(context, version, request, replace(facts, checks=checks))
    rows = tuple(
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
    return replace(decision, writes=(*decision.writes, *rows))


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
