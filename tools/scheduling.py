"""How the tests of a run are shared out among the workers of xdist: a pytest plugin that `tools/test.py` loads.

A worker gets a whole group that shares a resource, or a whole file, at a time, so that what its tests share is made
once and never used by two at a time. Files that `tests/gates.toml` lists as `spread` are shared out test by test.
"""

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from tools.gates import Gates, load


class Scheduler(LoadGroupScheduling):  # type: ignore[misc] # xdist has no types
    """xdist's own, with files as units, and with another way to go on after a crash.

    A test during which a worker crashed is not given to another worker: it runs again alone, after all others.
    """

    def __init__(self, config: pytest.Config, log: Any, gates: Gates) -> None:
        super().__init__(config, log)
        self.gates = gates

    def _split_scope(self, nodeid: str) -> str:
        scope = str(super()._split_scope(nodeid))
        return scope if scope != nodeid or self.gates.is_spread(nodeid) else nodeid.partition("::")[0]

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work[node]
        running = ((unit, nodeid) for unit in units.values() for nodeid, is_done in unit.items() if not is_done)
        unit, crashed = next(running, (None, None))
        if unit is not None and crashed is not None:
            unit[crashed] = True
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        super().remove_node(node)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler | None:
    return Scheduler(config, log, load(Path.cwd())) if config.getvalue("dist") == "loadgroup" else None
