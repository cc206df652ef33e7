"""The usage of jobs: job hours and GPU hours, one record for each job, attempt and unit, which the kit makes.

The allocation already pays for the machine; these records say who used it. A record's id contains the job and the start
of the attempt, so that it is counted once by any replica, even if job numbers start again under another controller. The
number of restarts is part of the id only for jobs from the controller's memory, which knows it; the controller's file
(`slurm_node/job_completions.py`) has a line for every attempt, which its start identifies.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mooring_adapter import InstanceView, Usage
from mooring_adapter.metered_work import EndedWork, usage_of_work

JOB_HOURS: Final = "job_hours"
GPU_HOURS: Final = "gpu_hours"
ACCOUNTS_MAX: Final = 150
"""The most accounts that are remembered with their projects."""
ENDED_WITH_IT: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED"})


def usage_of(view: InstanceView, look: Mapping[str, Any]) -> tuple[Usage, ...]:
    """The usage records of ended jobs."""
    projects = accounts_of(view)
    jobs = [_attempt(each, projects) for each in look.get("ended", ()) if isinstance(each, Mapping)]
    return usage_of_work(view, [each for each in jobs if each is not None])


def accounts_of(view: InstanceView) -> dict[str, str]:
    """The project of each account, including detached ones, whose jobs must always have the same record."""
    known = view.instance.adapter_detail.get("accounts")
    attached = {each.account_name: each.project_id for each in view.attachments if each.account_name}
    both = {**(known if isinstance(known, Mapping) else {}), **attached}
    return {str(name): str(project) for name, project in list(both.items())[-ACCOUNTS_MAX:]}


def usage_until(view: InstanceView, look: Mapping[str, Any], until: datetime) -> tuple[Usage, ...]:
    """The usage records at the end of a cluster: of ended jobs, and of running ones up to now."""
    running = [
        {**job, "ended_at": until.isoformat()}
        for job in look.get("jobs", ())
        if isinstance(job, Mapping) and job.get("state") in ENDED_WITH_IT and not job.get("ended_at")
    ]
    return usage_of(view, {"ended": [*look.get("ended", ()), *running]})


def _attempt(job: Mapping[str, Any], projects: Mapping[str, str]) -> EndedWork | None:
    started, ended = moment(job.get("started_at")), moment(job.get("ended_at"))
    if started is None or ended is None or ended <= started:
        return None  # it never ran
    return EndedWork(
        key=f"job/{job.get('id')}/{job.get('restarts') or 0}/{int(started.timestamp())}",
        started_at=started,
        ended_at=ended,
        per_hour={JOB_HOURS: 1, GPU_HOURS: int(job.get("gpus") or 0)},
        attached_project_id=projects.get(str(job.get("account") or "")),
    )


def moment(value: Any) -> datetime | None:
    """Read a time of the node program: seconds since 1970, or ISO 8601."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC) if value > 0 else None
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
