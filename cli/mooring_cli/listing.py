"""Lists: the living resources of a noun as a table, once or again whenever something changed.

What is stopped, released or removed is only history: a table leaves it out unless --all or --status is given. JSON and
YAML are complete. With --watch the table is drawn again when an event of its scope arrives; a caller without
`event.read` gets it read again every few seconds.
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mooring_cli import output
from mooring_cli.columns import DEAD, OF_NOUN
from mooring_cli.invocation import Invocation, plain_call
from mooring_cli.nouns import CommandEndpoint, Noun, Verb
from mooring_cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from mooring_sdk import MooringError

LIMIT = 100
PAGE_MAX = 500
EVENT_WAIT_SECONDS = 20
AGAIN_SECONDS = 2.0
COMPLETE = ("json", "yaml")
POINTERS = {
    "apps": "mooring catalog list shows the apps that a project can launch.",
    "instances": "mooring launch APP launches one; mooring catalog list shows the apps.",
}
"""What to say about an empty list, where people look for something else."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Which list is shown, and how."""

    invocation: Invocation
    noun: Noun
    kind: str
    endpoint: CommandEndpoint
    path: dict[str, str]
    query: dict[str, Any]
    limit: int | None = None
    everything: bool = False

    @property
    def dead(self) -> tuple[str, ...]:
        """The states that are left out."""
        if self.everything or "status" in self.query or self.invocation.output in COMPLETE:
            return ()
        return DEAD.get(self.kind, ())

    def items(self) -> tuple[list[dict[str, Any]], bool]:
        """The items to show, and whether there are more."""
        living = (each for each in self._all() if each.get("status") not in self.dead)
        if not self.limit:
            return list(living), False
        found = list(itertools.islice(living, self.limit + 1))
        return found[: self.limit], len(found) > self.limit

    def _all(self) -> Iterator[dict[str, Any]]:
        if not self.endpoint.pages:
            yield from self.invocation.call(self.endpoint.operation, self.path, self.query)["items"]
            return
        bounded = self.limit is not None and self.limit > 0 and not self.dead
        size = min(self.limit + 1, PAGE_MAX) if bounded and self.limit else PAGE_MAX
        call = plain_call(self.endpoint.operation, self.path, {**self.query, "limit": size})
        yield from self.invocation.client.pages(call)


def kind_of(verb: Verb, noun: Noun) -> str:
    """What a list has in it: `nodes list` has nodes, `nodes tasks` has tasks."""
    return noun.singular if verb.name == "list" else verb.name.removesuffix("s")


def list_options(verb: Verb, noun: Noun) -> list[click.Parameter]:
    """The options of a list."""
    options: list[click.Parameter] = []
    first = verb.endpoints[0]
    if first.pages:
        about = f"Show at most this many; 0 for all. [default: {LIMIT}]"
        options.append(click.Option(["--limit"], type=click.IntRange(min=0), default=LIMIT, help=about))
    if (kind := kind_of(verb, noun)) in DEAD:
        about = f"Include what is {' or '.join(DEAD[kind])}."
        options.append(click.Option(["--all", "everything"], is_flag=True, help=about))
    about = "Show it again whenever something changes, until interrupted."
    options.append(click.Option(["--watch", "-w"], is_flag=True, help=about))
    return options


def show_list(asked: ListRequest, *, empty: str) -> None:
    """Show the items of a list, and say so if it is empty or there are more."""
    invocation = asked.invocation
    items, more = asked.items()
    if items or invocation.output != "table":
        output.show(invocation.output, items, OF_NOUN.get(asked.kind, ()), wide=invocation.wide)
    else:
        output.note(nothing_text(asked, empty))
    if more:
        output.note(f"There are more than {asked.limit}; use --limit 0 to show all.")


def nothing_text(asked: ListRequest, empty: str) -> str:
    """What to say about an empty table: that nothing is alive, or how to make the first item."""
    if asked.dead and next(asked._all(), None) is not None:
        return f"No {asked.noun.name.replace('-', ' ')}; --all includes what is {' or '.join(asked.dead)}."
    pointer = POINTERS.get(asked.noun.name)
    return f"{empty}\n{pointer}" if pointer else empty


def watch_list(asked: ListRequest, *, scope: str) -> None:
    """Show a list again whenever something changed: drawn in place on a terminal, otherwise the changed rows."""
    invocation, before = asked.invocation, dict[str, Any]()
    changes = changes_of(invocation, scope, asked.path)
    drawn = sys.stdout.isatty() and invocation.output == "table"
    display = ProgressDisplay.of(invocation)
    try:
        for _ in changes:
            items, _more = asked.items()
            if drawn:
                display.show(output.table_lines(items, OF_NOUN.get(asked.kind, ()), coloured=False))
                continue
            changed = [each for each in items if before.get(str(each.get("id"))) != each]
            before = {str(each.get("id")): each for each in items}
            show_changed(asked, changed)
    finally:
        display.keep()  # Ctrl-C leaves the last table on the screen


def show_changed(asked: ListRequest, rows: list[dict[str, Any]]) -> None:
    """Print the rows that are new or have changed: one JSON object per line, or a table."""
    form = asked.invocation.output
    if form == "json":
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
    elif rows:
        output.show(form, rows, OF_NOUN.get(asked.kind, ()), wide=asked.invocation.wide)
    sys.stdout.flush()


def changes_of(invocation: Invocation, scope: str, path: dict[str, str]) -> Iterator[None]:
    """Yields at once, and then whenever something changed in a scope; it never ends.

    It waits for events of the scope. Without a scope of its own, or without the permission to read its events, it
    yields every few seconds.
    """
    from mooring_sdk import MooringError

    operation = f"list_{scope}_events"
    where = {name: value for name, value in path.items() if name in (f"{scope}_id",)}
    cursor = None
    try:
        if scope in ("project", "tenant", "platform"):
            cursor = invocation.call(operation, where, {"newest": True, "limit": 1})["next_cursor"]
    except MooringError as error:
        if not is_refused(error) and not knows_no_newest(error):
            raise
    yield
    while True:
        if cursor is None:
            time.sleep(AGAIN_SECONDS)
            yield
            continue
        query = {"cursor": cursor, "limit": PAGE_MAX, "wait": EVENT_WAIT_SECONDS}
        page = invocation.call(operation, where, query)
        cursor = page["next_cursor"]
        yield  # also when nothing happened, so that the ages are true


def knows_no_newest(error: "MooringError") -> bool:
    """Whether the server is older than the parameter `newest` of its lists of events."""
    return error.code == "validation_failed" and error.details.get("path") == "newest"


def is_refused(error: "MooringError") -> bool:
    """Whether the caller may not read this."""
    return error.status in (403, 404)
