"""A cluster for the command line: an instance or an attachment, and the app's actions on it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from mooring_cli.failures import NoSuchName
from mooring_cli.invocation import Invocation, plain_call
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import find

WAIT_SECONDS: Final = 20
ENDED: Final = "succeeded,failed,cancelled"
OVER: Final = ("detached", "refused")
OPEN_STATES: Final = frozenset(
    (
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "SPECIAL_EXIT",
    )
)
MIB: Final = {"": 1, "M": 1, "G": 1_024, "T": 1_048_576}


class ClusterRefused(click.ClickException):
    """The cluster or its adapter refused the action; the message says why."""


@dataclass(frozen=True)
class ClusterClient:
    """Runs actions on an instance or an attachment."""

    invocation: Invocation
    path: dict[str, str]
    name: str = ""  # as the caller named it

    @classmethod
    def of_instance(cls, invocation: Invocation, project: str | None, name: str) -> "ClusterClient":
        """Find an instance by its id, the beginning of its id, or its name."""
        return cls(invocation, find(invocation, ScopeResolver(invocation).project_id(project), name), name)

    @classmethod
    def of_attachment(cls, invocation: Invocation, project: str | None, name: str) -> "ClusterClient":
        """Find an attachment of the project by its id, or by the name of its instance."""
        path = {"project_id": ScopeResolver(invocation).project_id(project)}
        call = plain_call("list_attachments", path, {"limit": 500})
        known = [each for each in invocation.client.pages(call) if name in (each["id"], each["instance_name"])]
        living = [each for each in known if each["status"] not in OVER] or known[-1:]
        if not living:
            raise NoSuchName(f"there is no attachment {name!r} here; mooring attachments list shows them")
        if len(living) > 1:
            raise click.UsageError(f"{name!r} names {len(living)} attachments; give an id")
        return cls(invocation, {**path, "attachment_id": str(living[0]["id"])})

    @property
    def form(self) -> str:
        """The output format."""
        return self.invocation.output

    def hint(self, text: str) -> str:
        """A hint with the name that the caller gave; empty without one."""
        return text.format(self.name) if self.name else ""

    def act(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Start an action, wait for its end, and return its output."""
        attached = "attachment_id" in self.path
        start = "start_attachment_action" if attached else "start_instance_action"
        read = "get_attachment_operation" if attached else "get_operation"
        body = {"input": dict(given)}
        operation = self.invocation.call(start, {**self.path, "action_name": action}, {"wait": WAIT_SECONDS}, body)
        at = {**self.path, "operation_id": operation["id"]}
        while operation["status"] not in ENDED.split(","):
            operation = self.invocation.call(read, at, {"wait": WAIT_SECONDS, "until": ENDED})
        if operation["status"] != "succeeded":
            ended = f"the action {action} is {operation['status']}"
            detail = operation["failure_detail"] or operation["cancel_reason"] or ended
            raise ClusterRefused(f"{detail} ({operation['failure_code'] or operation['status']})")
        return dict(operation["output"] or {})


def named(words: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Check the number of arguments; the error names the missing or extra ones."""
    if len(words) < len(wanted):
        raise click.UsageError(f"Missing argument '{wanted[len(words)]}'.")
    if len(words) > len(wanted):
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(words[len(wanted) :])})")
    return words


def is_over(state: str) -> bool:
    """Whether a job in this state of Slurm has ended."""
    return state.partition(" ")[0] not in OPEN_STATES


class MemoryType(click.ParamType):  # type: ignore[type-arg]
    """MemoryType as Slurm's users write it: 500M, 4G, or a number of MiB."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([1-9][0-9]{0,8})([MGT]?)(?:i?B)?", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a memory size: use 500M, 4G, or a number of MiB", param, ctx)
        return int(found[1]) * MIB[found[2]]


class JobTimeType(click.ParamType):  # type: ignore[type-arg]
    """A time limit as Slurm's users write it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; rounded up to minutes."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(?:([0-9]{1,3})-)?([0-9]{1,6})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a time: use minutes, H:MM:SS, or D-H such as 2-12", param, ctx)
        days, *rest = found.groups()
        parts = [int(each) for each in rest if each is not None]
        if days is not None:  # days, then hours, minutes and seconds
            seconds = int(days) * 86_400 + sum(each * size for each, size in zip(parts, (3_600, 60, 1), strict=False))
        else:  # minutes; minutes and seconds; hours, minutes and seconds
            sizes = ((60,), (60, 1), (3_600, 60, 1))[len(parts) - 1]
            seconds = sum(each * size for each, size in zip(parts, sizes, strict=True))
        minutes = -(-seconds // 60)
        if not minutes:
            self.fail("the time limit must be longer than 0", param, ctx)
        return minutes
