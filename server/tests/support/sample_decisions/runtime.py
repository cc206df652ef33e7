"""How each function that decides about what adapters tell is driven, for each shape of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from mooring.core.catalog import app, operator_account
from mooring.core.catalog.artifact_hold import take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.catalog.operator_account import OperatorKeys, OperatorSpec
from mooring.core.catalog.workload_adapter import set_workload_key
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.money import usage
from mooring.core.runtime import adapter_report, operation_finish
from mooring.core.runtime.adapter_report import (
    AdapterReport,
    FailureReport,
    InstanceReport,
    MemberReport,
    ReportableState,
    StepReport,
)
from mooring.core.runtime.instance import InstanceHealth
from mooring.core.runtime.operation import OperationFailure, OperationKind, StepState
from mooring.core.runtime.operation_finish import FinishContext, FinishOutcome, OperationEnd
from server.tests.support.manifests import digest
from server.tests.support.runtime_rows import NEXT, instance, manifest, member, operation, seen
from server.tests.support.sample_decisions.apps import an_app

FAILURE: Final = FailureReport(OperationFailure.RUNTIME_ERROR, "it ended", ("a", "b"))
OPERATED: Final = OperatorSpec("ten_1", "prj_1", "hello", ("runtime.claim",), b"k" * 32)


def _every_report(now: DecisionContext) -> Iterator[Decision[Any]]:
    begun = operation(OperationKind.DEPLOY, "accepted")
    step = StepReport("pull", StepState.RUNNING, "soon", {"done": 1, "total": 2})
    starting = seen(member(status="requested"), of=instance(status="created"), during=begun)
    joins = MemberReport(id="mem_head", status=ReportableState.JOINING, health=InstanceHealth.HEALTHY)
    yield adapter_report.take_report(now, starting, AdapterReport(begin=True, steps=(step,), members=(joins,)))
    fails = MemberReport(id="mem_head", status=ReportableState.FAILED, failure=FAILURE)
    yield adapter_report.take_report(now, seen(member()), AdapterReport(members=(fails,)))
    yield adapter_report.take_report(now, seen(), AdapterReport(instance=InstanceReport(health=InstanceHealth.HEALTHY)))
    during = operation(OperationKind.RECONCILE)
    yield adapter_report.take_report(now, seen(during=during), AdapterReport(steps=(step,)))


def finishing(now: DecisionContext, kind: OperationKind, *members: Any, **columns: Any) -> FinishContext:
    """An operation that is about to end."""
    status = columns.pop("instance_status", "running")
    under_way = operation(kind, **columns)
    there = seen(*members, of=instance(status=status), during=under_way)
    held = take_holds(
        now, [Hold(digest(each), "instance", "ins_1") for each in "ab"], tenant_id="ten_1", project_id="prj_1"
    ).result
    return FinishContext(there, under_way, manifest(), held)


def _every_end(now: DecisionContext) -> Iterator[Decision[Any]]:
    done, failed = (
        OperationEnd(FinishOutcome.SUCCEEDED, {"seen": 1}),
        OperationEnd(FinishOutcome.FAILED, failure=FAILURE),
    )
    end = operation_finish.finish_operation
    yield end(now, finishing(now, OperationKind.DEPLOY, member(), instance_status="starting"), done)
    coming = (member(status="joining"), member("hand", "requested"))
    yield end(now, finishing(now, OperationKind.DEPLOY, *coming, instance_status="starting"), failed)
    moved = member(version="2.0.0", version_id="ver_2")
    yield end(now, finishing(now, OperationKind.UPGRADE, moved, target_pin=NEXT), done)
    yield end(now, finishing(now, OperationKind.UPGRADE, member(), target_pin=NEXT), failed)
    yield end(now, finishing(now, OperationKind.DECOMMISSION, member()), done)
    draining = member(status="draining")
    taken_back = finishing(now, OperationKind.DRAIN, draining, status="cancelling", member_ids=["mem_head"])
    yield end(now, taken_back, OperationEnd(FinishOutcome.CANCELLED))


def _operators(now: DecisionContext) -> Iterator[Decision[Any]]:
    yield operator_account.make_operator(now, OPERATED, (), 0)
    yield operator_account.make_operator(now, replace(OPERATED, adapter_key=None), (), 0)


def _agreed(now: DecisionContext) -> Decision[Any]:
    account = operator_account.make_operator(now, OPERATED, (), 0).result
    return operator_account.agree_operator(account, {"usage.report"})


def _rekeyed(now: DecisionContext) -> Decision[Any]:
    account = operator_account.make_operator(now, OPERATED, (), 0).result
    return operator_account.rekey_operator(now, OperatorKeys(account, ()), b"n" * 32, ())


def _used(now: DecisionContext) -> Decision[Any]:
    there = seen()
    created = replace(there.instance, created_at=now.now)
    report = usage.UsageReport("r1", "tokens", now.now, now.now, Decimal(1))
    return usage.store_usage(now, usage.UsageContext(there.claim, created, manifest(), {}, frozenset()), [report])


def _workload_keys(now: DecisionContext) -> Iterator[Decision[Any]]:
    made = set_workload_key(now, None, b"1" * 32)
    yield made
    yield set_workload_key(now, made.result, b"2" * 32)


DRIVEN_RUNTIME: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "adapter_report.take_report": _every_report,
    "app.set_adapter_key": lambda now: app.set_adapter_key(now, an_app(), b"k" * 32),
    "operation_finish.finish_operation": _every_end,
    "operator_account.agree_operator": _agreed,
    "operator_account.make_operator": _operators,
    "operator_account.rekey_operator": _rekeyed,
    "usage.store_usage": _used,
    "workload_adapter.set_workload_key": _workload_keys,
}
