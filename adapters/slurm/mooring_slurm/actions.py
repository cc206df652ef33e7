"""The actions of a cluster: submit, read and cancel jobs, read their output; read, drain and resume nodes.

The program on the controller executes them, except for a job's output, which is on the worker that runs its script. An
attached project acts under its own account: it sees and changes only its own jobs, and cannot drain or resume nodes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from mooring_adapter import Finish, InstanceView, Member, OnFailure, Operation, Plan, RunTask, failures
from mooring_slurm.attachments import account_of, attachment_id
from mooring_slurm.members import (
    OPERATOR,
    UP,
    ClusterMembers,
    OperationRefused,
    ask,
    cluster_of,
    is_reached,
    workers_of,
)
from mooring_slurm.responses import NAMED_MAX, answered, ended, failure_of

GIVEN: Final = ("script", "name", "partition", "nodes", "cpus", "memory_mib", "gpus", "array", "minutes", "directory")
CHOSEN: Final = ("user", "state", "limit")
OF_ARRAY: Final = ("array", "tasks", "truncated")
OUTPUT_BYTES: Final = 32_768

Act = Callable[[ClusterMembers, Operation], Plan]


def _action(act: Act) -> Callable[[InstanceView, Operation], Plan]:
    """An action as a plan: a refusal ends it with the reason."""

    def plan(view: InstanceView, operation: Operation) -> Plan:
        try:
            cluster = cluster_of(view)
            _need_answer(cluster)
            return act(cluster, operation)
        except OperationRefused as refused:
            return refused.plan()

    return plan


def _need_answer(cluster: ClusterMembers) -> None:
    controller = cluster.controller
    if controller.status not in UP or not is_reached(controller):
        why = (
            "is lost with its machine"
            if failures.is_lost(controller)
            else f"is {controller.status}, or its machine is unreachable"
        )
        raise OperationRefused("unhealthy", f"cannot ask the controller {controller.name}: it {why}")


def _submit(cluster: ClusterMembers, operation: Operation) -> Plan:
    """Submit a batch script, once per key, however often it is requested."""
    given, account = given_to(operation), account_of(operation)
    user = account or given.get("user") or cluster.config.user
    if not account and user not in cluster.config.users:
        raise OperationRefused(
            "config_refused", f"{user!r} is not a user of this cluster; its users are {', '.join(cluster.config.users)}"
        )
    key = str(given.get("key") or operation.id)
    job = {name: given[name] for name in GIVEN if given.get(name) is not None}
    job["key"] = f"{attachment_id(operation)}:{key}" if account else key
    if account:
        job["account"] = account
    return _asked(cluster, operation, cluster.controller, ("submit",), ("job_id", "repeated"), user=user, stdin=job)


def _read(cluster: ClusterMembers, operation: Operation) -> Plan:
    """Read the queue, filtered by user and state, or one job with the tasks of its array."""
    given = given_to(operation)
    if job := given.get("job_id"):
        words = ("job", "--job", str(job), *_of(operation))
        return _asked(cluster, operation, cluster.controller, words, partial(_one_job, cluster))
    chosen = [word for name in CHOSEN if given.get(name) for word in (f"--{name}", str(given[name]))]
    words = ("jobs", *_of(operation), *chosen)
    return _asked(cluster, operation, cluster.controller, words, ("jobs", "job_counts", "truncated"))


def _cancel(cluster: ClusterMembers, operation: Operation) -> Plan:
    """Cancel a job or an array."""
    words = ("cancel", "--job", str(given_to(operation).get("job_id", "")), *_of(operation))
    return _asked(cluster, operation, cluster.controller, words, ("job",))


def _output(cluster: ClusterMembers, operation: Operation) -> Plan:
    """Read a job's output: it is where its script runs, so the controller is asked for the node first."""
    given = given_to(operation)
    job = str(given.get("job_id", ""))
    found = ask(cluster.controller, "job", "job", "--job", job, *_of(operation), **_EXAMINED)
    if (refused := _refusal(cluster, operation, "job", cluster.controller)) is not None:
        return refused
    answer = answered(cluster.view, operation, "job")
    known = answer.get("job")
    if not isinstance(known, Mapping):
        return Plan((found,))
    _refuse_array(job, answer)
    host = str(known.get("batch_host") or "")
    if not host:
        detail = f"job {job} has not started ({known.get('why') or known.get('state')}), so it has no output yet"
        raise OperationRefused("config_refused", detail)
    worker = next((each for each in workers_of(cluster.view) if each.name == host), None)
    if worker is None or not is_reached(worker):
        raise OperationRefused("unhealthy", f"the output of job {job} is on {host}, which is gone or unreachable")
    piece = {"stream": given.get("stream") or "out", "offset": given.get("offset") or 0}
    piece["bytes"] = given.get("bytes") or OUTPUT_BYTES
    options = [word for name, value in piece.items() for word in (f"--{name}", str(value))]
    words = ("output", "--job", job, *options, *_of(operation))
    whose = str(known.get("user") or cluster.config.user)
    shape = ("text", "offset", "end", "size")
    return _asked(cluster, operation, worker, words, shape, before=(found,), user=whose)


