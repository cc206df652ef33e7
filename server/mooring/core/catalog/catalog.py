"""The catalog of a project: the apps that it may launch, and for the others the reasons why not.

An entry is an app with the version that the project's channel selects, and the obstacles to launching it: not
entitled, not offered, deprecated, denied by policy, not trusted, no compatible capacity. It lists all obstacles and not
only the first, so that an admin sees everything that has to change. Launching an instance uses the same function, so
the catalog never promises what a launch then refuses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.channel import Candidate, stable, why_not_offered
from mooring.core.catalog.compatibility import Compatibility, Offer, best_fit
from mooring.core.catalog.entitlement import ACTIONS_REASON, Entitlement, why_not_entitled
from mooring.core.catalog.policy import PolicyChain, PolicyRequest
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.semver import read_version
from mooring.core.catalog.workload_adapter import why_not_operated
from mooring.core.kernel import validation
from mooring.core.kernel.errors import Code, Refusal

SEARCH_LENGTH_MAX: Final = 200
SEARCH_WORDS_MAX: Final = 8


class Obstacle(StrEnum):
    """The kind of an obstacle."""

    NOT_ENTITLED = "not_entitled"
    ACTIONS_NOT_AGREED = "actions_not_agreed"
    NOT_OFFERED = "not_offered"
    DEPRECATED = "deprecated"
    POLICY = "policy"
    UNTRUSTED = "untrusted"
    NO_COMPATIBLE_CAPACITY = "no_compatible_capacity"
    NO_ADAPTER = "no_adapter"


_OBSTACLE_OF: Final = {
    Code.NOT_ENTITLED: Obstacle.NOT_ENTITLED,
    Code.VERSION_NOT_OFFERED: Obstacle.NOT_OFFERED,
    Code.VERSION_DEPRECATED: Obstacle.DEPRECATED,
    Code.POLICY_DENIED: Obstacle.POLICY,
    Code.SOURCE_DENIED: Obstacle.POLICY,
    Code.INCOMPATIBLE: Obstacle.NO_COMPATIBLE_CAPACITY,
    Code.ADAPTER_MISSING: Obstacle.NO_ADAPTER,
}


@dataclass(frozen=True, slots=True)
class LaunchObstacle:
    """One reason why an app may not be launched."""

    obstacle: Obstacle
    refusal: Refusal

    @property
    def reason(self) -> str:
        return self.refusal.detail


@dataclass(frozen=True, slots=True)
class VersionNeeds:
    """What a version requires of a project, by its manifest and the current state of its artifacts."""

    compatibility: Compatibility
    required_actions: tuple[str, ...]
    artifacts: tuple[tuple[Artifact, Trust], ...]


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """What is known about the project that reads the catalog."""

    project_id: str
    entitlement: Entitlement | None
    policy: PolicyChain  # global, tenant and project
    gpus_held: int = 0
    has_adapter_key: bool = True  # whether the operator account has a key
    offers: Sequence[Offer] | None = None  # capacity that it has or could get; None skips the check

    def chain(self) -> PolicyChain:
        """The policy of the project, narrowed by the entitlement."""
        return self.policy if self.entitlement is None else self.policy.narrowed(*self.entitlement.layer)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """An app as a project sees it."""

    app: App
    version: AppVersion | None
    obstacles: tuple[LaunchObstacle, ...]

    @property
    def launchable(self) -> bool:
        return not self.obstacles


def chosen_version(versions: Iterable[AppVersion], project_id: str) -> AppVersion | None:
    """The version that the stable channel selects for the project, or else the newest deprecated one."""
    known = {version.id: version for version in versions}
    chosen = chosen_candidate([version.candidate() for version in known.values()], project_id)
    return None if chosen is None else known[chosen.version_id]


def chosen_candidate(candidates: Sequence[Candidate], project_id: str) -> Candidate | None:
    """Like `chosen_version`, for versions without their manifests."""
    candidate = stable(candidates, project_id)
    if candidate is not None:
        return candidate
    deprecated = [each for each in candidates if each.promotion is PromotionState.DEPRECATED]
    return max(deprecated, key=lambda each: each.version, default=None)


def newest_candidate(candidates: Sequence[Candidate]) -> Candidate | None:
    """The version to show outside of a project: the newest active one, or else the newest canary or deprecated one."""
    order = (PromotionState.ACTIVE, PromotionState.CANARY, PromotionState.DEPRECATED)
    for state in order:
        found = [each for each in candidates if each.promotion is state]
        if found:
            return max(found, key=lambda each: each.version)
    return None


def catalog_entry(
    app: App, version: AppVersion | None, needed: VersionNeeds | None, project: ProjectContext
) -> CatalogEntry:
    """The app with its chosen version, and all obstacles that keep the project from launching it."""
    if version is None or needed is None:
        refusal = Refusal(Code.VERSION_NOT_OFFERED, f"no version of {app.slug} is offered to this project")
        refusals: list[Refusal | None] = [refusal, _not_entitled_at_all(project)]
    else:
        refusals = _refusals(app, version, needed, project)
    found = [refusal for refusal in refusals if refusal is not None]
    return CatalogEntry(
        app,
        version,
        tuple(LaunchObstacle(_obstacle(refusal), refusal) for refusal in found),
    )


def _obstacle(refusal: Refusal) -> Obstacle:
    if refusal.details.get("reason") == ACTIONS_REASON:
        return Obstacle.ACTIONS_NOT_AGREED
    return _OBSTACLE_OF.get(refusal.code, Obstacle.UNTRUSTED)


def search_words(text: str, path: str = "search") -> tuple[str, ...]:
    """The words of a search text, in lower case; a result must contain each of them."""
    if len(text) > SEARCH_LENGTH_MAX:
        raise validation.invalid(path, f"at most {SEARCH_LENGTH_MAX} characters")
    words = tuple(dict.fromkeys(validation.remark(text, path).lower().split()))
    if len(words) > SEARCH_WORDS_MAX:
        raise validation.invalid(path, f"at most {SEARCH_WORDS_MAX} words")
    return words


def _refusals(app: App, version: AppVersion, needed: VersionNeeds, project: ProjectContext) -> list[Refusal | None]:
    chain = project.chain()
    gpus = project.gpus_held + needed.compatibility.min_gpu_count
    not_entitled = why_not_entitled(project.entitlement, read_version(version.version), needed.required_actions)
    return [
        not_entitled,
        why_not_offered(version.candidate(), project.project_id),
        chain.decide(PolicyRequest(app=app.slug)).refusal(),
        chain.decide(PolicyRequest(gpus=gpus)).refusal(),
        *(trust.refusal(artifact) for artifact, trust in needed.artifacts),
        _no_capacity(needed.compatibility, project.offers),
        None if not_entitled is not None else _no_adapter(app, version, project),
    ]


def _no_adapter(app: App, version: AppVersion, project: ProjectContext) -> Refusal | None:
    entitlement = project.entitlement
    if entitlement is None:
        return None
    kind = str(version.manifest["artifact_kind"])
    return why_not_operated(app.slug, kind, entitlement.agreed_actions, has_key=project.has_adapter_key)


def _not_entitled_at_all(project: ProjectContext) -> Refusal | None:
    if project.entitlement is not None and project.entitlement.enabled:
        return None
    return Refusal(Code.NOT_ENTITLED, "the project is not entitled to this app", {"reason": "not_entitled"})


def _no_capacity(compatibility: Compatibility, offers: Sequence[Offer] | None) -> Refusal | None:
    if offers is None:
        return None
    best = best_fit(compatibility, offers)
    if best is None:
        detail = "the project has no capacity, and none is available to it"
        return Refusal(Code.INCOMPATIBLE, detail, {"blockers": [], "smallest_change": "an allocation"})
    return best.refusal()
