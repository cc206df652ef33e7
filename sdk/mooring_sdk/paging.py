"""Iterate over the items of all pages of a list."""

from typing import Any

import msgspec

from mooring_sdk.calls import Call, perform, read_answer
from mooring_sdk.flow import Emit, Flow
from mooring_sdk.session import Session


class Page(msgspec.Struct):
    """One page of any list, with its items as plain data."""

    items: list[Any]
    next_cursor: str | None = None


def pages(session: Session, call: Call, model: Any, most: int | None = None) -> Flow[None]:
    """Emit the items of a list as their model, at most `most` of them."""
    query = dict(call.query)
    emitted = 0
    while most is None or emitted < most:
        response = yield from perform(session, Call(call.operation, call.path, query, call.body, call.options))
        page = read_answer(response, model)
        for item in page.items[: None if most is None else most - emitted]:
            yield Emit(item)
            emitted += 1
        # A list without an end (events) always has a next cursor: an empty page is its end for now.
        if page.next_cursor is None or not page.items:
            return
        query["cursor"] = page.next_cursor
