"""What each task type does, in terms of the host.

A handler gets the task's context and arguments and returns the fields of the result; failures are raised as
`HostFailure`. After a crash a task is either *repeated*, because doing it again changes nothing that exists, or
*resumed*: the agent looks for what it started, and if that is gone reports `interrupted` and starts nothing.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mooring_agent.control_plane.messages import Task
from mooring_agent.hosts.contract import (
    Device,
    FileSpec,
    Host,
    HostFailure,
    Network,
    Owner,
    Peer,
    ProcessSpec,
    RestartPolicy,
    SandboxSpec,
    TeardownReport,
)
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.room import RoomKind
from mooring_agent.tasks.run_output import as_text
from mooring_agent.tasks.secret_masks import SecretMask

ResultFields = dict[str, Any]


@dataclass(slots=True)
class TaskContext:
    """A running task: its decrypted secrets, its progress callback, and the report of its teardown."""

    task: Task
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    report_progress: Callable[[str, int, int | None, str], None] = lambda stage, done, total, unit: None
    teardown: TeardownReport | None = None
    mask: SecretMask = field(default_factory=SecretMask)  # hides what was delivered to the allocation
    is_resumed: bool = False  # a crash interrupted it: look for what it started, and do not start it again

    @property
    def owner(self) -> Owner:
        """The owner of everything this task creates."""
        return Owner(self.task.allocation_id, self.task.label)

    def secret(self, name: str) -> bytes:
        if name not in self.secrets:
            raise HostFailure("refused", f"the task has no secret {name!r}")
        return self.secrets[name]


@dataclass(frozen=True, slots=True)
class TaskHandler:
    """How a task type is performed, and whether it may be repeated after a crash."""

    perform: Callable[[Host, TaskContext, Any], Awaitable[ResultFields]]
    is_repeatable: bool = True
    closes_owner: bool = False  # it closes its owner: the owner's other tasks are cancelled first
    unordered: bool = False  # it neither waits for its owner's other tasks nor delays them
    streams_output: bool = False  # its output is streamed to the platform while it runs
    room: RoomKind = "work"  # what it takes room of while it runs: anything that may last long has a room of its own


async def create_sandbox(host: Host, context: TaskContext, arguments: task_arguments.SandboxCreate) -> ResultFields:
    task = context.task
    facts = await host.create(
        SandboxSpec(
            allocation_id=task.allocation_id,
            tenant_id=task.tenant_id,
            project_id=task.project_id,
            hostname=arguments.hostname,
            cpus=arguments.cpus,
            memory_bytes=arguments.memory_bytes,
            pids=arguments.pids,
            devices=tuple(Device(each.index, each.simulated) for each in arguments.devices),
            network=Network(
                arguments.network.name, arguments.network.address, arguments.network.subnet, arguments.network.machine
            ),
            peers=tuple(Peer(each.name, each.address) for each in arguments.peers),
            isolation=arguments.isolation,
        )
    )
    return {
        "host": host.kind,
        "isolation": facts.isolation,
        "address": facts.address,
        "limits": dict(facts.limits),
    }


async def destroy_sandbox(host: Host, context: TaskContext, _: task_arguments.Nothing) -> ResultFields:
    context.teardown = await host.destroy(context.task.allocation_id)
    return _teardown_fields(context.teardown)


async def verify_teardown(host: Host, context: TaskContext, _: task_arguments.TeardownVerify) -> ResultFields:
    """Remove one owner; the others keep running."""
    owner = context.owner
    context.teardown = await (host.close_owner(owner) if owner.label else host.destroy(owner.allocation_id))
    return _teardown_fields(context.teardown)


async def write_files(host: Host, context: TaskContext, arguments: task_arguments.FilesWrite) -> ResultFields:
    return {"written": await host.write_files(context.owner, [_file_spec(context, each) for each in arguments.files])}


async def run_process(host: Host, context: TaskContext, arguments: task_arguments.ProcessRun) -> ResultFields:
    owner, key = context.owner, context.task.task_id
    if context.is_resumed and await host.find_run(owner, key) == "absent":
        raise HostFailure("interrupted", "the agent was interrupted, and what it had started is gone")
    spec = replace(_process_spec(context, arguments, arguments.stdin.encode()), output_bytes=arguments.output_bytes)
    code = await host.run(owner, key, spec, arguments.timeout_seconds)
    output = await output_of(host, context, key, arguments.output_bytes)
    if code != 0:
        raise HostFailure("exited", f"{arguments.argv[0]} exited with {code}", code, output)
    return {"exit_code": code, **output}


async def start_service(host: Host, context: TaskContext, arguments: task_arguments.ServiceStart) -> ResultFields:
    owner = context.owner
    if context.is_resumed and (await host.inspect_service(owner, arguments.name)).state == "absent":
        raise HostFailure("interrupted", "the agent was interrupted before the service was started")
    restart = RestartPolicy(arguments.restart.policy, arguments.restart.backoff_seconds, arguments.restart.limit)
    state = await host.start_service(owner, arguments.name, _process_spec(context, arguments, b""), restart)
    return {"state": state.state, "pid": state.pid, "started_at": state.started_at}


async def stop_service(host: Host, context: TaskContext, arguments: task_arguments.ServiceStop) -> ResultFields:
    ran = await host.stop_service(context.owner, arguments.name, arguments.kill, arguments.grace_seconds)
    return {"stopped": True, "was_running": ran}


async def inspect_service(host: Host, context: TaskContext, arguments: task_arguments.ServiceInspect) -> ResultFields:
    state = await host.inspect_service(context.owner, arguments.name)
    return {
        "state": state.state,
        "pid": state.pid,
        "started_at": state.started_at,
        "restarts": state.restarts,
        "exit_code": state.exit_code,
        "last_lines": context.mask.hide_lines(state.last_lines),
    }


HANDLERS: Final[dict[str, TaskHandler]] = {
    "sandbox.create": TaskHandler(create_sandbox),
    "sandbox.destroy": TaskHandler(destroy_sandbox, closes_owner=True),
    "files.write": TaskHandler(write_files),
    "process.run": TaskHandler(run_process, is_repeatable=False, streams_output=True, room="program"),
    "service.start": TaskHandler(start_service, is_repeatable=False),
    "service.stop": TaskHandler(stop_service, room="program"),
    "service.inspect": TaskHandler(inspect_service),
    "teardown.verify": TaskHandler(verify_teardown, closes_owner=True),
}


def _teardown_fields(teardown: TeardownReport) -> ResultFields:
    return {
        "clean": teardown.clean,
        "found": len(teardown.found),
        "removed": len(teardown.removed),
        "remaining": len(teardown.remaining),
        "not_looked": list(teardown.not_looked),
    }


def _process_spec(context: TaskContext, arguments: task_arguments.ProgramArguments, stdin: bytes) -> ProcessSpec:
    environment = dict(arguments.environment)
    for variable, name in arguments.environment_secrets.items():
        environment[variable] = secret_text(context, name)
    return ProcessSpec(arguments.argv, environment, arguments.user, arguments.directory, stdin)


async def output_of(host: Host, context: TaskContext, key: str, limit_bytes: int) -> ResultFields:
    """The captured standard output of a run, if the task requested it."""
    captured = await host.read_output(context.owner, key) if limit_bytes else None
    if captured is None:
        return {}
    text, truncated = as_text(*captured, limit_bytes, (*context.secrets.values(), *context.mask.patterns))
    return {"output": text, "output_truncated": truncated}


def secret_text(context: TaskContext, name: str) -> str:
    """A secret of the task as the value of an environment variable."""
    try:
        text = context.secret(name).decode()
    except UnicodeDecodeError as error:
        raise HostFailure(
            "refused", f"the secret {name!r} is not text, so it cannot be an environment variable"
        ) from error
    if "\x00" in text:
        raise HostFailure(
            "refused", f"the secret {name!r} contains a zero byte, so it cannot be an environment variable"
        )
    return text


def _file_spec(context: TaskContext, arguments: task_arguments.FileArguments) -> FileSpec:
    given = [each for each in (arguments.content, arguments.content_base64, arguments.secret) if each is not None]
    if len(given) + arguments.directory != 1:
        raise HostFailure(
            "refused",
            f"{arguments.path}: give exactly one of content, content_base64 and secret, or set directory",
        )
    content = b""
    if arguments.content is not None:
        content = arguments.content.encode()
    elif arguments.content_base64 is not None:
        try:
            content = base64.b64decode(arguments.content_base64, validate=True)
        except binascii.Error as error:
            raise HostFailure("refused", f"{arguments.path}: content_base64 is not base64") from error
    elif arguments.secret is not None:
        content = context.secret(arguments.secret)
    return FileSpec(arguments.path, content, int(arguments.mode, 8), arguments.user, arguments.directory)
