"""The echo adapter with one defect: `python -m adapters.echo.tests.sabotaged_echo NAME`.

Each defect is a few lines away from the adapter that passes, and is of the kind that people write. `SABOTAGES` has at
least one for every promise; the test beside this file plays the promise, which must notice it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from mooring_adapter import (
    Barrier,
    Failure,
    Finish,
    InstanceView,
    Plan,
    ReportMember,
    RunTask,
    backoff,
    claim_loop,
    instance_controller,
    platform_client,
    program,
)
from mooring_adapter import main as run
from mooring_adapter.platform_client import PlatformClient
from mooring_echo import members, plans
from mooring_echo.__main__ import ECHO
from mooring_sdk import CallOptions, MooringError, RetryPolicy, ServiceAccountCredentials

Patch = Callable[[], None]
SABOTAGES: Final[dict[str, tuple[str, Patch]]] = {}
"""By its name: the promise that a defect breaks, and how it is made."""
PLANS: Final[Any] = plans.PLANS
ACTIONS: Final[Any] = ECHO.actions
MEMORY: Final[set[str]] = set()
ERROR: Final = "the adapter gave up"


def breaks(promise: str) -> Callable[[Patch], Patch]:
    """Register a defect under the promise that it breaks."""

    def register(patch: Patch) -> Patch:
        SABOTAGES[patch.__name__] = (promise, patch)
        return patch

    return register


def put(target: Any, name: str, value: Any) -> None:
    """Replace a part of the adapter or the kit."""
    setattr(target, name, value)


def planned(kind: str, change: Callable[[Any, Any, Plan], Plan]) -> None:
    """Change the plans of one kind of operation."""
    before = PLANS[kind]
    PLANS[kind] = lambda view, operation: change(view, operation, before(view, operation))


def renamed(plan: Plan, ending: Callable[[], str]) -> Plan:
    """The plan with other names for its tasks."""
    names = {each.step: each.step + ending() for each in plan.steps if isinstance(each, RunTask)}
    steps: list[Any] = [replace(each, step=names.get(each.step, each.step)) for each in plan.steps]
    return Plan(
        tuple(replace(each, task=names.get(each.task, each.task)) if hasattr(each, "task") else each for each in steps)
    )


def without(plan: Plan, *beginnings: str) -> Plan:
    return Plan(tuple(each for each in plan.steps if not each.step.startswith(beginnings)))


def failed(code: str, *lines: str) -> Plan:
    return Plan((Finish(outcome="failed", failure=Failure(code, ERROR, tuple(lines))),))


# Plans ---------------------------------------------------------------------------------------------------------------


@breaks("deploy")
def succeeds_without_its_gates() -> None:
    planned("deploy", lambda view, operation, plan: without(plan, *(f"ready/{each.id}" for each in view.of("gate"))))


@breaks("deploy")
def misspells_an_argument() -> None:
    start = members.start

    def typo(*given: Any) -> RunTask:
        task = start(*given)
        return replace(task, arguments={**task.arguments, "enviroment": task.arguments["environment"]})

    put(members, "start", typo)


@breaks("probed")
def is_ready_as_soon_as_it_is_started() -> None:
    planned("deploy", lambda view, operation, plan: without(plan, "probe/"))


@breaks("correlation")
def drops_the_correlation_id() -> None:
    put(platform_client, "traced", lambda operation: CallOptions())


@breaks("endpoints")
def forgets_the_endpoint() -> None:
    planned("deploy", lambda view, operation, plan: without(plan, "endpoint"))


@breaks("add")
def starts_everybody_again() -> None:
    def again(view: Any, operation: Any, plan: Plan) -> Plan:
        old = [each for each in view.of("worker", "ready") if each.id not in operation.member_ids][:1]
        return Plan(
            (*(step for each in old for step in (members.stop(each, "a"), members.start(each, "1", "b"))), *plan.steps)
        )

    planned("add", again)


@breaks("side_by_side")
def starts_one_after_the_other() -> None:
    def slowly(view: Any, operation: Any, plan: Plan) -> Plan:
        steps = [
            each
            for step in plan.steps
            for each in ((step, Barrier(step=f"after/{step.step}")) if step.step.startswith("ready/") else (step,))
        ]
        return Plan(tuple(steps))

    planned("add", slowly)


@breaks("drain")
def drains_without_a_look() -> None:
    def blind(view: Any, operation: Any, plan: Plan) -> Plan:
        gone = [ReportMember(step=f"drained/{each}", member_id=each, status="drained") for each in operation.member_ids]
        return Plan((*(each for each in plan.steps if each.step.startswith("cordon/")), *gone, Finish()))

    planned("drain", blind)


@breaks("resume")
def remembers_an_old_drain() -> None:
    def once(view: Any, operation: Any, plan: Plan) -> Plan:
        first = [each for each in operation.member_ids if each not in MEMORY or operation.id in MEMORY]
        MEMORY.update(operation.member_ids, [operation.id] if first else [])
        return plan if first else Plan(())

    planned("drain", once)


@breaks("remove")
def never_finishes_a_removal() -> None:
    planned("remove", lambda view, operation, plan: failed("runtime_error"))


@breaks("replace")
def stops_the_old_one_first() -> None:
    def backwards(view: Any, operation: Any, plan: Plan) -> Plan:
        old = [each for each in view.concerned(operation) if each.replaces_id is None and each.status == "ready"]
        return Plan((*(members.stop(each, f"early/{each.id}") for each in old), *plan.steps))

    planned("replace", backwards)


@breaks("upgrade")
def upgrades_all_at_once() -> None:
    put(plans, "in_lanes", lambda those, steps_of: [step for each in those for step in steps_of(each)])


@breaks("rollback")
def claims_a_version_that_nobody_started() -> None:
    planned("rollback", lambda view, operation, plan: without(plan, "start/", "stop/", "files/", "probe/"))


@breaks("restart")
def restarts_nothing() -> None:
    planned("restart", lambda view, operation, plan: Plan((Finish(),)))


@breaks("configure")
def plans_from_the_old_configuration() -> None:
    put(InstanceView, "with_target_config", lambda view, operation: view)


@breaks("configure")
def accepts_a_configuration_and_does_nothing() -> None:
    planned("configure", lambda view, operation, plan: Plan((Finish(),)))


@breaks("actions")
def answers_an_action_with_nothing() -> None:
    ACTIONS["echo.say"] = lambda view, operation: Plan((Finish(),))


@breaks("graceful")
def stops_nothing() -> None:
    planned("decommission", lambda view, operation, plan: Plan((Finish(),)))


@breaks("decommission")
def leaves_the_stop_to_the_platform() -> None:
    planned("decommission", lambda view, operation, plan: Plan(plan.steps[:-1]))


@breaks("cancel")
def ignores_a_cancellation() -> None:
    put(instance_controller, "cancelling", lambda view, operation: Plan((Barrier(step="wait"),)))


@breaks("task_failure")
def hides_why_a_task_failed() -> None:
    def vague(view: Any, operation: Any, plan: Plan) -> Plan:
        return failed("runtime_error") if any(each.failed for each in view.tasks) else plan

    planned("deploy", vague)


@breaks("node_loss")
def calls_a_lost_node_an_error() -> None:
    def vague(view: Any, operation: Any, plan: Plan) -> Plan:
        return failed("runtime_error") if any(each.failure_code for each in view.members) else plan

    planned("deploy", vague)


@breaks("never_quiet")
def believes_any_look() -> None:
    before = members.MemberDrain.__init__

    def patient(self: Any, *given: Any) -> None:
        before(self, *given)
        self.is_quiet = bool(self.probes) and self.probes[-1].is_over

    put(members.MemberDrain, "__init__", patient)


@breaks("remove_failed")
def refuses_to_remove_what_failed() -> None:
    def picky(view: Any, operation: Any, plan: Plan) -> Plan:
        return failed("unhealthy") if any(each.failure_code for each in view.concerned(operation)) else plan

    planned("remove", picky)


@breaks("repair")
def repairs_nothing() -> None:
    planned("repair", lambda view, operation, plan: Plan((Finish(),)))


# What an adapter keeps to itself -------------------------------------------------------------------------------------


@breaks("crash")
def names_its_steps_by_its_process() -> None:
    planned("deploy", lambda view, operation, plan: renamed(plan, lambda: f"/{os.getpid()}"))


@breaks("interrupted_upgrade")
def cannot_go_on_with_an_upgrade() -> None:
    def alone(view: Any, operation: Any, plan: Plan) -> Plan:
        stranger = operation.id not in MEMORY and operation.begun
        MEMORY.add(operation.id)
        return failed("adapter_error") if stranger else plan

    planned("upgrade", alone)


@breaks("reordered")
def names_its_steps_by_a_count() -> None:
    planned(
        "deploy",
        lambda view, operation, plan: renamed(
            plan, lambda: f"/{sum(1 for each in view.tasks if each.type == 'files.write')}"
        ),
    )


@breaks("clock_skew")
def trusts_its_own_clock() -> None:
    def hurried(view: Any, operation: Any, plan: Plan) -> Plan:
        until = view.quiet_until(operation)
        return failed("not_quiet") if until is not None and datetime.now(UTC) >= until else plan

    planned("drain", hurried)


# Requests ------------------------------------------------------------------------------------------------------------


@breaks("duplicates")
def starts_at_every_hint() -> None:
    apply = claim_loop.ClaimLoop._apply

    async def counted(self: Any, response: Any) -> None:
        MEMORY.update(f"{len(MEMORY)}/{each.instance_id}" for each in response.claims)
        await apply(self, response)

    put(claim_loop.ClaimLoop, "_apply", counted)
    planned("deploy", lambda view, operation, plan: renamed(plan, lambda: f"/{len(MEMORY)}"))


@breaks("lost_replies")
def renames_a_task_whose_reply_was_lost() -> None:
    before = PlatformClient.create_tasks

    async def create(self: Any, claim: Any, operation: Any, tasks: Any) -> Any:
        try:
            return await before(self, claim, operation, tasks)
        except MooringError:
            again = [{**each, "step": f"{each['step']}/again"} for each in tasks]
            return await before(self, claim, operation, again)

    put(PlatformClient, "create_tasks", create)


@breaks("unavailable")
def ends_when_the_platform_is_away() -> None:
    put(program, "RetryPolicy", lambda attempts: RetryPolicy(attempts=1))
    put(backoff.RetryBackoff, "next_pause", lambda self: os._exit(1))


@breaks("stale_lease")
def keeps_a_lost_claim() -> None:
    async def keep(self: Any, claim: Any) -> None:
        return None

    put(claim_loop.ClaimLoop, "_drop", keep)
    put(claim_loop.ClaimLoop, "_forget_ended", lambda self: None)


@breaks("forbidden")
def asks_again_for_what_it_may_not_do() -> None:
    async def retry(self: Any, operation: Any, error: Any) -> None:
        self.wake.set()

    put(instance_controller.InstanceController, "_refused", retry)


@breaks("token_expiry")
def uses_one_token_for_ever() -> None:
    made = ServiceAccountCredentials.assertion

    def once(self: Any, *given: Any) -> Any:
        if not self.service_account_id.startswith("key:") and self.service_account_id in MEMORY:
            os._exit(1)
        MEMORY.add(self.service_account_id)
        return made(self, *given)

    put(ServiceAccountCredentials, "assertion", once)


@breaks("other_project")
def insists_on_a_foreign_instance() -> None:
    async def insist(self: Any) -> Any:
        for _ in range(5):
            try:
                return await self.platform.read(self.claim)
            except MooringError:
                await asyncio.gather(self.platform.report(self.claim, {"instance": {}}), return_exceptions=True)
        raise instance_controller.ClaimLost

    keeps_a_lost_claim()
    put(instance_controller.InstanceController, "_read", insist)


@breaks("released")
def ends_without_a_release() -> None:
    async def silent(self: Any, held: Any) -> None:
        return None

    put(PlatformClient, "release", silent)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    SABOTAGES[sys.argv.pop(1)][1]()
    run(ECHO)
