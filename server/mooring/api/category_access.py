"""The keys of app categories: the second half of a route's permission check.

The key `<category>.<action>` allows an action for the apps of one category. Which category counts is only known from a
row: the instance or the app that the path names, or the app that the body names. So a route with `family=True` admits
every caller who holds the key of any category, and `require_category` then decides with the row, before the handler
runs. Callers who hold the action itself cost no query. Lists have no single row; they filter by the caller's
categories.

The category of an app never changes, and neither does the app of an instance. So what is decided here is still true
when the command reads the row again, and no command repeats the check.
"""

from collections.abc import Mapping
from typing import Any, Final

from mooring.api.request_context import RequestContext
from mooring.commands.kernel.lookup import require
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import categories_of
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime import launch

HIDING_ACTIONS: Final = {"instance.read": "instance", "catalog.read": "app"}
"""Callers who may not read an instance or an app do not learn that it exists: 404 instead of 403."""


async def require_category(request: RequestContext, arguments: Mapping[str, Any]) -> None:
    """Refuse the request unless the caller holds the route's action for the category of its instance or app.

    A row that does not exist passes: the handler then answers 404.
    """
    if not request.route.family or _categories(request) is None:
        return
    if (instance_id := arguments.get("instance_id")) is not None:
        await require_instance_category(request, instance_id)
    elif (app := arguments.get("app_id") or getattr(arguments.get("body"), "app", None)) is not None:
        _require(request, await launch.app_category(request.services.database, request.acting, app))


async def require_instance_category(request: RequestContext, instance_id: str) -> None:
    """The same check for an instance that only the handler can find, as in `/why/{subject}`."""
    if _categories(request) is None:
        return
    project_id = str(request.place.project_id)
    instance = await instances.find(request.services.database, request.acting, project_id, instance_id)
    _require(request, None if instance is None else instance.app_category)


def _require(request: RequestContext, category: str | None) -> None:
    action, categories = request.route.action, _categories(request)
    if category is None or categories is None or category in categories:
        return
    if action in HIDING_ACTIONS:
        require(None, HIDING_ACTIONS[action])
    raise Refusal(
        Code.PERMISSION_DENIED,
        f"this caller has neither {action} nor {category}.{action} here",
        {"action": action, "category": category},
    )


def _categories(request: RequestContext) -> tuple[str, ...] | None:
    return categories_of(request.caller.authority, request.place, request.route.action)
