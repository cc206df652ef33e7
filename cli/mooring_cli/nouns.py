"""The shape of the table of commands: nouns, their verbs, and the endpoints behind them.

`table.py` holds the table itself, generated from the OpenAPI document; `commands.py` makes click commands
out of it. A new noun of the API gets its commands by generating the table anew.
"""

from typing import NamedTuple


class Field(NamedTuple):
    """A value that a command takes: an option for a field of the body or of the query."""

    path: tuple[str, ...]  # where it stands in the body; one name for a query
    kind: str  # text, integer, number, boolean, time, list, json, secret, reference, sibling, tenant, project
    required: bool
    help: str = ""
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The name of its option, without the hyphens before it."""
        words = "-".join(self.path).replace("_", "-")
        return words.removesuffix("-id") if self.kind in ("tenant", "project", "reference") else words


class Endpoint(NamedTuple):
    """An operation of the API at one kind of place."""

    operation: str
    scope: str  # self, platform, tenant, project
    place: str  # the parameter that names the place, where it is an option; else empty
    arguments: tuple[str, ...] = ()
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    lists: bool = False
    pages: bool = False
    deletes: bool = False
    takes_body: bool = False
    objects: tuple[str, ...] = ()  # parts of the body that are there even when they are empty
    one_time_secret: bool = False


class Verb(NamedTuple):
    """What can be done with a noun, in one place or in several."""

    name: str
    summary: str
    description: str
    endpoints: tuple[Endpoint, ...]


class Noun(NamedTuple):
    """A group of commands."""

    name: str
    singular: str
    summary: str
    verbs: tuple[Verb, ...]
    below: tuple["Noun", ...] = ()
