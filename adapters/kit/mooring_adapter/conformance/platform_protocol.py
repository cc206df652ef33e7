"""What a scenario sees of a platform: the same few verbs, whether it is simulated or real.

Scenarios are written against `PlatformUnderTest` alone. A platform that cannot bring a fault about says so by `can`,
and the promises that need it are told as not played.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mooring_adapter.conformance.adapter_process import AdapterProcess
from mooring_adapter.conformance.fault_proxy import ProxyFaults, RecordedExchange

Value = TypeVar("Value")
Footprint = Counter[tuple[str, str]]
"""What a deployment starts: how often, by component and type of task."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member, as people see it."""

    id: str
    name: str
    component_key: str
    status: str
    version: str
    failure_code: str | None = None


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """An operation, as people see it."""

    id: str
    kind: str
    status: str
    phase: str
    correlation_id: str
    failure: Mapping[str, Any] | None = None
    output: Mapping[str, Any] | None = None
    blocker: Mapping[str, Any] | None = None
    steps: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task, as people see it."""

    id: str
    operation_id: str | None
    step: str
    type: str
    member_id: str
    status: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """An instance, as people see it."""

    id: str
    status: str
    health: str
    version: str
    endpoints: tuple[Mapping[str, Any], ...] = ()
    failure_code: str | None = None
    usage: tuple[Mapping[str, Any], ...] = ()
    held_by: str | None = None


@dataclass(slots=True)
class SuiteProfile:
    """With what an adapter is tested: its manifest, and values that the manifest alone cannot give."""

    manifest: dict[str, Any]
    next_manifest: dict[str, Any]
    topology: dict[str, int]
    config: dict[str, Any] = field(default_factory=dict)
    actions: dict[str, dict[str, Any]] = field(default_factory=dict)
    grows: str = ""  # the component that members are added to and removed from
    patience_seconds: float = 20.0
    busy_drain_seconds: float = 2.0  # how long a drain may last whose member never becomes quiet
    fake_program: tuple[str, ...] = ()  # a program that answers for the app's own on the simulated nodes


class PlatformUnderTest(Protocol):
    """A platform with an adapter at work, and the hands to disturb both."""

    profile: SuiteProfile
    adapter: AdapterProcess
    baseline: Footprint | None
    """What a deployment starts when nothing goes wrong, once one was seen."""

    @property
    def faults(self) -> ProxyFaults:
        """How the way between adapter and platform misbehaves."""

    def can(self, fault: str) -> bool:
        """Whether this platform can bring a fault about."""

    def create_instance(self, name: str, *, topology: dict[str, int] | None = None, project: int = 0) -> str:
        """A new instance; its id."""

    def add(self, instance_id: str, component: str, count: int) -> str:
        """Add members; the operation's id, as for all that follow."""

    def drain(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str: ...

    def resume(self, instance_id: str, member_id: str) -> None:
        """Take a drain back; there is no operation of it."""

    def remove(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str: ...

    def replace(self, instance_id: str, member_id: str) -> str: ...

    def upgrade(self, instance_id: str) -> str: ...

    def rollback(self, instance_id: str) -> str: ...

    def restart(self, instance_id: str) -> str: ...

    def repair(self, instance_id: str) -> str: ...

    def act(self, instance_id: str, action: str, given: dict[str, Any]) -> str:
        """An action of the app; `RefusedByPlatform` where the manifest has none of this name."""

    def stop(self, instance_id: str) -> str: ...

    def cancel(self, instance_id: str, operation_id: str) -> None: ...

    def instance(self, instance_id: str) -> InstanceStatus: ...

    def members(self, instance_id: str) -> list[MemberStatus]:
        """Those that are not removed."""

    def operation(self, instance_id: str, operation_id: str) -> OperationStatus: ...

    def ended(self, instance_id: str, operation_id: str) -> OperationStatus:
        """The operation once nothing more comes of it; `ConditionNotReached` when it has no end."""

    def open_operation(self, instance_id: str, kind: str) -> OperationStatus:
        """The newest operation of a kind."""

    def tasks(self, instance_id: str) -> list[TaskStatus]: ...

    def wait_for(self, what: str, condition: Callable[[], Value]) -> Value:
        """Until the condition holds; `ConditionNotReached` says what did not come about."""

    def traffic(self) -> list[RecordedExchange]:
        """What the adapter asked, and what it was answered."""

    def broken(self) -> list[str]:
        """What the platform saw that must not be, since it was asked last."""

    def start_adapter(self) -> None: ...

    def kill_adapter(self) -> None: ...

    def hold_tasks(self, of: Callable[[TaskStatus], bool]) -> None:
        """Let the nodes leave these tasks undone until others are named."""

    def fail_tasks(self, of: Callable[[TaskStatus], bool], code: str, last_line: str) -> None:
        """Let these tasks fail from now on."""

    def lose_node(self, instance_id: str, member_id: str) -> None:
        """The member's node is gone for ever."""

    def never_quiet(self, is_so: bool) -> None:
        """Whether draining members have work that does not end."""

    def take_lease(self, instance_id: str, holder: str | None) -> None:
        """Give the instance to another holder; None: offer it again."""

    def expire_tokens(self) -> None:
        """No token that was given out is good any more."""

    def skew_clock(self, seconds: float) -> None:
        """Let the platform's clock go ahead of the adapter's, or behind."""

    def down_together(self, instance_id: str, component: str) -> int:
        """The most members of a component that were down at a time, of those that had been up."""


class ConditionNotReached(Exception):
    """What a scenario waited for did not come about."""


class PromiseBroken(Exception):
    """A promise is broken, and why."""


class RefusedByPlatform(Exception):
    """The platform refuses by itself what the scenario asks for: no adapter hears of it."""
