"""The next step for every named cause: who acts, and what they do.

The tables are complete: each operation failure, task failure, allocation failure and platform blocker has an entry, and
a test checks that. A code that only an adapter knows leads to the team that runs the adapter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mooring.core.fleet.allocation import FailureReason
from mooring.core.fleet.task_family import FailureCode
from mooring.core.runtime.instance import Instance, InstanceHealth, InstanceState
from mooring.core.runtime.instance_reconcile import NO_CAPACITY, WAITING
from mooring.core.runtime.instance_teardown import SOMETHING_LEFT, UNREACHABLE
from mooring.core.runtime.operation import ADVICE, Operation, OperationFailure, OperationKind, OperationState

F, C, K = OperationFailure, FailureCode, OperationKind


class Unblocker(StrEnum):
    """Who can act."""

    NOBODY = "nobody"
    YOU = "you"
    PROJECT_ADMIN = "project_admin"
    APP_TEAM = "app_team"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The one next step: who takes it, what it is, and the command for it if there is one."""

    who: Unblocker
    what: str
    command: str | None = None


U = Unblocker

NOT_QUIET: Final = OperationFailure.NOT_QUIET.value
"""The blocker of a drain that waits for what still runs on its members; the adapter names it."""
NOTHING: Final = NextStep(U.NOBODY, "no action is needed")
BY_ITSELF: Final = NextStep(U.NOBODY, "no action is needed: it continues automatically")

WHO_OF_FAILURE: Final[Mapping[OperationFailure, Unblocker]] = MappingProxyType(
    {
        F.BOOTSTRAP_TIMEOUT: U.YOU, F.STEP_TIMEOUT: U.YOU, F.DEADLINE_EXCEEDED: U.YOU, F.NO_CAPACITY: U.YOU,
        F.IMAGE_PULL_FAILED: U.YOU, F.ARTIFACT_REFUSED: U.PROJECT_ADMIN, F.PERMISSION_DENIED: U.PROJECT_ADMIN,
        F.CONFIG_REFUSED: U.YOU, F.RUNTIME_ERROR: U.YOU, F.UNHEALTHY: U.YOU, F.ADAPTER_UNAVAILABLE: U.APP_TEAM,
        F.ADAPTER_ERROR: U.APP_TEAM, F.NODE_LOST: U.YOU, F.BELOW_MINIMUM: U.YOU, F.NOT_QUIET: U.YOU,
        F.CIRCUIT_OPEN: U.YOU, F.CANCELLED: U.YOU,
    }
)  # fmt: skip
"""Who acts on a failure; `ADVICE` says what they do."""

NEXT_OF_TASK: Final[Mapping[FailureCode, NextStep]] = MappingProxyType(
    {
        C.REFUSED: NextStep(U.OPERATOR, "the node refused the task: compare the versions of agent and platform"),
        C.INTERRUPTED: NextStep(U.YOU, "the node's agent restarted while it ran: try again"),
        C.TIMED_OUT: NextStep(U.YOU, "it exceeded its time limit: read the last lines, then try again with more time"),
        C.CANCELLED: NextStep(U.YOU, "somebody cancelled it: request it again if it is still needed"),
        C.EXITED: NextStep(
            U.YOU, "the program exited: read the last lines, then change its command or its configuration"
        ),
        C.NOT_FOUND: NextStep(
            U.APP_TEAM, "the task names something that does not exist: correct the version's manifest"
        ),
        C.DIGEST_MISMATCH: NextStep(U.PROJECT_ADMIN, "the bytes do not match the digest: check the artifact's source"),
        C.IMAGE_PULL_FAILED: NextStep(U.YOU, "try again; if it fails again, check that the image's source answers"),
        C.NO_PROGRESS: NextStep(U.OPERATOR, "the download stalled: check that the node can reach the image's source"),
        C.TOO_LARGE: NextStep(
            U.APP_TEAM, "it exceeds the node's size limit: make it smaller, or ask for a higher limit"
        ),
        C.PATH_REFUSED: NextStep(
            U.APP_TEAM, "the task names a path outside its own directories: correct the version's manifest"
        ),
        C.PERMISSION_DENIED: NextStep(U.PROJECT_ADMIN, "the task lacks a grant that it needs: check the grants"),
        C.PROBE_FAILED: NextStep(U.YOU, "the program runs but fails its probe: read its last lines"),
        C.CAPACITY: NextStep(U.YOU, "the machine is short of a resource: choose another one, or request less"),
        C.HOST_ERROR: NextStep(U.OPERATOR, "the node's host failed: read its agent's log"),
    }
)