def _nodes(cluster: ClusterMembers, operation: Operation) -> Plan:
    """Read the nodes as Slurm sees them."""
    name = given_to(operation).get("name")

    def of_look(seen: Mapping[str, Any]) -> dict[str, Any]:
        nodes = [without_nulls(each) for each in seen.get("nodes", ()) if not name or each.get("name") == name]
        if name and not nodes:
            raise OperationRefused("config_refused", f"Slurm has no node {name!r}")
        return {"nodes": nodes}

    return _asked(cluster, operation, cluster.controller, ("look",), of_look)


def _operate(cluster: ClusterMembers, operation: Operation) -> Plan:
    """Drain or resume a node in the operator's name; drains of others stay."""
    if account_of(operation):
        raise OperationRefused(
            "permission_denied", "an attached project cannot drain or resume nodes; the owning project can"
        )
    given = given_to(operation)
    name, verb = str(given.get("name", "")), str(given.get("do", ""))
    words: tuple[str, ...] = (verb, "--node", name, "--owner", OPERATOR)
    if verb == "drain":
        why = given.get("reason") or operation.id
        words = (*words, f"--reason={operation.requested_by}: {why}" if operation.requested_by else f"--reason={why}")
    return _asked(cluster, operation, cluster.controller, words, ("node", "changed", "foreign"))


ACTIONS: Final = {
    "queue.submit": _action(_submit),
    "queue.read": _action(_read),
    "queue.cancel": _action(_cancel),
    "queue.output": _action(_output),
    "node.read": _action(_nodes),
    "node.operate": _action(_operate),
}

_EXAMINED: Final[Mapping[str, Any]] = {"on_failure": OnFailure.GO_ON, "attempts": 1}
Shape = tuple[str, ...] | Callable[[Mapping[str, Any]], dict[str, Any]]


def _asked(
    cluster: ClusterMembers, operation: Operation, member: Member, words: tuple[str, ...], shape: Shape, **more: Any
) -> Plan:
    """Run one verb of the node program; its answer is the action's output."""
    before: tuple[RunTask, ...] = more.pop("before", ())
    task = ask(member, "act", *words, **_EXAMINED, **more)
    if (refused := _refusal(cluster, operation, "act", member)) is not None:
        return refused
    answer = answered(cluster.view, operation, "act")
    if ended(cluster.view, operation, "act") is None:
        return Plan((*before, task))
    output = (
        shape(answer) if callable(shape) else {name: answer[name] for name in shape if answer.get(name) is not None}
    )
    return Plan((*before, task, Finish(output=without_nulls(output))))


def _refusal(cluster: ClusterMembers, operation: Operation, step: str, member: Member) -> Plan | None:
    task = ended(cluster.view, operation, step)
    if task is None or task.succeeded:
        return None
    return Plan((Finish(outcome="failed", failure=failure_of(task, member)),))


def _one_job(cluster: ClusterMembers, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A job, with the tasks of its array if the manifest of the instance's version has them."""
    job = answer.get("job")
    array = {name: answer[name] for name in OF_ARRAY if answer.get(name) is not None}
    output = {"jobs": [job] if job else [], **array}
    actions = cluster.view.manifest.get("actions", ())
    known = next((each["output_schema"]["properties"] for each in actions if each["name"] == "queue.read"), output)
    return {name: value for name, value in output.items() if name in known}


def _refuse_array(job: str, answer: Mapping[str, Any]) -> None:
    """Each task of an array writes its own file, so one of several has to be named."""
    count = (answer.get("array") or {}).get("task_count", 1)
    if count <= 1:
        return
    names = [str(each.get("array")) for each in answer.get("tasks") or [answer["job"]] if isinstance(each, Mapping)]
    more = f" and more, {count} in all" if answer.get("truncated") or len(names) > NAMED_MAX else ""
    raise OperationRefused(
        "config_refused",
        f"job {job} is an array of {count} tasks, and each writes its own file: name one as JOB_TASK; "
        f"there are {', '.join(names[:NAMED_MAX])}{more}",
    )


def _of(operation: Operation) -> tuple[str, ...]:
    """The options that limit a verb to the jobs of one account."""
    account = account_of(operation)
    return ("--account", account) if account else ()


def given_to(operation: Operation) -> Mapping[str, Any]:
    given = operation.request.get("input")
    return given if isinstance(given, Mapping) else {}


def without_nulls(value: Any) -> Any:
    """The value without nulls: an action's output has none."""
    if isinstance(value, Mapping):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value
