"""The promises of an adapter under faults: repeated, late and lost messages, kills, expired tokens, foreign instances.

The baseline is a deployment without faults: `footprint` is what it starts on the nodes. A deployment under any of these
faults must start the same, once each.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from mooring_adapter.conformance.fake_api import ApiRequest, ApiResponse
from mooring_adapter.conformance.fault_proxy import ConnectionDropped
from mooring_adapter.conformance.platform_protocol import Footprint, PlatformUnderTest, PromiseBroken
from mooring_adapter.conformance.scenarios import (
    EFFECTS,
    Promise,
    all_ready,
    check,
    deployed,
    expect,
    failed_with,
    grows,
    of_component,
    promise,
    succeeded,
    supports,
)

FAULT_PROMISES: list[Promise] = []
SAMPLED: Final = 6
SKEW_SECONDS: Final = 45.0
DENIALS_MAX: Final = 20
"""How often it may be refused: a request for each of several members, not one request for ever."""
LATE_POLLS_MAX: Final = 3
"""How many polls may still name a lost instance, counted from the one that reports the loss: polls may overlap."""


def footprint(platform: PlatformUnderTest, instance_id: str) -> Footprint:
    """The number of tasks with effects, by component and type."""
    components = {each.id: each.component_key for each in platform.members(instance_id)}
    return Counter(
        (components.get(each.member_id, "?"), each.type) for each in platform.tasks(instance_id) if each.type in EFFECTS
    )


def expect_baseline(platform: PlatformUnderTest, instance_id: str) -> None:
    """Check that the result is that of an undisturbed deployment, and that nothing was done twice."""
    check(platform)
    expect(all_ready(platform.members(instance_id)), "not every member is ready")
    disturbed = footprint(platform, instance_id)
    platform.faults.clear()
    if platform.baseline is None:  # one undisturbed deployment serves all scenarios
        platform.start_adapter()
        platform.baseline = footprint(platform, deployed(platform, "quiet"))
    if disturbed != platform.baseline:
        difference = _difference(disturbed, platform.baseline)
        raise PromiseBroken(f"it did other things than in an undisturbed deployment: {difference}")


def _difference(disturbed: Footprint, quiet: Footprint) -> str:
    more, fewer = disturbed - quiet, quiet - disturbed
    parts = [f"{count} more {kind} of {key}" for (key, kind), count in more.items()]
    parts += [f"{count} fewer {kind} of {key}" for (key, kind), count in fewer.items()]
    return ", ".join(parts)


@promise("duplicates", "A repeated message has its effect once.", needs=("faults",), among=FAULT_PROMISES)
def takes_duplicates(platform: PlatformUnderTest) -> None:
    offered: list[dict[str, Any]] = []

    def again(request: ApiRequest, number: int, response: ApiResponse) -> ApiResponse:
        body = response.body
        if request.path.endswith("/claims") and response.status == 200:
            offered.extend(body["claims"])
            ids = [each["instance_id"] for each in offered]
            repeated = {"claims": [*body["claims"], *offered], "changed": [*body["changed"], *ids, "ins_none"]}
            return ApiResponse(200, {**body, **repeated})
        return response

    platform.faults.after = again
    expect_baseline(platform, deployed(platform, "doubled"))


@promise("reordered", "An outdated view of the instance does no harm.", needs=("faults",), among=FAULT_PROMISES)
def takes_old_views(platform: PlatformUnderTest) -> None:
    views: dict[str, ApiResponse] = {}
    count = 0

    def late(request: ApiRequest, number: int, response: ApiResponse) -> ApiResponse:
        nonlocal count
        if request.method != "GET" or response.status != 200:
            return response
        count += 1
        old = views.get(request.path, response)
        if count % 3 == 2:
            return old  # the view before the last one
        views[request.path] = response
        return response

    platform.faults.after = late
    expect_baseline(platform, deployed(platform, "reordered"))


@promise("lost_replies", "A lost response changes nothing.", needs=("faults",), among=FAULT_PROMISES)
def takes_lost_replies(platform: PlatformUnderTest) -> None:
    count = 0

    def lose(request: ApiRequest, number: int, response: ApiResponse) -> ApiResponse:
        nonlocal count
        if "/instances/" in request.path and request.method == "POST":
            count += 1
            if count % 3 == 0:
                raise ConnectionDropped
        return response

    platform.faults.after = lose
    expect_baseline(platform, deployed(platform, "unheard"))


@promise(
    "unavailable", "A platform that is briefly unavailable is asked again.", needs=("faults",), among=FAULT_PROMISES
)
def takes_unavailability(platform: PlatformUnderTest) -> None:
    count = 0

    def away(request: ApiRequest, number: int) -> None:
        nonlocal count
        count += 1
        if count % 4 == 0:
            raise ConnectionDropped

    platform.faults.before = away
    expect_baseline(platform, deployed(platform, "flaky"))


@promise(
    "stale_lease",
    "A lost lease ends the work at once, and the old fence is not used again.",
    needs=("lease",),
    among=FAULT_PROMISES,
)
def stops_without_lease(platform: PlatformUnderTest) -> None:
    platform.hold_tasks(lambda task: True)
    instance_id = platform.create_instance("fenced")
    platform.wait_for("a first task", lambda: platform.tasks(instance_id))
    # Requests that were sent before the loss must not arrive after it.
    platform.wait_for("a poll that names it, and nothing of it under way", lambda: _rests(platform, instance_id))
    platform.take_lease(instance_id, "another")
    taken = max(each.number for each in platform.traffic())
    platform.hold_tasks(lambda task: False)

    def let_go() -> int | None:
        """The number of the first poll after the loss that no longer names the instance."""
        noted = platform.traffic()
        account = {each.token for each in noted if each.instance_id == instance_id}  # it polls for other accounts too
        polls = [each for each in noted if each.path.endswith("/claims") and each.token in account]
        naming = [each for each in polls if _names(each.body, instance_id)]
        behind = [each for each in naming if each.number > taken]
        reported = next((index for index, each in enumerate(behind) if each.status == 200), len(behind))
        late_polls = len(behind) - reported
        expect(late_polls <= LATE_POLLS_MAX, f"it still names the claim after {LATE_POLLS_MAX} reports of its loss")
        held = max((each.number for each in naming), default=taken)
        return next((each.number for each in polls if each.number > max(held, taken)), None)

    number = platform.wait_for("a poll that no longer claims to hold it", let_go) or 0
    platform.take_lease(instance_id, None)
    succeeded(platform, instance_id, platform.open_operation(instance_id, "deploy").id)
    known = [each for each in platform.traffic() if each.instance_id == instance_id and each.fence is not None]
    first = min(each.fence for each in known if each.fence is not None)
    # A read that was on its way when the loss was reported may arrive later, and changes nothing.
    late = [each for each in known if each.number > number and each.fence == first and each.route != "read"]
    expect(not late, f"the old fence was used again: {', '.join(each.route for each in late)}")
    expect_baseline(platform, instance_id)


def _rests(platform: PlatformUnderTest, instance_id: str) -> bool:
    """Whether the adapter names the claim in a poll and has no open request about the instance."""
    noted = platform.traffic()
    is_named = any(each.path.endswith("/claims") and _names(each.body, instance_id) for each in noted)
    return is_named and all(each.status for each in noted if each.instance_id == instance_id)


def _names(body: Any, instance_id: str) -> bool:
    return any(each.get("instance_id") == instance_id for each in body.get("held", ()))


def crash_points(requests: int, every: bool) -> list[int]:
    """The requests at which the adapter is killed: all, or a sample spread over all."""
    if every or requests <= SAMPLED:
        return list(range(1, requests + 1))
    return sorted({1 + round(index * (requests - 1) / (SAMPLED - 1)) for index in range(SAMPLED)})


def crash_at(platform: PlatformUnderTest, point: int, *, is_done: bool, whole: Footprint) -> None:
    """Kill the adapter at its n-th request, before or after the platform has handled it, and start another.

    `whole` is what a deployment does without a crash.
    """
    count = 0
    killed = False

    def counted(request: ApiRequest) -> bool:
        nonlocal count
        if "/instances/" not in request.path:
            return False
        count += 1
        return count == point

    def kill() -> None:
        nonlocal killed
        killed = True
        platform.adapter.kill()
        raise ConnectionDropped

    def before(request: ApiRequest, number: int) -> None:
        if not is_done and counted(request):
            kill()

    def after(request: ApiRequest, number: int, response: ApiResponse) -> ApiResponse:
        if is_done and counted(request):
            kill()
        return response

    platform.faults.before, platform.faults.after = before, after
    instance_id = platform.create_instance(f"crash-{point}")
    deploy = platform.open_operation(instance_id, "deploy").id
    platform.wait_for("the crash", lambda: killed or platform.operation(instance_id, deploy).is_over)
    platform.faults.clear()
    platform.kill_adapter()
    platform.start_adapter()
    try:
        succeeded(platform, instance_id, deploy)
        expect(all_ready(platform.members(instance_id)), "not every member is ready")
        done = footprint(platform, instance_id)
        expect(done == whole, f"it did other things than without a crash: {_difference(done, whole)}")
    except PromiseBroken as broken:
        raise PromiseBroken(f"after a kill at request {point}: {broken}") from broken


def crashes(every: bool) -> Callable[[PlatformUnderTest], None]:
    """The scenario that kills the adapter at each request of a deployment, or at a sample."""

    def scenario(platform: PlatformUnderTest) -> None:
        instance_id = deployed(platform, "undisturbed")
        requests = [each for each in platform.traffic() if each.instance_id == instance_id]
        whole = footprint(platform, instance_id)
        for index, point in enumerate(crash_points(len(requests), every)):
            crash_at(platform, point, is_done=index % 2 == 0, whole=whole)
        last = platform.create_instance("afterwards")
        succeeded(platform, last, platform.open_operation(last, "deploy").id)
        expect(footprint(platform, last) == whole, "a deployment differs from the one before the crashes")

    return scenario


@promise(
    "task_failure",
    "A failed task fails the operation with a code of the list and the task's last lines.",
    needs=("nodes",),
    among=FAULT_PROMISES,
)
def reports_failures(platform: PlatformUnderTest) -> None:
    platform.fail_tasks(lambda task: task.type in EFFECTS, "permission_denied", "the last line of its log")
    instance_id = platform.create_instance("unlucky")
    operation = platform.ended(instance_id, platform.open_operation(instance_id, "deploy").id)
    expect(operation.status == "failed", f"the deployment ended as {operation.status}")
    expect(failed_with(operation, "permission_denied"), f"the failure is {dict(operation.failure or {})}")
    lines = (operation.failure or {}).get("last_lines") or []
    expect("the last line of its log" in lines, "the last lines are not reported")


@promise(
    "forbidden",
    "A missing permission fails the operation as permission_denied, and is not asked for again and again.",
    needs=("permissions",),
    among=FAULT_PROMISES,
)
def accepts_refusals(platform: PlatformUnderTest) -> None:
    platform.forbid("task.create")
    instance_id = platform.create_instance("forbidden")

    def denied() -> int:
        return sum(1 for each in platform.traffic() if each.instance_id == instance_id and each.status == 403)

    deploy = platform.open_operation(instance_id, "deploy").id
    platform.wait_for(
        "the end of deploy", lambda: platform.operation(instance_id, deploy).is_over or denied() > DENIALS_MAX
    )
    expect(denied() <= DENIALS_MAX, f"it asked {denied()} times for what it may not do")
    operation = platform.operation(instance_id, deploy)
    expect(operation.status == "failed", f"the deployment ended as {operation.status}")
    expect(failed_with(operation, "permission_denied"), f"the failure is {dict(operation.failure or {})}")


@promise(
    "node_loss",
    "If a node is lost while a member joins, the deployment fails as node_lost.",
    needs=("node_loss",),
    among=FAULT_PROMISES,
)
def survives_node_loss(platform: PlatformUnderTest) -> None:
    platform.hold_tasks(lambda task: True)
    instance_id = platform.create_instance("lost")
    first = platform.members(instance_id)[0]
    platform.hold_tasks(lambda task: task.member_id == first.id)
    platform.wait_for(
        "a task for the first member",
        lambda: any(each.member_id == first.id for each in platform.tasks(instance_id)),
    )
    platform.lose_node(instance_id, first.id)
    platform.hold_tasks(lambda task: False)
    operation = platform.ended(instance_id, platform.open_operation(instance_id, "deploy").id)
    check(platform)
    expect(operation.status == "failed", f"the deployment ended as {operation.status}")
    expect(failed_with(operation, "node_lost"), f"the failure is {dict(operation.failure or {})}")


@promise(
    "never_quiet",
    "A member that does not become quiet is never reported as drained.",
    needs=("nodes",),
    applies=grows,
    among=FAULT_PROMISES,
)
def waits_for_quiet(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "busy")
    succeeded(platform, instance_id, platform.add(instance_id, platform.profile.grows, 1))
    member = of_component(platform, instance_id, platform.profile.grows)[-1]
    platform.never_quiet(True)
    seconds = platform.profile.busy_drain_seconds
    drain = platform.ended(instance_id, platform.drain(instance_id, member.id, timeout_seconds=seconds))
    check(platform)
    state = next(each.status for each in platform.members(instance_id) if each.id == member.id)
    expect(drain.status == "failed" and state == "draining", f"the drain {drain.status}, the member is {state}")
    succeeded(platform, instance_id, platform.remove(instance_id, member.id, timeout_seconds=seconds))
    check(platform)


@promise(
    "remove_failed",
    "A failed member can be removed, and another added.",
    needs=("nodes",),
    applies=grows,
    among=FAULT_PROMISES,
)
def removes_what_failed(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "tombstone")
    platform.fail_tasks(lambda task: task.type in EFFECTS, "exited", "it did not start")
    key = platform.profile.grows
    add = platform.ended(instance_id, platform.add(instance_id, key, 1))
    expect(add.status == "failed", f"the add ended as {add.status}")
    failed = [each for each in of_component(platform, instance_id, key) if each.status == "failed"]
    expect(len(failed) == 1, "the member is not failed")
    platform.fail_tasks(lambda task: False, "exited", "")
    succeeded(platform, instance_id, platform.remove(instance_id, failed[0].id))
    succeeded(platform, instance_id, platform.add(instance_id, key, 1))
    expect(all_ready(platform.members(instance_id)), "not every member is ready")
    expect(platform.instance(instance_id).status == "running", "the instance does not run")


@promise("repair", "A repair brings a failed member back.", needs=("nodes",), applies=grows, among=FAULT_PROMISES)
def repairs(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "mended")
    platform.fail_tasks(lambda task: task.type in EFFECTS, "exited", "it did not start")
    platform.ended(instance_id, platform.add(instance_id, platform.profile.grows, 1))
    platform.fail_tasks(lambda task: False, "exited", "")
    succeeded(platform, instance_id, platform.repair(instance_id))
    expect(all_ready(platform.members(instance_id)), "not every member is ready")


@promise(
    "token_expiry",
    "An expired token is replaced, and the work continues.",
    needs=("tokens",),
    among=FAULT_PROMISES,
)
def renews_tokens(platform: PlatformUnderTest) -> None:
    count = 0

    def expire(request: ApiRequest, number: int) -> None:
        nonlocal count
        if "/instances/" in request.path:
            count += 1
            if count % 4 == 0:
                platform.expire_tokens()

    platform.faults.before = expire
    expect_baseline(platform, deployed(platform, "tokens"))


@promise(
    "clock_skew", "A clock that is 45 seconds ahead or behind changes nothing.", needs=("clock",), among=FAULT_PROMISES
)
def takes_skewed_clocks(platform: PlatformUnderTest) -> None:
    for seconds in (SKEW_SECONDS, -SKEW_SECONDS):
        platform.skew_clock(seconds)
        platform.expire_tokens()
        instance_id = deployed(platform, "ahead" if seconds > 0 else "behind")
        if grows(platform) is None:
            member = of_component(platform, instance_id, platform.profile.grows)[-1]
            succeeded(platform, instance_id, platform.drain(instance_id, member.id, timeout_seconds=30.0))
    platform.skew_clock(0.0)


@promise(
    "other_project",
    "An instance is only touched with its own project's account.",
    needs=("projects",),
    among=FAULT_PROMISES,
)
def stays_in_its_project(platform: PlatformUnderTest) -> None:
    other = platform.create_instance("theirs", project=1)
    succeeded(platform, other, platform.open_operation(other, "deploy").id)
    theirs = {each.token for each in platform.traffic() if each.instance_id == other}
    tempted = False

    def tempt(request: ApiRequest, number: int, response: ApiResponse) -> ApiResponse:
        """Offer the other project's instance to this account too, as an attacker would."""
        nonlocal tempted
        body = response.body
        if request.path.endswith("/claims") and response.status == 200 and request.token not in theirs | {None}:
            if tempted:
                return response
            tempted = True
            return ApiResponse(200, {**body, "claims": [*body["claims"], {"instance_id": other, "fence": 1}]})
        return response

    platform.faults.after = tempt
    ours = deployed(platform, "ours")
    platform.faults.clear()
    expect(tempted, "no poll of the account could be tempted")
    stop = platform.stop(other)
    succeeded(platform, other, stop)
    expect(platform.instance(ours).status == "running", "its own instance does not run")
    reached = [
        each
        for each in platform.traffic()
        if each.instance_id == other and each.status == 404 and each.method == "POST"
    ]
    expect(len(reached) <= 1, f"{len(reached)} attempts to write to an instance of another project")


