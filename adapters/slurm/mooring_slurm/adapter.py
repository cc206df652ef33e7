"""The Slurm adapter, as the kit runs it."""

from typing import Final

from mooring_adapter import Adapter
from mooring_slurm.actions import ACTIONS
from mooring_slurm.catalog import APP
from mooring_slurm.plans import cancel, plan
from mooring_slurm.watch import WATCH_SECONDS, watch

SLURM: Final = Adapter(
    app_slug=APP, plan=plan, watch=watch, watch_seconds=WATCH_SECONDS, actions=ACTIONS, cancel=cancel
)
