"""What an adapter gives to the kit: the apps it serves, and its pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mooring_adapter.instance_view import InstanceView, Operation
from mooring_adapter.steps import Observation, Plan

Planner = Callable[[InstanceView, Operation], Plan]
Watcher = Callable[[InstanceView], Observation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter.

    `actions` has a planner for each action of the manifest. `cancel` plans the early end of an operation; without it
    running tasks end and nothing new begins. `watch` observes a running instance, on every change and every
    `watch_seconds`. `app_slugs` names further apps that the same program serves; if both `app_slug` and `app_slugs`
    are empty, it serves every app that its key opens.
    """

    plan: Planner
    app_slug: str = ""
    app_slugs: tuple[str, ...] = ()
    watch: Watcher | None = None
    actions: Mapping[str, Planner] = field(default_factory=dict)
    cancel: Planner | None = None
    watch_seconds: float = 30.0

    @property
    def serves(self) -> frozenset[str]:
        """The slugs of its apps; an empty set means all."""
        return frozenset({self.app_slug, *self.app_slugs} - {""})
