"""Projects that are attached to a cluster: each has its own account in Slurm and its own user on every member.

A detach closes the account for new jobs, waits for its jobs or cancels them if requested, kills the remaining processes
of its user, and removes the account. If the time runs out, the failure names the remaining jobs.
"""

from typing import Any, Final

from mooring_adapter import Barrier, Finish, InstanceView, OnFailure, Operation, Plan, ReportInstance, Step, Wait
from mooring_slurm.bring_up import uids
from mooring_slurm.drains import PAUSE
from mooring_slurm.members import UP, ClusterMembers, OperationRefused, ask, cluster_of, is_reached, need_controller
from mooring_slurm.responses import answer_of, answered, ended, failure_of, job_ids
from mooring_slurm.usage import accounts_of

CLOSING_PAUSES: Final = 10
"""The pause between two looks grows up to this many times the first one."""


def attach(view: InstanceView, operation: Operation) -> Plan:
    """Create its user on every member, then its account."""
    cluster = attachable_cluster(view)
    account = account_of(operation)
    project_id = "" if operation.attachment is None else operation.attachment.project_id
    members = (cluster.controller, *cluster.workers)
    steps: list[Step] = [
        ask(each, f"users/{each.id}", "users", stdin={"users": uids(cluster, {account: project_id})})
        for each in members
        if each.status in UP and is_reached(each)
    ]
    without = [each.name for each in members if each.status not in UP or not is_reached(each)]
    steps.append(Barrier(step="users"))
    detail = {**view.instance.adapter_detail, "accounts": {**accounts_of(view), account: project_id}}
    steps.append(ReportInstance(step="accounts", detail=detail))
    steps.append(ask(cluster.controller, "account", "account-add", stdin={"account": account, "user": account}))
    return Plan((*steps, Barrier(step="attached"), Finish(evidence={"account": account, "without_user": without[:50]})))


def detach(view: InstanceView, operation: Operation) -> Plan:
    """Close the account, wait for its jobs to end, then remove it."""
    cluster = attachable_cluster(view)
    account = account_of(operation)
    given = {"account": account, "user": account}
    closes = ("account-close", "--cancel") if operation.request.get("cancel_work") else ("account-close",)
    looks = view.series(operation, "close")
    last = looks[-1] if looks else None
    number = max(len(looks), 1)
    steps: list[Step] = []
    left: list[Any] = []
    if last is not None and last.is_over:
        if last.failed:
            failure = failure_of(last, cluster.controller)
            raise OperationRefused(failure.code, failure.detail, failure.last_lines)
        left = (answer_of(last) or {}).get("jobs", [])
        if left:
            _refuse_late(view, operation, account, left)
            number += 1
            until = (last.finished_at or last.created_at or view.now) or None
            if until is not None:
                steps.append(Wait(step="pause", until=until + min(number, CLOSING_PAUSES) * PAUSE))
    closing = ask(
        cluster.controller,
        f"close/{number}",
        *closes,
        stdin=given,
        attempts=1,
        on_failure=OnFailure.GO_ON,
        after=tuple(each.step for each in steps),
    )
    steps.append(closing)
    if left or last is None or not last.is_over:
        return Plan(tuple(steps))
    reached = [each for each in cluster.workers if each.status in UP and is_reached(each)]
    steps += [
        ask(each, f"end/{each.id}", "user-end", stdin={"user": account}, on_failure=OnFailure.GO_ON) for each in reached
    ]
    steps.append(Barrier(step="ended"))
    steps.append(ask(cluster.controller, "account", "account-remove", stdin=given))
    removed = ended(view, operation, "account")
    evidence: dict[str, Any] = {"account": account, "removed": bool(removed and removed.succeeded)}
    asked = {each.name: ended(view, operation, f"end/{each.id}") for each in cluster.workers}
    if unasked := [name for name, task in asked.items() if task is None or task.failed]:
        evidence["not_asked_to_end"] = unasked[:50]  # processes of its user outside jobs may still run there
    return Plan(
        (*steps, Barrier(step="detached"), Finish(evidence={**evidence, **answered(view, operation, "account")}))
    )


def attachable_cluster(view: InstanceView) -> ClusterMembers:
    """The cluster, if it has accounting and its controller answers."""
    cluster = cluster_of(view)
    if not cluster.config.accounting:
        raise OperationRefused("config_refused", "projects cannot be attached to a cluster without `accounting`")
    need_controller(cluster)
    return cluster


def account_of(operation: Operation) -> str:
    """The account of the operation's attached project, or an empty string."""
    return "" if operation.attachment is None else operation.attachment.account_name


def attachment_id(operation: Operation) -> str:
    """The id of the operation's attachment, or an empty string."""
    return "" if operation.attachment is None else operation.attachment.id


def _refuse_late(view: InstanceView, operation: Operation, account: str, left: list[Any]) -> None:
    now, until = view.now, view.quiet_until(operation)
    if now is not None and until is not None and now + 2 * PAUSE >= until:
        ids = job_ids(left)
        listed = ", ".join(ids[:20])
        raise OperationRefused(
            "not_quiet", f"jobs of {account} still run: {listed}; the account is closed for new jobs", jobs=ids[:200]
        )
