"""The promises of an adapter in normal operation, each with the scenario that checks it.

A scenario drives a `PlatformUnderTest`, waits for what must happen, and raises `PromiseBroken` with the reason when a
promise is not kept. It knows neither how the platform is implemented nor the app beyond its manifest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mooring_adapter.conformance.advice import ADVICE
from mooring_adapter.conformance.platform_protocol import (
    InstanceStatus,
    MemberStatus,
    OperationStatus,
    PlatformUnderTest,
    PromiseBroken,
    RefusedByPlatform,
)

Scenario = Callable[[PlatformUnderTest], None]


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: its key, its sentence, its scenario, and the faults that a platform must support for it."""

    key: str
    sentence: str
    scenario: Scenario
    needs: tuple[str, ...] = ()
    applies: Callable[[PlatformUnderTest], str | None] = lambda platform: None
    """Why it does not apply to this app, if it does not."""

    @property
    def advice(self) -> str:
        """What the author of an adapter does about it."""
        return ADVICE[self.key]


PLAIN_PROMISES: list[Promise] = []
EFFECTS: Final = frozenset({"service.start", "container.launch", "files.write", "process.run"})
LANES_SEEN = 4
"""How many members a component has in an upgrade: with fewer, "a few at a time" and "all at once" look the same."""


def promise(
    key: str,
    sentence: str,
    *,
    needs: tuple[str, ...] = (),
    applies: Callable[[PlatformUnderTest], str | None] = lambda platform: None,
    among: list[Promise] = PLAIN_PROMISES,
) -> Callable[[Scenario], Scenario]:
    """Register a scenario."""

    def register(scenario: Scenario) -> Scenario:
        among.append(Promise(key, sentence, scenario, needs, applies))
        return scenario

    return register


# Shared by scenarios -------------------------------------------------------------------------------------------------


def succeeded(platform: PlatformUnderTest, instance_id: str, operation_id: str) -> OperationStatus:
    """Wait for the end of an operation, which must be a success."""
    operation = platform.ended(instance_id, operation_id)
    if operation.status != "succeeded":
        raise PromiseBroken(f"{operation.kind} ended as {operation.status}: {dict(operation.failure or {})}")
    check(platform)
    return operation


def deployed(platform: PlatformUnderTest, name: str, topology: dict[str, int] | None = None) -> str:
    """Deploy an instance; returns its id."""
    instance_id = platform.create_instance(name, topology=topology)
    succeeded(platform, instance_id, platform.open_operation(instance_id, "deploy").id)
    seen = platform.instance(instance_id)
    if seen.status != "running":
        raise PromiseBroken(f"after its deployment the instance is {seen.status}")
    return instance_id


def check(platform: PlatformUnderTest) -> None:
    """Fail if the platform observed a violation."""
    if seen := platform.broken():
        raise PromiseBroken("; ".join(dict.fromkeys(seen)))


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PromiseBroken(otherwise)


def of_component(platform: PlatformUnderTest, instance_id: str, key: str) -> list[MemberStatus]:
    return [each for each in platform.members(instance_id) if each.component_key == key]


def all_ready(members: Iterable[MemberStatus]) -> bool:
    return all(each.status == "ready" for each in members)


def supports(kind: str) -> Callable[[PlatformUnderTest], str | None]:
    """Whether the manifest's lifecycle supports this operation."""

    def applies(platform: PlatformUnderTest) -> str | None:
        lifecycle = platform.profile.manifest.get("lifecycle", {})
        if kind == "upgrade":
            is_so = lifecycle.get("upgrade", {}).get("strategy", "none") != "none"
        else:
            is_so = bool(lifecycle.get(kind, {}).get("supported"))
        return None if is_so else f"the manifest does not support {kind}"

    return applies


def graceful(platform: PlatformUnderTest) -> bool:
    """Whether the manifest gives the app time to end by itself."""
    return bool(platform.profile.manifest.get("lifecycle", {}).get("delete", {}).get("graceful_seconds", 60))


def changeable(platform: PlatformUnderTest) -> str | None:
    """Why the configuration of a running instance cannot be changed, if it cannot."""
    known = None if platform.profile.config_change else "the profile has no `config_change`"
    return supports("configure")(platform) or known


def values_given(platform: PlatformUnderTest, operation_id: str) -> set[tuple[str, str]]:
    """Every value in the arguments of an operation's tasks that do something, each with the task's member."""
    asked = [each.body for each in platform.traffic() if each.body.get("operation_id") == operation_id]
    tasks = [task for body in asked for task in body.get("tasks", [body]) if task.get("type") in EFFECTS]
    return {(task["member_id"], value) for task in tasks for value in _values(task["arguments"])}


def _values(given: Any) -> Iterator[str]:
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list):
        for each in given:
            yield from _values(each)
    else:
        yield str(given)


def grows(platform: PlatformUnderTest) -> str | None:
    """Why no members can be added, if none can."""
    return None if platform.profile.grows else "no component of the manifest has room to grow"


