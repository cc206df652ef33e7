"""Well-formed requests of an adapter, for the tests that ask every route: an instance, its claim, a body for each."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mooring.api.route import Route
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Scope
from mooring.storage.kernel.database import PLATFORM
from server.tests.support import made_things
from server.tests.support.lifecycle_rows import CLOCK

if TYPE_CHECKING:
    from server.tests.support.route_requests import Home

KEPT: Final = (Scope.RUNTIME, "held")
HOLDER: Final = "holder"
FENCE: Final = 1
QUERY: Final = f"?fence={FENCE}"
OPERATE: Final = """
UPDATE instance_claim SET service_account_id = $2, holder = $3, fence = $4, claimed_at = now(),
       expires_at = now() + interval '1 hour' WHERE instance_id = $1"""


async def held(home: "Home") -> dict[str, str]:
    """An instance that runs, with a member, an operation and a task; made once for a home."""
    if KEPT not in home.kept:
        project_rows = await made_things.make_instance_rows(home)
        project_rows = replace(project_rows, node_id=await project_rows.birth("node"))
        member_id = await project_rows.birth("member", allocation_id=project_rows.allocation_id)
        task_id = await project_rows.birth("task", member_id=member_id, instance_id=project_rows.instance_id)
        operation_id = await project_rows.birth("operation", dispatched_at=project_rows.row("node")["created_at"])
        home.kept[KEPT] = {
            "instance_id": project_rows.instance_id,
            "member_id": member_id,
            "operation_id": operation_id,
            "task_id": task_id,
        }
    return home.kept[KEPT]


async def operate(home: "Home", account_id: str) -> None:
    """The instance is operated by this account, and held by it."""
    known = await held(home)
    database = home.world.running.platform.services.database
    await database.fetch(PLATFORM, OPERATE, known["instance_id"], account_id, HOLDER, FENCE)


async def ids_of(home: "Home", route: Route) -> dict[str, str]:
    """The ids that an address of an adapter's route names."""
    known = await held(home)
    return {name: known[name] for name in route.path_parameters}


async def body_of(home: "Home", route: Route) -> bytes | None:
    """The smallest body of an adapter's request that may succeed."""
    if route.method == "GET":
        return None
    known = await held(home)
    fenced: dict[str, Any] = {"fence": FENCE}
    look = {"member_id": known["member_id"], "type": "probe.tcp", "step": "look", "arguments": {"port": 80}}
    bodies: dict[str, dict[str, Any]] = {
        "claim_instances": {"holder": HOLDER},
        "release_instances": {"holder": HOLDER, "held": []},
        "report_instance": fenced | {"instance": {"health": "healthy"}},
        "finish_runtime_operation": fenced | {"outcome": "failed", "failure": {"code": "runtime_error"}},
        "make_member_task": fenced | look,
        "make_member_tasks": fenced | {"tasks": [look]},
        "keep_instance_secret": fenced | {"name": "token", "purpose": "app_access", "generate_bytes": 32},
        "report_usage": fenced | {"records": [_record()]},
        "report_readings": fenced | {"readings": [_reading()]},
    }
    return json.dumps(bodies[route.name]).encode()


def _record() -> dict[str, Any]:
    now = CLOCK.now().isoformat()
    return {"record_id": fresh_id(), "unit": "tokens", "quantity": 1, "started_at": now, "ended_at": now}


def _reading() -> dict[str, Any]:
    at = CLOCK.now().isoformat()
    return {"series": fresh_id(), "epoch": 0, "seq": 0, "value": 1, "at": at, "unit": "tokens"}


def fresh_id() -> str:
    """An id that nobody has."""
    return CLOCK.mint(Prefix.USAGE_RECORD)
