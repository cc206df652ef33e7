"""Every action key opens something, and what it opens is what the printed page says."""

from pathlib import Path

from mooring.api.routes import ROUTES
from mooring.core.kernel.permissions import ACTIONS, FAMILIES, PUBLISH, RETIRED_ACTIONS, Scope

PAGE = Path(__file__).parents[3] / "docs" / "authorization.md"


def asked_for() -> dict[str, set[str]]:
    """Key → the endpoints that ask for it."""
    found: dict[str, set[str]] = {}
    for route in ROUTES:
        if route.scope is Scope.PUBLIC:
            continue
        families = FAMILIES[route.action].values() if route.family else ()
        for key in (route.action, *route.also, *route.instead, *families):
            found.setdefault(key, set()).add(route.key)
    return found


def test_every_key_is_asked_for_by_an_endpoint_or_named_by_apps_of_its_category() -> None:
    by_app = {key for key, action in ACTIONS.items() if action.by_app}
    widening = {key for key, action in ACTIONS.items() if action.widens}
    assert set(ACTIONS) - set(asked_for()) == by_app | widening
    assert widening == {PUBLISH}
    assert not RETIRED_ACTIONS & set(ACTIONS)


def test_the_printed_page_has_every_key_and_every_endpoint_that_asks_for_it() -> None:
    lines = PAGE.read_text().splitlines()
    for key in ACTIONS:
        assert sum(line.startswith(f"| `{key}` |") for line in lines) == 1, key
    for key, routes in asked_for().items():
        for route in routes:
            method, _, path = route.partition(" ")
            (row,) = [line for line in lines if line.startswith(f"| {method} | `{path}` |")]
            assert f"`{key}`" in row or "by category" in row, (key, route)