# Promises ------------------------------------------------------------------------------------------------------------


@promise("deploy", "A deployment ends with every member ready and the instance running.")
def deploys(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "plain")
    expect(all_ready(platform.members(instance_id)), "not every member is ready")
    expect(bool(platform.tasks(instance_id)), "no task ran on any node")


@promise("probed", "A member is reported as ready only after it was seen to work.")
def probes_before_ready(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "seen")
    if grows(platform) is None:
        succeeded(platform, instance_id, platform.add(instance_id, platform.profile.grows, 1))


@promise("correlation", "Every request for an operation carries its correlation id.")
def carries_correlation(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "labels")
    operation = platform.open_operation(instance_id, "deploy")
    for each in platform.traffic():
        named = each.body.get("operation_id") or (each.path.split("/")[-2] if each.route == "finish" else None)
        if named == operation.id:
            expect(
                each.correlation_id == operation.correlation_id,
                f"{each.method} {each.route} carries {each.correlation_id!r} instead of {operation.correlation_id!r}",
            )


@promise(
    "endpoints",
    "Every endpoint of the manifest is reported, each at a member.",
    applies=lambda platform: None if platform.profile.manifest.get("endpoints") else "the manifest has no endpoints",
)
def reports_endpoints(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "endpoints")
    known = {each["name"] for each in platform.instance(instance_id).endpoints}
    missing = {each["name"] for each in platform.profile.manifest["endpoints"]} - known
    expect(not missing, f"not reported: {', '.join(sorted(missing))}")


@promise("add", "An add starts its members and leaves the others alone.", applies=grows)
def adds(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "grow")
    before = {each.id for each in platform.members(instance_id)}
    operation = platform.add(instance_id, platform.profile.grows, 2)
    succeeded(platform, instance_id, operation)
    members = platform.members(instance_id)
    expect(len(members) == len(before) + 2 and all_ready(members), "the new members are not all ready")
    started = [each for each in platform.tasks(instance_id) if each.operation_id == operation]
    expect(
        not {each.member_id for each in started if each.type in ("service.start", "container.launch")} & before,
        "something was started on members that existed before",
    )


@promise("side_by_side", "Members are started in parallel, not one after the other.", applies=grows)
def works_side_by_side(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "wide")
    before = platform.open_operation(instance_id, "deploy").id
    platform.hold_tasks(lambda task: task.operation_id != before)
    operation = platform.add(instance_id, platform.profile.grows, 3)

    def waiting() -> bool:
        return len({each.member_id for each in platform.tasks(instance_id) if each.operation_id == operation}) >= 3

    platform.wait_for("a task for each of three members at a time", waiting)
    platform.hold_tasks(lambda task: False)
    succeeded(platform, instance_id, operation)


@promise("drain", "A drained member was observed to be quiet.", applies=grows)
def drains(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "drain")
    member = of_component(platform, instance_id, platform.profile.grows)[-1]
    succeeded(platform, instance_id, platform.drain(instance_id, member.id))
    state = next(each.status for each in platform.members(instance_id) if each.id == member.id)
    expect(state == "drained", f"after the drain the member is {state}")


@promise("resume", "A drain that was taken back can be asked for again.", applies=grows)
def resumes(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "back-and-forth")
    member = of_component(platform, instance_id, platform.profile.grows)[-1]
    for _ in range(2):
        succeeded(platform, instance_id, platform.drain(instance_id, member.id))
        platform.resume(instance_id, member.id)
        expect(all_ready(platform.members(instance_id)), "the member is not ready again")


@promise("remove", "A removed member is released in time, and the others continue.", applies=grows)
def removes(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "shrink")
    succeeded(platform, instance_id, platform.add(instance_id, platform.profile.grows, 1))
    member = of_component(platform, instance_id, platform.profile.grows)[-1]
    succeeded(platform, instance_id, platform.remove(instance_id, member.id))
    left = platform.members(instance_id)
    expect(member.id not in {each.id for each in left} and all_ready(left), "the others are not all ready")


@promise("replace", "A replacement is ready before the old member stops.", applies=grows)
def replaces(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "swap")
    for component in platform.profile.topology:
        old = of_component(platform, instance_id, component)[-1]
        succeeded(platform, instance_id, platform.replace(instance_id, old.id))
        left = of_component(platform, instance_id, component)
        expect(old.id not in {each.id for each in left} and all_ready(left), f"{component} is not whole afterwards")


