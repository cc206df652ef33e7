"""The topology of an instance: how many members each component has, and their ordinals.

What a component means is up to the adapter. An app whose manifest declares no components has one member, of the
component `main`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from mooring.core.catalog.manifest import Component, Manifest
from mooring.core.kernel import validation
from mooring.core.runtime.member import Member, MemberState

ONLY: Final = "main"
"""The component of an app whose manifest declares none."""
MEMBERS_MAX: Final = 1_000
"""How many members one instance may have."""
AT_ONCE_MAX: Final = 200
"""How many members one launch or one add may create: one SQL statement writes them."""
GOING: Final = frozenset({MemberState.REMOVING.value, MemberState.REMOVED.value})


def components_of(manifest: Manifest) -> tuple[Component, ...]:
    """The declared components, or `main` if there are none."""
    return manifest.components or (Component(ONLY, 1, None, 1),)


def component_of(manifest: Manifest, key: str) -> Component | None:
    return next((each for each in components_of(manifest) if each.key == key), None)


def read_topology(manifest: Manifest, wanted: Mapping[str, int]) -> dict[str, int]:
    """Members per component, in the manifest's order; an omitted component gets its default, or else its minimum."""
    components = components_of(manifest)
    known = {each.key for each in components}
    for key in sorted(set(wanted) - known):
        raise validation.invalid(f"topology.{key}", f"the app has no such component; it has {', '.join(sorted(known))}")
    topology = {each.key: wanted.get(each.key, each.launch_count) for each in components}
    if not wanted and not any(topology.values()):
        topology[components[0].key] = 1  # an instance needs at least one member
    for each in components:
        require_count(each, topology[each.key], f"topology.{each.key}")
    total = sum(topology.values())
    if not 1 <= total <= AT_ONCE_MAX:
        raise validation.invalid("topology", f"1 to {AT_ONCE_MAX} members at launch; more can be added afterwards")
    return topology


def require_count(component: Component, count: int, path: str) -> None:
    if not component.min_count <= count <= component.max_count:
        raise validation.invalid(path, f"{component.min_count} to {component.max_count} members of {component.key}")


class MemberSlot(NamedTuple):
    """Identifies a member by its component and its number within that component."""

    component: str
    ordinal: int


def member_slots(topology: Mapping[str, int]) -> list[MemberSlot]:
    """The slots of all members of a new instance."""
    return [MemberSlot(key, ordinal) for key, count in topology.items() for ordinal in range(count)]


def free_ordinals(members: Iterable[Member], key: str, count: int) -> list[int]:
    """The lowest unused ordinals of a component; a member that is being torn down still uses its own."""
    taken = {each.ordinal for each in members if each.component_key == key and each.status != MemberState.REMOVED}
    found: list[int] = []
    ordinal = 0
    while len(found) < count:
        if ordinal not in taken:
            found.append(ordinal)
        ordinal += 1
    return found


def count_staying(members: Iterable[Member], key: str) -> int:
    """How many members of a component are not being removed."""
    return sum(1 for each in members if each.component_key == key and each.status not in GOING)