NEXT_OF_BLOCKER: Final[Mapping[str, NextStep]] = MappingProxyType(
    {
        NO_CAPACITY: NextStep(U.YOU, "wait until capacity is free, or stop this and request what fits now"),
        WAITING: NextStep(U.NOBODY, "its capacity is being provisioned: it continues when the sandbox is ready"),
        UNREACHABLE: NextStep(U.OPERATOR, "bring the node back, or retire it, which writes off what it had"),
        NOT_QUIET: NextStep(U.YOU, "wait until what still runs there has ended, or end it yourself"),
        SOMETHING_LEFT: NextStep(
            U.OPERATOR, "remove the leftovers that the receipt names: then the next check succeeds"
        ),
    }
)
NEXT_OF_ALLOCATION: Final[Mapping[str, NextStep]] = MappingProxyType(
    {
        FailureReason.NO_CAPACITY: NextStep(U.YOU, "try again when there is room, or request less"),
        FailureReason.CANCELLED: NextStep(U.YOU, "the allocation was released before it was active: request a new one"),
        FailureReason.NODE_LOST: NextStep(U.YOU, "try again: another machine will be used"),
    }
)

NODE_SILENT: Final = NextStep(U.OPERATOR, "bring the node back: its agent has been silent for too long")
ADAPTER_MISSING: Final = NextStep(
    U.APP_TEAM,
    "start the adapter of this app with the operator account of this project: then it continues automatically",
)
ACCOUNT_DISABLED: Final = NextStep(
    U.PROJECT_ADMIN, "enable the operator account again: then the adapter continues automatically"
)
ACCOUNT_REFUSED: Final = NextStep(
    U.PROJECT_ADMIN, "give the operator account the action that it lacks: agree to it in the app's entitlement"
)
ADAPTER_BLOCKED: Final = NextStep(
    U.APP_TEAM, "the adapter named what it waits for: the team that runs it can resolve that"
)
HELD: Final = NextStep(U.YOU, "the owner of the hold must lift it: the hold names the owner and the reason")
UNTRUSTED: Final = NextStep(
    U.YOU, "upgrade to a version whose artifacts are trusted, or stop the instance; have a wrong doubt resolved"
)
UNHEALTHY: Final = NextStep(U.YOU, "read the health detail; a repair rebuilds what is broken")

VAGUE: Final = frozenset(
    {
        F.BOOTSTRAP_TIMEOUT, F.STEP_TIMEOUT, F.DEADLINE_EXCEEDED, F.RUNTIME_ERROR, F.IMAGE_PULL_FAILED, F.UNHEALTHY,
        F.ADAPTER_ERROR,
    }
)  # fmt: skip
"""Operation failures that the failure of one of their tasks explains better."""


def needs_attention(instance: Instance, open_operations: Iterable[Operation]) -> bool:
    """Whether a person should look at the instance: it failed, is unwell, is not trusted, or waits for something."""
    return (
        instance.status == InstanceState.FAILED
        or (instance.status == InstanceState.RUNNING and instance.health != InstanceHealth.HEALTHY)
        or (instance.distrust is not None and instance.status != InstanceState.STOPPED)
        or any(each.status == OperationState.BLOCKED for each in open_operations)
    )


def next_of_failure(code: str, command: str | None) -> NextStep:
    """The next step after a failure of an operation, a member or an instance."""
    try:
        known = OperationFailure(code)
    except ValueError:  # the adapter's own code
        return NextStep(U.APP_TEAM, ADVICE[F.ADAPTER_ERROR], command)
    return NextStep(WHO_OF_FAILURE[known], ADVICE[known], command)


def next_of_task(code: str | None) -> NextStep | None:
    """The next step after the failure of a task."""
    return NEXT_OF_TASK[FailureCode(code)] if code in tuple(FailureCode) else None


def next_of_allocation(code: str | None) -> NextStep:
    """The next step after an allocation failed: by its own code, or that of its node's task."""
    return NEXT_OF_ALLOCATION.get(code or "") or next_of_task(code) or NEXT_OF_ALLOCATION[FailureReason.NO_CAPACITY]


def retry_command(instance: Instance, operation: Operation) -> str:
    """The command that repeats the operation, or the one that resolves its failure."""
    named, members = instance.id, " ".join(operation.member_ids[:1])
    return {
        K.DEPLOY: f"mooring instances stop {named}",
        K.ADD: f"mooring instances members remove {named} {members}",
        K.DRAIN: f"mooring instances members drain {named} {members}",
        K.REMOVE: f"mooring instances members remove {named} {members}",
        K.REPLACE: f"mooring instances members replace {named} {members}",
        K.UPGRADE: f"mooring instances rollback {named}",
        K.ROLLBACK: f"mooring instances rollback {named}",
        K.RECONCILE: f"mooring instances reconcile {named}",
        K.REPAIR: f"mooring instances repair {named}",
        K.RESTART: f"mooring instances restart {named}",
        K.CONFIGURE: f"mooring instances update {named}",
        K.ACTION: f"mooring instances watch {named}",
        K.ATTACH: f"mooring instances watch {named}",
        K.DETACH: f"mooring instances watch {named}",
        K.DECOMMISSION: f"mooring instances stop {named}",
    }[OperationKind(operation.kind)]


if set(WHO_OF_FAILURE) != set(OperationFailure) or set(NEXT_OF_TASK) != set(FailureCode):
    raise ValueError("every failure must name who can act")
if set(NEXT_OF_ALLOCATION) != set(FailureReason):
    raise ValueError("every allocation failure must have a next step")