@promise("upgrade", "An upgrade brings every member to the new version, a few at a time.", applies=supports("upgrade"))
def upgrades(platform: PlatformUnderTest) -> None:
    topology = dict(platform.profile.topology)
    if platform.profile.grows:  # with fewer members there is nothing to see of "a few at a time"
        topology[platform.profile.grows] = max(topology[platform.profile.grows], LANES_SEEN)
    instance_id = deployed(platform, "newer", topology)
    succeeded(platform, instance_id, platform.upgrade(instance_id))
    wanted = platform.profile.next_manifest["version"]
    expect(platform.instance(instance_id).version == wanted, "the pin did not move")
    expect(all_ready(platform.members(instance_id)), "not every member is ready afterwards")
    if platform.profile.manifest["lifecycle"]["upgrade"]["strategy"] == "rolling":
        for component, count in topology.items():
            down = platform.down_together(instance_id, component)
            expect(count < 3 or down <= (count - 1) // 2, f"{down} of {count} {component} were down at a time")


@promise("rollback", "A rollback brings every member back.", applies=supports("rollback"))
def rolls_back(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "back")
    succeeded(platform, instance_id, platform.upgrade(instance_id))
    succeeded(platform, instance_id, platform.rollback(instance_id))
    expect(platform.instance(instance_id).version == platform.profile.manifest["version"], "the pin did not move back")
    expect(all_ready(platform.members(instance_id)), "not every member is ready afterwards")


@promise("restart", "A restart leaves every member ready.", applies=supports("restart"))
def restarts(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "again")
    operation = platform.restart(instance_id)
    succeeded(platform, instance_id, operation)
    expect(all_ready(platform.members(instance_id)), "not every member is ready afterwards")
    touched = {each.member_id for each in platform.tasks(instance_id) if each.operation_id == operation}
    idle = [each.name for each in platform.members(instance_id) if each.id not in touched]
    expect(not idle, f"nothing was done on {', '.join(idle)}")


@promise("configure", "A changed configuration is brought to the members.", applies=changeable)
def configures(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "tuned")
    before = platform.instance(instance_id).config
    operation = platform.configure(instance_id, platform.profile.config_change)
    succeeded(platform, instance_id, operation)
    expect(platform.instance(instance_id).config != before, "the instance has its old configuration")
    expect(all_ready(platform.members(instance_id)), "not every member is ready afterwards")
    known = values_given(platform, platform.open_operation(instance_id, "deploy").id)
    given = values_given(platform, operation)
    expect(bool(given), "nothing was written, started or run on any member")
    expect(bool(given - known), "members got what they had before: the new configuration is in `request.input`")


@promise(
    "actions",
    "Each action of the manifest is executed and returns an output.",
    applies=lambda platform: None if platform.profile.actions else "the manifest has no actions, or no input is known",
)
def acts(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "verbs")
    for name, given in platform.profile.actions.items():
        operation = succeeded(platform, instance_id, platform.act(instance_id, name, given))
        expect(operation.output is not None, f"{name} has no output")
    try:
        unknown = platform.act(instance_id, "no.such.action", {})
    except RefusedByPlatform:
        return  # the platform checks the manifest itself; an adapter that gets the action has to refuse it
    expect(platform.ended(instance_id, unknown).status == "failed", "an unknown action did not fail")


@promise(
    "graceful",
    "A stop asks everything that runs to end, before the platform tears down what is left.",
    applies=lambda platform: None if graceful(platform) else "the manifest gives the app no time to end",
)
def stops_gracefully(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "farewell")
    operation = succeeded(platform, instance_id, platform.stop(instance_id))
    expect(operation.is_by_adapter, "the adapter did not finish the stop; the platform did when the time was over")


@promise("decommission", "A stop ends within its graceful time, whatever else is open.")
def decommissions(platform: PlatformUnderTest) -> None:
    instance_id = deployed(platform, "ends")
    operation = succeeded(platform, instance_id, platform.stop(instance_id))
    expect(operation.is_by_adapter, "the adapter did not finish the stop; the platform did when the time was over")
    expect(platform.instance(instance_id).status == "stopped", "the instance is not stopped")
    platform.hold_tasks(lambda task: True)
    early = platform.create_instance("ends-early")
    deploy = platform.open_operation(early, "deploy").id
    platform.wait_for("a first task", lambda: platform.tasks(early))
    stop = platform.stop(early)
    platform.hold_tasks(lambda task: False)
    succeeded(platform, early, stop)
    expect(platform.ended(early, deploy).status != "succeeded", "a deployment succeeded after a stop")


@promise("cancel", "A cancelled operation ends and begins nothing new.")
def cancels(platform: PlatformUnderTest) -> None:
    platform.hold_tasks(lambda task: True)
    instance_id = platform.create_instance("cancelled")
    deploy = platform.open_operation(instance_id, "deploy").id
    platform.wait_for("a first task", lambda: platform.tasks(instance_id))
    platform.cancel(instance_id, deploy)
    platform.hold_tasks(lambda task: False)
    operation = platform.ended(instance_id, deploy)
    expect(operation.status in ("cancelled", "failed"), f"it ended as {operation.status}")


def failed_with(view: InstanceStatus | OperationStatus, code: str | None) -> bool:
    if isinstance(view, InstanceStatus):
        return view.failure_code == code
    return view.failure is not None and view.failure.get("code") == code
