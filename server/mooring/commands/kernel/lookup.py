"""What is looked for and not there."""

from typing import TypeVar

from mooring.core.kernel.errors import Code, Refusal

Thing = TypeVar("Thing")


def require(thing: Thing | None, noun: str) -> Thing:
    """The thing, or the refusal that says that there is none to be seen."""
    if thing is None:
        raise Refusal(Code.NOT_FOUND, f"there is no such {noun}, or it is not yours to see", {"noun": noun})
    return thing
