"""What jobs used, as meter events: hours of jobs and of GPUs, one record for each job, attempt and unit.

The allocation pays for the machine already: these say who used it. A record's id has the job and when this attempt
began, so that it is counted once, whoever tells it, and also where numbers of jobs begin again under another
controller. How often it was begun anew is in the id only where the controller's memory told the job, which knows it:
the file that the controller writes (`slurm_node/ledger.py`) tells every attempt, and its begin tells which.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mooring_adapter import InstanceView, Usage

JOB_HOURS: Final = "job_hours"
GPU_HOURS: Final = "gpu_hours"
ACCOUNTS_MAX: Final = 150
"""So many accounts are remembered with their projects."""
ENDED_WITH_IT: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED"})


def usage_of(view: InstanceView, look: Mapping[str, Any]) -> tuple[Usage, ...]:
    """The records of the jobs that ended."""
    units = {each["unit"] for each in view.manifest.get("usage_units", ())}
    projects = accounts_of(view)
    found: list[Usage] = []
    for job in look.get("ended", ()):
        if isinstance(job, Mapping):
            found += [each for each in _of_job(job, projects) if each.unit in units]
    return tuple(found)


def accounts_of(view: InstanceView) -> dict[str, str]:
    """The project of each account, also of those that are attached no more: their jobs are told the same for ever."""
    known = view.instance.adapter_detail.get("accounts")
    told = {each.account_name: each.project_id for each in view.attachments if each.account_name}
    both = {**(known if isinstance(known, Mapping) else {}), **told}
    return {str(name): str(project) for name, project in list(both.items())[-ACCOUNTS_MAX:]}


def usage_until(view: InstanceView, look: Mapping[str, Any], until: datetime) -> tuple[Usage, ...]:
    """The records at the end of a cluster: of the jobs that ended, and of those that are ended with it, up to now."""
    running = [
        {**job, "ended_at": until.isoformat()}
        for job in look.get("jobs", ())
        if isinstance(job, Mapping) and job.get("state") in ENDED_WITH_IT and not job.get("ended_at")
    ]
    return usage_of(view, {"ended": [*look.get("ended", ()), *running]})


def _of_job(job: Mapping[str, Any], projects: Mapping[str, str]) -> list[Usage]:
    started, ended = moment(job.get("started_at")), moment(job.get("ended_at"))
    if started is None or ended is None or ended <= started:
        return []  # it never ran
    hours = (ended - started).total_seconds() / 3_600
    name = f"job/{job.get('id')}/{job.get('restarts') or 0}/{int(started.timestamp())}"
    quantities = {JOB_HOURS: hours, GPU_HOURS: hours * int(job.get("gpus") or 0)}
    return [
        Usage(
            record_id=f"{name}/{unit}",
            unit=unit,
            started_at=started,
            ended_at=ended,
            quantity=round(quantity, 9),
            attached_project_id=projects.get(str(job.get("account") or "")),
        )
        for unit, quantity in quantities.items()
        if quantity > 0
    ]


def moment(value: Any) -> datetime | None:
    """A time as the program tells it: seconds since 1970, or ISO 8601."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC) if value > 0 else None
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
