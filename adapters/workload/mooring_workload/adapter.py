"""The workload adapter, as the kit runs it."""

from typing import Any

from mooring_adapter import Adapter
from mooring_workload.plans import plan
from mooring_workload.watch import WATCH_SECONDS, watch


def adapter(**more: Any) -> Adapter:
    """The workload adapter, for every app that its key opens."""
    return Adapter(plan=plan, watch=watch, watch_seconds=WATCH_SECONDS, **more)
