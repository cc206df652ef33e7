"""The refusal for a resource that does not exist, or that the caller may not see."""

from typing import TypeVar

from mooring.core.kernel.errors import Code, Refusal

Resource = TypeVar("Resource")


def require(resource: Resource | None, noun: str) -> Resource:
    """Return the resource; refuse with `not_found` when it is None. The text never says which of the two reasons."""
    if resource is None:
        raise Refusal(Code.NOT_FOUND, f"there is no such {noun}, or you may not see it", {"noun": noun})
    return resource
