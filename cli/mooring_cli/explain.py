"""`mooring explain`: the meaning of a word of the contract, as the server defines it."""

from collections.abc import Iterator
from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current
from mooring_cli.main import MooringCommand, close_to

LISTS = ("errors", "actions", "states", "events", "roles")


@click.command(cls=MooringCommand)
@click.argument("word", required=False)
def explain(word: str | None) -> None:
    """Explain an error code, a state, an action key, an event type or a role.

    `explain errors`, `actions`, `states`, `events` and `roles` list them all.
    """
    invocation = current()
    entries = list(entries_of(invocation.public_call("get_reference")))
    if word is None:
        raise click.UsageError(f"give a word, or one of the lists {', '.join(LISTS)}")
    if word in LISTS:
        rows = [{"word": each["word"], "meaning": each["meaning"]} for each in entries if each["list"] == word]
        output.show(invocation.output, rows, ("word", "meaning"))
        return
    found = [
        each
        for each in entries
        if word in (each["word"], each["word"].rpartition(".")[2] if each["list"] == "states" else None)
    ]
    if not found:
        near = close_to(
            word, [each["word"] for each in entries] + [each["word"].rpartition(".")[2] for each in entries]
        )
        hint = f"; did you mean {near}?" if near else f"; the lists are {', '.join(LISTS)}"
        raise click.UsageError(f"{word!r} is not a word of the contract{hint}")
    if invocation.output != "table":
        output.show(invocation.output, found)
        return
    for number, each in enumerate(found):
        if number:
            click.echo()
        output.show("table", {name: value for name, value in each.items() if name != "list"})


def entries_of(reference: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every word with its meaning and properties."""
    for error in reference["errors"]:
        yield {"list": "errors", "word": error["code"], "kind": "error code", **_without(error, "code")}
    roles: dict[str, list[str]] = {}
    for action in reference["actions"]:
        yield {"list": "actions", "word": action["key"], "kind": "action key", **_without(action, "key")}
        for role in action["roles"]:
            roles.setdefault(role, []).append(action["key"])
    for role, keys in roles.items():
        yield {"list": "roles", "word": role, "kind": "role", "meaning": f"holds {len(keys)} actions", "actions": keys}
    for lifecycle in reference["lifecycles"]:
        for state, meaning in lifecycle["states"].items():
            yield _state(lifecycle, state, meaning)
    for name, meaning in reference["event_types"].items():
        yield {"list": "events", "word": name, "kind": "event type", "meaning": meaning}


def _state(lifecycle: dict[str, Any], state: str, meaning: str) -> dict[str, Any]:
    leaves = [
        f"{edge['trigger']} → {edge['target']}: {edge['why']}" for edge in lifecycle["edges"] if edge["source"] == state
    ]
    return {
        "list": "states",
        "word": f"{lifecycle['name']}.{state}",
        "kind": "state",
        "meaning": meaning,
        "initial": state == lifecycle["initial"],
        "final": state in lifecycle["final"],
        "transitions": leaves,
    }


def _without(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != name}