@promise(
    "released",
    "On SIGTERM it releases its claims, and another process continues.",
    needs=("process",),
    among=FAULT_PROMISES,
)
def gives_claims_back(platform: PlatformUnderTest) -> None:
    platform.hold_tasks(lambda task: True)
    instance_id = platform.create_instance("handed-over")
    platform.wait_for("a first task", lambda: platform.tasks(instance_id))
    code = platform.adapter.stop(platform.profile.patience_seconds)
    expect(code is not None, "it did not end on SIGTERM")
    expect(platform.instance(instance_id).held_by is None, "its claim was not released")
    platform.hold_tasks(lambda task: False)
    platform.start_adapter()
    succeeded(platform, instance_id, platform.open_operation(instance_id, "deploy").id)
    expect_baseline(platform, instance_id)


@promise(
    "interrupted_upgrade",
    "If it is killed in the middle of an upgrade, another process continues.",
    needs=("process",),
    applies=supports("upgrade"),
    among=FAULT_PROMISES,
)
def goes_on_with_upgrades(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "halfway")
    upgrade = platform.upgrade(instance_id)
    platform.wait_for(
        "a task of the upgrade", lambda: any(each.operation_id == upgrade for each in platform.tasks(instance_id))
    )
    platform.kill_adapter()
    platform.start_adapter()
    succeeded(platform, instance_id, upgrade)
    expect(all_ready(platform.members(instance_id)), "not every member is ready")
