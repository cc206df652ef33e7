"""How each function that decides about tasks and their secrets is driven, for the tests of every statement."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.fleet.receipt import Receipt, digest_of
from mooring.core.fleet.runtime_secret import RuntimeSecret, RuntimeSecretSpec, destroy_all, store_secret
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.fleet.task_family import RefusalReason
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome, add_receipt, cancel, finish, lapse, refuse
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.secret import Sealed
from mooring.core.runtime import member_log
from server.tests.core.runtime.test_why import allocation, member

TENANT, PROJECT = "ten_1", "prj_1"
BODY = b"{}"


def a_task(now: DecisionContext, status: str = "claimed", type_: str = "sandbox.destroy") -> Task:
    """A task that its agent holds."""
    requested = TaskRequest(
        tenant_id=TENANT, project_id=PROJECT, allocation_id="alc_1", node_id="nod_1", type=type_, step="one"
    )
    return replace(
        make_task(now, requested).task,
        status=status,
        generation=1,
        fence=1,
        lease_expires_at=now.now,
        first_claimed_at=now.now,
    )


def a_receipt(now: DecisionContext) -> Receipt:
    """What its node signed."""
    return Receipt(
        "rcp_1",
        TENANT,
        PROJECT,
        "tsk_1",
        "sandbox.destroy",
        "nod_1",
        "alc_1",
        "alc_1",
        1,
        "0" * 64,
        digest_of(BODY),
        True,
        False,
        BODY,
        b"s" * 64,
        now.now,
        now.now,
    )


def a_secret(now: DecisionContext) -> RuntimeSecret:
    return RuntimeSecret("rsc_1", TENANT, PROJECT, "ins_1", None, "pull", "artifact_pull", "sec_1", 0, now.now)


def _every_end(now: DecisionContext) -> Iterator[Decision[Any]]:
    for outcome in TaskOutcome:
        for status in ("claimed", "cancelling"):
            for receipt in (None, a_receipt(now)):
                yield finish(now, a_task(now, status), TaskEnd(outcome, "exited", "no", 1, {}, ("line",)), receipt)


def _every_cancel(now: DecisionContext) -> Iterator[Decision[Any]]:
    for status in ("queued", "claimed"):
        yield cancel(now, a_task(now, status))


def _every_lapse(now: DecisionContext) -> Iterator[Decision[Any]]:
    over = replace(a_task(now), expires_at=now.now)
    yield lapse(now, [over])
    yield lapse(now, [a_task(now)])
    yield lapse(now, [over, a_task(now), replace(over, status="queued")])


def _every_read(now: DecisionContext) -> Iterator[Decision[Any]]:
    """Reads of logs: at their end, and from an offset on."""
    project_rows = member_log.LogReadContext(member(), allocation(node_id="nod_1"), reachable=True)
    program, known = member_log.MemberProgram("web", "service"), member_log.KnownPrograms((), {})
    for wanted in (member_log.LogReadRequest(), member_log.LogReadRequest(7, None, 4_096, 20.0, "0a")):
        yield member_log.build_read_task(now, project_rows, program, known, wanted)


SEALED = Sealed("sec_1", TENANT, "runtime_secret", "key", b"w", b"c")
DRIVEN_TASKS: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "member_log.build_read_task": _every_read,
    "runtime_secret.destroy_all": lambda now: destroy_all(now, [a_secret(now), a_secret(now)]),
    "runtime_secret.store_secret": lambda now: store_secret(
        now, RuntimeSecretSpec(TENANT, PROJECT, "pull", "artifact_pull", SEALED, instance_id="ins_1"), 0
    ),
    "task_transitions.add_receipt": lambda now: add_receipt(now, a_task(now, "expired"), a_receipt(now)),
    "task_transitions.cancel": _every_cancel,
    "task_transitions.finish": _every_end,
    "task_transitions.lapse": _every_lapse,
    "task_transitions.refuse": lambda now: refuse(now, a_task(now), RefusalReason.OWNER_CLOSED, "it was torn down"),
}
