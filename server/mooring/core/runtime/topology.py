"""The topology of an instance: how many members of each component are wanted, and who they are.

What a component means is its adapter's matter. A manifest without components has one member, of the component `main`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from mooring.core.catalog.manifest import Component, Manifest
from mooring.core.kernel import validation
from mooring.core.runtime.member import Member, MemberState

ONLY: Final = "main"
"""The component of an app whose manifest names none."""
MEMBERS_MAX: Final = 1_000
"""Members of one instance."""
AT_ONCE_MAX: Final = 200
"""Members that one launch or one add makes: they become true in one statement."""
GOING: Final = frozenset({MemberState.REMOVING.value, MemberState.REMOVED.value})


def components_of(manifest: Manifest) -> tuple[Component, ...]:
    """The components, and the one of an app that names none."""
    return manifest.components or (Component(ONLY, 1, None, 1),)


def component_of(manifest: Manifest, key: str) -> Component | None:
    """The component of this key."""
    return next((each for each in components_of(manifest) if each.key == key), None)


def read_topology(manifest: Manifest, wanted: Mapping[str, int]) -> dict[str, int]:
    """How many members of each component, in the manifest's order; what is not said is the least that it needs."""
    components = components_of(manifest)
    known = {each.key for each in components}
    for key in sorted(set(wanted) - known):
        raise validation.invalid(f"topology.{key}", f"the app has no such component; it has {', '.join(sorted(known))}")
    topology = {each.key: wanted.get(each.key, each.min_count) for each in components}
    if not wanted and not any(topology.values()):
        topology[components[0].key] = 1  # an instance without any member would be nothing
    for each in components:
        require_count(each, topology[each.key], f"topology.{each.key}")
    total = sum(topology.values())
    if not 1 <= total <= AT_ONCE_MAX:
        raise validation.invalid("topology", f"1 to {AT_ONCE_MAX} members at a launch; more are added to it afterwards")
    return topology


def require_count(component: Component, count: int, path: str) -> None:
    """So many members of the component are within what its manifest allows."""
    if not component.min_count <= count <= component.max_count:
        raise validation.invalid(path, f"{component.min_count} to {component.max_count} members of {component.key}")


def places(topology: Mapping[str, int]) -> list[tuple[str, int]]:
    """The members of a new instance: component and ordinal."""
    return [(key, ordinal) for key, count in topology.items() for ordinal in range(count)]


def free_ordinals(members: Iterable[Member], key: str, count: int) -> list[int]:
    """The next ordinals of a component that nobody has; whoever is still being torn down has his."""
    taken = {each.ordinal for each in members if each.component_key == key and each.status != MemberState.REMOVED}
    found: list[int] = []
    ordinal = 0
    while len(found) < count:
        if ordinal not in taken:
            found.append(ordinal)
        ordinal += 1
    return found


def standing(members: Iterable[Member], key: str) -> int:
    """How many members a component has that are not on their way out."""
    return sum(1 for each in members if each.component_key == key and each.status not in GOING)
