"""What somebody does next: for every cause that has a name, who and what.

The tables are closed: each failure of an operation, each failure of a task, each reason of an allocation and each
blocker of the platform's own has its line, and a test compares. A code that only an adapter knows leads to whoever runs
that adapter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mooring.core.fleet.allocation import FailureReason
from mooring.core.fleet.task_family import FailureCode
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_reconcile import NO_CAPACITY, WAITING
from mooring.core.runtime.instance_teardown import SOMETHING_LEFT, UNREACHABLE
from mooring.core.runtime.operation import Operation, OperationFailure, OperationKind
from mooring.core.runtime.operation_advice import ADVICE

F, C, K = OperationFailure, FailureCode, OperationKind


class Unblocker(StrEnum):
    """Who can do something about it."""

    NOBODY = "nobody"
    YOU = "you"
    PROJECT_ADMIN = "project_admin"
    APP_TEAM = "app_team"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The one next step: who takes it, what it is, and the command for it where there is one."""

    who: Unblocker
    what: str
    command: str | None = None


U = Unblocker

NOTHING: Final = NextStep(U.NOBODY, "nothing is to be done")
BY_ITSELF: Final = NextStep(U.NOBODY, "nothing is to be done: it goes on by itself")

WHO_OF_FAILURE: Final[Mapping[OperationFailure, Unblocker]] = MappingProxyType(
    {
        F.BOOTSTRAP_TIMEOUT: U.YOU, F.STEP_TIMEOUT: U.YOU, F.DEADLINE_EXCEEDED: U.YOU, F.NO_CAPACITY: U.YOU,
        F.IMAGE_PULL_FAILED: U.YOU, F.ARTIFACT_REFUSED: U.PROJECT_ADMIN, F.PERMISSION_DENIED: U.PROJECT_ADMIN,
        F.CONFIG_REFUSED: U.YOU, F.RUNTIME_ERROR: U.YOU, F.UNHEALTHY: U.YOU, F.ADAPTER_UNAVAILABLE: U.APP_TEAM,
        F.ADAPTER_ERROR: U.APP_TEAM, F.NODE_LOST: U.YOU, F.BELOW_MINIMUM: U.YOU, F.NOT_QUIET: U.YOU,
        F.CIRCUIT_OPEN: U.YOU, F.CANCELLED: U.YOU,
    }
)  # fmt: skip
"""Who acts on a failure; what he does is the advice that goes with it."""

NEXT_OF_TASK: Final[Mapping[FailureCode, NextStep]] = MappingProxyType(
    {
        C.REFUSED: NextStep(U.OPERATOR, "the node did not take the task: compare the versions of agent and platform"),
        C.INTERRUPTED: NextStep(U.YOU, "the node's agent began anew while it ran: ask again"),
        C.TIMED_OUT: NextStep(U.YOU, "it took longer than it may: read the last lines, then ask again with more time"),
        C.CANCELLED: NextStep(U.YOU, "somebody ended it early: ask again if it is wanted after all"),
        C.EXITED: NextStep(
            U.YOU, "the program ended by itself: read the last lines and change its command or its config"
        ),
        C.NOT_FOUND: NextStep(U.APP_TEAM, "something that the task names is not there: correct the version's manifest"),
        C.DIGEST_MISMATCH: NextStep(
            U.PROJECT_ADMIN, "the bytes are not those of the digest: check the artifact's source"
        ),
        C.IMAGE_PULL_FAILED: NextStep(U.YOU, "ask again; if it fails again, see whether the image's source answers"),
        C.NO_PROGRESS: NextStep(
            U.OPERATOR, "no bytes came for too long: see whether the node reaches the image's source"
        ),
        C.TOO_LARGE: NextStep(
            U.APP_TEAM, "it is larger than the node takes: make it smaller, or ask for a larger limit"
        ),
        C.PATH_REFUSED: NextStep(
            U.APP_TEAM, "the task names a path outside of its own: correct the version's manifest"
        ),
        C.PERMISSION_DENIED: NextStep(U.PROJECT_ADMIN, "the node was not given what the task needs: check the grants"),
        C.PROBE_FAILED: NextStep(U.YOU, "it runs and does not answer as it should: read the last lines of its program"),
        C.CAPACITY: NextStep(U.YOU, "the machine has too little left of something: ask for another, or for less"),
        C.HOST_ERROR: NextStep(U.OPERATOR, "the node's host came to an error: its agent's log has the cause"),
    }
)

