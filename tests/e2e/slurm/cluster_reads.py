"""Reads of a cluster through the public API and Slurm: health, usage of jobs, and audit."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mooring_sdk import models
from tests.e2e.slurm.cluster import SlurmSite, SlurmTenant

JOBS = "%A|%S|%e|%b|%a|%T"
OF_ADAPTER = ("runtime.report", "secret.create", "secret.grant", "task.create")
"""The actions of an adapter in the project."""
KEYS = {
    "add": "member.add", "drain": "member.drain", "remove": "member.remove", "replace": "member.replace",
    "deploy": "instance.create", "decommission": "instance.delete", "attach": "attachment.create",
    "detach": "attachment.delete",
}  # fmt: skip
"""The permission that an operation needs; the others need the one to update."""


def wait_for_health(place: SlurmSite, tenant: SlurmTenant, cluster: str, health: str) -> models.Instance:
    """Wait until the cluster has this health."""
    seen = place.patiently(
        lambda _: tenant.client.get_instance(tenant.project_id, cluster), lambda each: each.health == health
    )
    assert seen.health == health, f"{seen}\n{place.said()}"
    return seen


def in_slurm(member: models.Member) -> Mapping[str, Any]:
    """The state of a member as Slurm reports it."""
    detail: Mapping[str, Any] = member.adapter_detail["slurm"]
    return detail


def job_state(place: SlurmSite, tenant: SlurmTenant, cluster: str, job: str, user: str = "app") -> str:
    """The state of a job, as this user sees it."""
    lines = place.slurm(tenant, cluster, "scontrol", "-o", "show", "job", job, user=user).text
    return next((word.partition("=")[2] for word in lines.split() if word.startswith("JobState=")), lines)


# Usage ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobUsage:
    """The hours of a job in a unit, and the account that it ran under."""

    hours: float
    account: str


def job_usage(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> dict[tuple[str, str], JobUsage]:
    """The usage of each ended job by unit, from Slurm's own records, whose times are whole seconds."""
    found = {}
    for line in place.slurm(tenant, cluster, "squeue", "-h", "-a", "-t", "all", "-o", JOBS, user="root").lines:
        job, started, ended, wanted, account, state = line.strip().split("|")
        if "N/A" in (started, ended) or state in ("PENDING", "RUNNING", "COMPLETING"):
            continue
        hours = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds() / 3_600
        gpus = int(wanted.rpartition(":")[2]) if "gpu" in wanted else 0
        for unit, quantity in (("job_hours", hours), ("gpu_hours", hours * gpus)):
            if quantity > 0:
                found[job, unit] = JobUsage(round(quantity, 9), account)
    return found


def assert_metered(
    tenant: SlurmTenant,
    cluster: str,
    wanted: Mapping[tuple[str, str], JobUsage],
    projects: Mapping[str, str] | None = None,
) -> None:
    """One usage record of each job and unit, covered by the allocation, with the project that used it."""
    records = list(tenant.client.iter_usage_records(tenant.project_id, cluster, limit=100))
    names = [(each.record_id.split("/")[1], each.unit) for each in records]
    assert Counter(names) == Counter(dict.fromkeys(wanted, 1))
    assert {each.covered_by_allocation for each in records} <= {True}
    usage = {name: (float(each.quantity), each.attached_project_id) for name, each in zip(names, records, strict=True)}
    expected = {name: (each.hours, (projects or {}).get(each.account)) for name, each in wanted.items()}
    assert usage == expected


# Audit ----------------------------------------------------------------------------------------------------------------


def count_audited(tenant: SlurmTenant, cluster: str) -> Counter[str]:
    """Count the operations of a cluster; each has one audit row of the user who requested it.

    What the adapter did in the project is audited under the service account of the app, and no other.
    """
    person, project = tenant.client.get_whoami().id, tenant.project_id
    asked = {
        each.id: (str(each.request.get("action") or each.kind), each.requested_by)
        for each in tenant.client.iter_operations(project, cluster, limit=100)
    }
    rows = list(tenant.client.iter_project_audit(project, limit=100, actor_id=person, outcome="done"))
    found = Counter(
        (str(each.subject_id), each.action, each.actor_kind)
        for each in rows
        if each.noun == "operation" and each.before is None and each.subject_id in asked
    )
    assert found == Counter((each, key_of(name), "user") for each, (name, _) in asked.items())
    assert {who for _, who in asked.values()} == {person}
    _assert_audited_by_account(tenant, cluster)
    members = {each.id for each in tenant.client.iter_members(project, cluster, limit=100)}
    resumed = [each for each in rows if str(each.route).endswith("/resume") and each.subject_id in members]
    assert {each.action for each in resumed} <= {key_of("drain")}
    return Counter([*(name for name, _ in asked.values()), *("resume" for _ in resumed)])


def key_of(name: str) -> str:
    """The permission that an operation or an action of the app needs."""
    return f"scheduler.{name}" if "." in name else KEYS.get(name, "instance.update")


def _assert_audited_by_account(tenant: SlurmTenant, cluster: str) -> None:
    account = tenant.client.get_instance(tenant.project_id, cluster).service_account_id
    for action in OF_ADAPTER:
        rows = tenant.client.iter_project_audit(tenant.project_id, limit=100, action=action, most=100)
        by = Counter(
            (each.actor_kind, each.actor_id, each.outcome)
            for each in rows
            if str(each.route).startswith("POST /api/v1/runtime/")
        )
        assert set(by) == {("service_account", account, "done")}, (action, by)
