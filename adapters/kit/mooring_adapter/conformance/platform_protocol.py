"""The platform as scenarios see it: one protocol for the simulated and the real platform.

Scenarios only use `PlatformUnderTest`. A platform reports with `can` which faults it supports, and promises that need
another fault are reported as not played.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mooring_adapter.conformance.adapter_process import AdapterProcess
from mooring_adapter.conformance.fault_proxy import ProxyFaults, RecordedExchange

Value = TypeVar("Value")
Footprint = Counter[tuple[str, str]]
"""How often a deployment starts what, by component and type of task."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A member, as the API shows it to people."""

    id: str
    name: str
    component_key: str
    status: str
    version: str
    failure_code: str | None = None


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """An operation, as the API shows it to people."""

    id: str
    kind: str
    status: str
    phase: str
    correlation_id: str
    failure: Mapping[str, Any] | None = None
    output: Mapping[str, Any] | None = None
    blocker: Mapping[str, Any] | None = None
    steps: tuple[str, ...] = ()
    is_by_adapter: bool = True
    """Whether the adapter ended it, and not the platform when the time was over."""

    @property
    def is_over(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task, as the API shows it to people."""

    id: str
    operation_id: str | None
    step: str
    type: str
    member_id: str
    status: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """An instance, as the API shows it to people."""

    id: str
    status: str
    health: str
    version: str
    endpoints: tuple[Mapping[str, Any], ...] = ()
    failure_code: str | None = None
    usage: tuple[Mapping[str, Any], ...] = ()
    held_by: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SuiteProfile:
    """What an adapter is tested with: its manifest, and values that the manifest does not contain."""

    manifest: dict[str, Any]
    next_manifest: dict[str, Any]
    topology: dict[str, int]
    config: dict[str, Any] = field(default_factory=dict)
    actions: dict[str, dict[str, Any]] = field(default_factory=dict)
    config_change: dict[str, Any] = field(default_factory=dict)
    """What a running instance can change without being refused, as a merge patch of its configuration."""
    grows: str = ""  # the component whose members are added and removed
    patience_seconds: float = 20.0
    busy_drain_seconds: float = 2.0  # the time-out of a drain whose member never becomes quiet
    fake_program: tuple[str, ...] = ()  # a program that answers for the app's own programs on the simulated nodes


class PlatformUnderTest(Protocol):
    """A platform with a running adapter, and the means to disturb both."""

    profile: SuiteProfile
    adapter: AdapterProcess
    baseline: Footprint | None
    """What an undisturbed deployment starts, once one has run."""

    @property
    def faults(self) -> ProxyFaults:
        """How the connection between adapter and platform misbehaves."""

    def can(self, fault: str) -> bool:
        """Whether this platform supports a fault."""

    def create_instance(self, name: str, *, topology: dict[str, int] | None = None, project: int = 0) -> str:
        """Create an instance; returns its id."""

    def add(self, instance_id: str, component: str, count: int) -> str:
        """Add members; returns the operation's id, as do all that follow."""

    def drain(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str: ...

    def resume(self, instance_id: str, member_id: str) -> None:
        """Take a drain back; this is not an operation."""

    def remove(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str: ...

    def replace(self, instance_id: str, member_id: str) -> str: ...

    def upgrade(self, instance_id: str) -> str: ...

    def rollback(self, instance_id: str) -> str: ...

    def restart(self, instance_id: str) -> str: ...

    def configure(self, instance_id: str, patch: dict[str, Any]) -> str:
        """Change the configuration of a running instance by a merge patch."""

    def repair(self, instance_id: str) -> str: ...

    def act(self, instance_id: str, action: str, given: dict[str, Any]) -> str:
        """Start an action of the app; raises `RefusedByPlatform` if the manifest has no such action."""

    def stop(self, instance_id: str) -> str: ...

    def cancel(self, instance_id: str, operation_id: str) -> None: ...

    def instance(self, instance_id: str) -> InstanceStatus: ...

    def members(self, instance_id: str) -> list[MemberStatus]:
        """The members that are not removed."""

    def operation(self, instance_id: str, operation_id: str) -> OperationStatus: ...

    def ended(self, instance_id: str, operation_id: str) -> OperationStatus:
        """Wait for the end of an operation; raises `ConditionNotReached` if it does not end."""

    def open_operation(self, instance_id: str, kind: str) -> OperationStatus:
        """The newest operation of a kind."""

    def tasks(self, instance_id: str) -> list[TaskStatus]: ...

    def wait_for(self, what: str, condition: Callable[[], Value]) -> Value:
        """Wait until the condition holds; raises `ConditionNotReached` if it does not."""

    def traffic(self) -> list[RecordedExchange]:
        """The adapter's requests and their responses."""

    def broken(self) -> list[str]:
        """The violations that the platform has observed since the last call."""

    def start_adapter(self) -> None: ...

    def kill_adapter(self) -> None: ...

    def hold_tasks(self, of: Callable[[TaskStatus], bool]) -> None:
        """Let the nodes hold these tasks until the next call."""

    def fail_tasks(self, of: Callable[[TaskStatus], bool], code: str, last_line: str) -> None:
        """Let these tasks fail from now on."""

    def lose_node(self, instance_id: str, member_id: str) -> None:
        """Lose the member's node permanently."""

    def never_quiet(self, is_so: bool) -> None:
        """Whether draining members have endless work."""

    def take_lease(self, instance_id: str, holder: str | None) -> None:
        """Give the claim to another holder; None offers it again."""

    def expire_tokens(self) -> None:
        """Invalidate all issued tokens."""

    def forbid(self, *actions: str) -> None:
        """Take these actions from the adapter's accounts; without any, give all back."""

    def skew_clock(self, seconds: float) -> None:
        """Move the platform's clock ahead of the adapter's, or behind it."""

    def down_together(self, instance_id: str, component: str) -> int:
        """The most members of a component that were down at the same time after having been up."""


class ConditionNotReached(Exception):
    """What a scenario waited for did not happen."""


class PromiseBroken(Exception):
    """A promise is broken; the message says why."""


class RefusedByPlatform(Exception):
    """The platform refuses a request itself, so that no adapter gets it."""
