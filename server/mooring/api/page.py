"""Pages of lists with opaque cursors.

A cursor names its list, so that one of another list is refused instead of misread.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar

import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.kernel.page_window import PageWindow

AFTER_ALL: Final = "~"
"""Behind every id: where a list that shows the newest first starts."""

Item = TypeVar("Item")

Cursor = Annotated[
    str,
    msgspec.Meta(max_length=300, pattern="^[A-Za-z0-9_-]*$", description="`next_cursor` of the previous page."),
]
Limit = Annotated[int, msgspec.Meta(ge=1, le=500, description="Maximum number of items on the page.")]


class PageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a page starts and how long it is."""

    cursor: Cursor | None = None
    limit: Limit = 100


class Page(msgspec.Struct, Generic[Item], kw_only=True):
    """Part of a list; `next_cursor` gets the next part, and is null at the end."""

    items: list[Item]
    next_cursor: str | None = None


class CursorQuery(Protocol):
    """A query that says where to go on."""

    cursor: Cursor | None


def start(query: CursorQuery, name: str, first: str = "") -> str:
    """The key after which the page starts."""
    if not query.cursor:
        return first
    try:
        form, listed, after = (
            base64.urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4)).decode().split("|")
        )
    except (ValueError, binascii.Error, UnicodeDecodeError) as error:
        raise Refusal(Code.CURSOR_INVALID, "this is not a cursor of this list") from error
    if form != "p1" or listed != name or "\0" in after:
        raise Refusal(Code.CURSOR_INVALID, "this cursor belongs to another list")
    return after


def encode_cursor(name: str, after: str) -> str:
    """The cursor of a list that goes on after this key."""
    return base64.urlsafe_b64encode(f"p1|{name}|{after}".encode()).decode().rstrip("=")


def page_window(query: PageQuery, name: str, first: str = "") -> PageWindow:
    """What to read for this page: one row more than it shows, which says whether another page follows."""
    return PageWindow(start(query, name, first), query.limit + 1)


def page(items: Sequence[Any], query: PageQuery, name: str, view: Callable[[Any], Any]) -> Page[Any]:
    """The page of `items`, of which one more than the limit was read."""
    shown = items[: query.limit]
    following = None
    if len(items) > query.limit:
        following = encode_cursor(name, shown[-1].id)
    return Page(items=[view(item) for item in shown], next_cursor=following)
