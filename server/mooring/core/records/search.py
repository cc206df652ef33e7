"""Searching names and ids: where a caller may look, what a text can mean, and which hits are shown.

Names are found by how they begin, ids too, artifacts by how their digest begins. So each kind costs one range of one
index, however much there is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import FAMILIES, Authority

HITS_MAX: Final = 20
ABOVE_ALL: Final = "\U0010ffff"
"""Sorts behind every character of a name: text followed by it ends the range of what begins with the text."""
_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{6,64}")


class SearchKind(StrEnum):
    """What can be found, in the order in which kinds take turns."""

    INSTANCE = "instance"
    APP = "app"
    ALLOCATION = "allocation"
    PROJECT = "project"
    NODE = "node"
    TENANT = "tenant"
    USER = "user"
    ARTIFACT = "artifact"


ID_PREFIX: Final = {
    SearchKind.INSTANCE: Prefix.INSTANCE,
    SearchKind.APP: Prefix.APP,
    SearchKind.ALLOCATION: Prefix.ALLOCATION,
    SearchKind.PROJECT: Prefix.PROJECT,
    SearchKind.NODE: Prefix.NODE,
    SearchKind.TENANT: Prefix.TENANT,
    SearchKind.USER: Prefix.USER,
    SearchKind.ARTIFACT: Prefix.ARTIFACT,
}
READ_ACTION: Final = {
    SearchKind.INSTANCE: "instance.read",
    SearchKind.APP: "catalog.read",
    SearchKind.ALLOCATION: "allocation.read",
    SearchKind.PROJECT: "project.read",
    SearchKind.NODE: "node.read",
    SearchKind.TENANT: "tenant.read",
    SearchKind.USER: "user.read",
    SearchKind.ARTIFACT: "artifact.read",
}
OF_PLATFORM: Final = frozenset(
    {SearchKind.APP, SearchKind.NODE, SearchKind.TENANT, SearchKind.USER, SearchKind.ARTIFACT}
)
"""What a person of the platform may find: what belongs to no tenant, and the names of tenants."""
OF_TENANT: Final = frozenset(SearchKind) - {SearchKind.NODE, SearchKind.TENANT}


@dataclass(frozen=True, slots=True)
class SearchReach:
    """In which projects a caller may find one kind, and with which category of apps only."""

    everywhere: bool = False  # the whole tenant, or the platform
    projects: tuple[str, ...] = ()
    of_category: tuple[tuple[str, str], ...] = ()  # (project, category), where only the key of the category is held
    categories: tuple[str, ...] = ()  # in the whole tenant, with the key of the category only

    @property
    def is_empty(self) -> bool:
        return not (self.everywhere or self.projects or self.of_category or self.categories)


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The texts from `first` to before `beyond`, of ids or of names."""

    first: str
    beyond: str
    by_id: bool


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Something whose name or id begins like the text."""

    kind: SearchKind
    id: str
    name: str
    detail: str
    status: str | None
    project_id: str | None
    ended: bool = False


def reach(authority: Authority, kind: SearchKind) -> SearchReach:
    """Where the caller may find this kind; the same keys as those of its list decide."""
    action = READ_ACTION[kind]
    if authority.tenant_id is None:
        return SearchReach(everywhere=kind in OF_PLATFORM and action in authority.platform)
    if kind not in OF_TENANT:
        return SearchReach()
    families = FAMILIES.get(action, {})
    return SearchReach(
        everywhere=action in authority.tenant,
        projects=tuple(sorted(each for each, keys in authority.projects.items() if action in keys)),
        of_category=tuple(
            sorted(
                (project, category)
                for project, keys in authority.projects.items()
                for category, key in families.items()
                if key in keys and action not in keys
            )
        ),
        categories=tuple(sorted(category for category, key in families.items() if key in authority.tenant)),
    )


def search_range(kind: SearchKind, text: str) -> SearchRange | None:
    """What the text means for this kind; None: it cannot be the beginning of anything of this kind."""
    wanted = text.strip().lower()
    if not wanted:
        return None
    if "_" in wanted and kind is not SearchKind.USER:  # no name has one, and every id
        is_one = wanted.startswith(f"{ID_PREFIX[kind]}_")
        return SearchRange(wanted, wanted + ABOVE_ALL, by_id=True) if is_one else None
    if kind is SearchKind.USER and wanted.startswith(f"{Prefix.USER}_"):
        return SearchRange(wanted, wanted + ABOVE_ALL, by_id=True)
    if kind is SearchKind.ARTIFACT:
        if _DIGEST.fullmatch(wanted) is None:
            return None
        wanted = f"sha256:{wanted.removeprefix('sha256:')}"
    return SearchRange(wanted, wanted + ABOVE_ALL, by_id=False)


def chosen(hits: Sequence[SearchHit], text: str, limit: int = HITS_MAX) -> list[SearchHit]:
    """At most `limit` hits: those that are exactly the text first, then one of each kind in turn; ended ones last."""
    wanted = text.strip().lower()
    turns: dict[SearchKind, int] = dict.fromkeys(SearchKind, 0)
    order: list[tuple[bool, bool, int, int, SearchHit]] = []
    for hit in hits:
        order.append(
            (wanted not in (hit.name, hit.id), hit.ended, turns[hit.kind], list(SearchKind).index(hit.kind), hit)
        )
        turns[hit.kind] += 1
    order.sort(key=lambda each: each[:4])
    return [each[4] for each in order[:limit]]