NEXT_OF_BLOCKER: Final[Mapping[str, NextStep]] = MappingProxyType(
    {
        NO_CAPACITY: NextStep(U.YOU, "wait until capacity becomes free, or stop this and ask for what fits now"),
        WAITING: NextStep(U.NOBODY, "its capacity is on the way: it goes on when the sandbox stands"),
        UNREACHABLE: NextStep(U.OPERATOR, "bring the node back, or retire it for ever, which writes off what it had"),
        SOMETHING_LEFT: NextStep(
            U.OPERATOR, "look at what the receipt names and remove it: the next look finds nothing"
        ),
    }
)
NEXT_OF_ALLOCATION: Final[Mapping[str, NextStep]] = MappingProxyType(
    {
        FailureReason.NO_CAPACITY: NextStep(U.YOU, "ask again when there is room, or ask for less"),
        FailureReason.CANCELLED: NextStep(U.YOU, "the allocation was given back before it stood: ask again"),
        FailureReason.NODE_LOST: NextStep(U.YOU, "ask again: another machine is taken"),
    }
)

NODE_SILENT: Final = NextStep(U.OPERATOR, "bring the node back: its agent was not heard of for too long")
ADAPTER_MISSING: Final = NextStep(
    U.APP_TEAM, "start the adapter of this app with the operator account of this project: then it goes on by itself"
)
ADAPTER_BLOCKED: Final = NextStep(U.APP_TEAM, "the adapter named what it waits for: whoever runs it can remove that")
HELD: Final = NextStep(U.YOU, "whoever holds the member lets it go: the hold names its owner and the reason")
UNHEALTHY: Final = NextStep(U.YOU, "read what the health says; a repair builds what is broken anew")

VAGUE: Final = frozenset(
    {
        F.BOOTSTRAP_TIMEOUT, F.STEP_TIMEOUT, F.DEADLINE_EXCEEDED, F.RUNTIME_ERROR, F.IMAGE_PULL_FAILED, F.UNHEALTHY,
        F.ADAPTER_ERROR,
    }
)  # fmt: skip
"""Failures of an operation that the failure of one of its tasks explains better."""


def next_of_failure(code: str, command: str | None) -> NextStep:
    """What follows on a failure of an operation, a member or an instance."""
    try:
        known = OperationFailure(code)
    except ValueError:  # a word of the adapter's own
        return NextStep(U.APP_TEAM, ADVICE[F.ADAPTER_ERROR], command)
    return NextStep(WHO_OF_FAILURE[known], ADVICE[known], command)


def next_of_task(code: str | None) -> NextStep | None:
    """What follows on the failure of a task."""
    return NEXT_OF_TASK[FailureCode(code)] if code in tuple(FailureCode) else None


def next_of_allocation(code: str | None) -> NextStep:
    """What follows when an allocation did not come to stand: its own reason, or that of its node's task."""
    return NEXT_OF_ALLOCATION.get(code or "") or next_of_task(code) or NEXT_OF_ALLOCATION[FailureReason.NO_CAPACITY]


def again(instance: Instance, operation: Operation) -> str:
    """The command that asks for the same once more, or leads out."""
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
        K.ACTION: f"mooring instances watch {named}",
        K.ATTACH: f"mooring instances watch {named}",
        K.DETACH: f"mooring instances watch {named}",
        K.DECOMMISSION: f"mooring instances stop {named}",
    }[OperationKind(operation.kind)]


if set(WHO_OF_FAILURE) != set(OperationFailure) or set(NEXT_OF_TASK) != set(FailureCode):
    raise ValueError("every failure has somebody who can do something about it")
if set(NEXT_OF_ALLOCATION) != set(FailureReason):
    raise ValueError("every reason of an allocation has a next step")
