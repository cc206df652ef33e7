"""What each task family does, in terms of the host.

A performer takes the task, its arguments and `Doing`, and returns the result's fields; what goes wrong is a
`HostFailure`. After a crash a family is either *repeated*, because doing it again changes nothing that stands, or
*found*: the agent looks whether what it started is there, and if not says `interrupted` and starts nothing.
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
    Look,
    Network,
    Owner,
    Peer,
    ProcessSpec,
    Restart,
    SandboxSpec,
)
from mooring_agent.tasks import arguments as taken
from mooring_agent.tasks.run_output import told

Fields = dict[str, Any]


@dataclass(slots=True)
class Doing:
    """A task under way: its secrets in the clear, what it tells meanwhile, and what it saw when it tore down."""

    task: Task
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    tell: Callable[[str, int, int | None, str], None] = lambda stage, done, total, unit: None
    look: Look | None = None
    found_again: bool = False  # a crash cut this off: what it started is looked for, and not started anew

    @property
    def owner(self) -> Owner:
        """Whom everything of this task belongs to."""
        return Owner(self.task.allocation_id, self.task.label)

    def secret(self, name: str) -> bytes:
        """A secret that came with the task."""
        if name not in self.secrets:
            raise HostFailure("refused", f"the task brings no secret {name!r}")
        return self.secrets[name]


@dataclass(frozen=True, slots=True)
class Family:
    """How a family is performed, and whether a crash lets it be repeated."""

    perform: Callable[[Host, Doing, Any], Awaitable[Fields]]
    repeats: bool = True
    closes: bool = False  # it closes its owner: what else that owner wanted is ended first
    beside: bool = False  # it neither waits for its owner's other tasks nor holds them up
    logs: bool = False  # its output is streamed to the platform while it runs


async def create_sandbox(host: Host, doing: Doing, wanted: taken.SandboxCreate) -> Fields:
    """`sandbox.create`."""
    task = doing.task
    facts = await host.create(
        SandboxSpec(
            allocation_id=task.allocation_id,
            tenant_id=task.tenant_id,
            project_id=task.project_id,
            hostname=wanted.hostname,
            cpus=wanted.cpus,
            memory_bytes=wanted.memory_bytes,
            pids=wanted.pids,
            devices=tuple(Device(each.index, each.simulated) for each in wanted.devices),
            network=Network(wanted.network.name, wanted.network.address, wanted.network.subnet, wanted.network.machine),
            peers=tuple(Peer(each.name, each.address) for each in wanted.peers),
            isolation=wanted.isolation,
        )
    )
    return {
        "host": host.kind,
        "isolation": facts.isolation,
        "address": facts.address,
        "limits": dict(facts.limits),
    }


async def destroy_sandbox(host: Host, doing: Doing, _: taken.Nothing) -> Fields:
    """`sandbox.destroy`."""
    doing.look = await host.destroy(doing.task.allocation_id)
    return _seen(doing.look)


async def verify_teardown(host: Host, doing: Doing, _: taken.TeardownVerify) -> Fields:
    """`teardown.verify`: one owner goes, the others live."""
    owner = doing.owner
    doing.look = await (host.close_owner(owner) if owner.label else host.destroy(owner.allocation_id))
    return _seen(doing.look)


async def write_files(host: Host, doing: Doing, wanted: taken.FilesWrite) -> Fields:
    """`files.write`."""
    return {"written": await host.write_files(doing.owner, [_file(doing, each) for each in wanted.files])}


async def run_process(host: Host, doing: Doing, wanted: taken.ProcessRun) -> Fields:
    """`process.run`."""
    owner, key = doing.owner, doing.task.task_id
    if doing.found_again and await host.find_run(owner, key) == "absent":
        raise HostFailure("interrupted", "the agent was cut off, and what it had started is not there any more")
    spec = replace(_program(doing, wanted, wanted.stdin.encode()), output_bytes=wanted.output_bytes)
    code = await host.run(owner, key, spec, wanted.timeout_seconds)
    output = await output_of(host, doing, key, wanted.output_bytes)
    if code != 0:
        raise HostFailure("exited", f"{wanted.argv[0]} ended with {code}", code, output)
    return {"exit_code": code, **output}


async def start_service(host: Host, doing: Doing, wanted: taken.ServiceStart) -> Fields:
    """`service.start`."""
    owner = doing.owner
    if doing.found_again and (await host.inspect_service(owner, wanted.name)).state == "absent":
        raise HostFailure("interrupted", "the agent was cut off before the service was started")
    restart = Restart(wanted.restart.policy, wanted.restart.backoff_seconds, wanted.restart.limit)
    state = await host.start_service(owner, wanted.name, _program(doing, wanted, b""), restart)
    return {"state": state.state, "pid": state.pid, "started_at": state.started_at}


async def stop_service(host: Host, doing: Doing, wanted: taken.ServiceStop) -> Fields:
    """`service.stop`."""
    ran = await host.stop_service(doing.owner, wanted.name, wanted.kill, wanted.grace_seconds)
    return {"stopped": True, "was_running": ran}


async def inspect_service(host: Host, doing: Doing, wanted: taken.ServiceInspect) -> Fields:
    """`service.inspect`."""
    state = await host.inspect_service(doing.owner, wanted.name)
    return {
        "state": state.state,
        "pid": state.pid,
        "started_at": state.started_at,
        "restarts": state.restarts,
        "exit_code": state.exit_code,
        "last_lines": list(state.last_lines),
    }


FAMILIES: Final[dict[str, Family]] = {
    "sandbox.create": Family(create_sandbox),
    "sandbox.destroy": Family(destroy_sandbox, closes=True),
    "files.write": Family(write_files),
    "process.run": Family(run_process, repeats=False, logs=True),
    "service.start": Family(start_service, repeats=False),
    "service.stop": Family(stop_service),
    "service.inspect": Family(inspect_service),
    "teardown.verify": Family(verify_teardown, closes=True),
}


def _seen(look: Look) -> Fields:
    return {
        "clean": look.clean,
        "found": len(look.found),
        "removed": len(look.removed),
        "remaining": len(look.remaining),
        "not_looked": list(look.not_looked),
    }


def _program(doing: Doing, wanted: taken.Program, stdin: bytes) -> ProcessSpec:
    environment = dict(wanted.environment)
    for variable, name in wanted.environment_secrets.items():
        environment[variable] = secret_text(doing, name)
    return ProcessSpec(wanted.argv, environment, wanted.user, wanted.directory, stdin)


async def output_of(host: Host, doing: Doing, key: str, limit_bytes: int) -> Fields:
    """What the run under this key wrote to its standard output, where the task asked for it."""
    kept = await host.read_output(doing.owner, key) if limit_bytes else None
    if kept is None:
        return {}
    text, truncated = told(*kept, limit_bytes, tuple(doing.secrets.values()))
    return {"output": text, "output_truncated": truncated}


def secret_text(doing: Doing, name: str) -> str:
    """A secret of the task as a variable's value."""
    try:
        text = doing.secret(name).decode()
    except UnicodeDecodeError as error:
        raise HostFailure("refused", f"the secret {name!r} is no text, so it cannot be a variable") from error
    if "\x00" in text:
        raise HostFailure("refused", f"the secret {name!r} holds a zero byte, so it cannot be a variable")
    return text


def _file(doing: Doing, wanted: taken.FileArguments) -> FileSpec:
    given = [each for each in (wanted.content, wanted.content_base64, wanted.secret) if each is not None]
    if len(given) + wanted.directory != 1:
        raise HostFailure(
            "refused", f"{wanted.path}: give one of content, content_base64 and secret, or say that it is a directory"
        )
    content = b""
    if wanted.content is not None:
        content = wanted.content.encode()
    elif wanted.content_base64 is not None:
        try:
            content = base64.b64decode(wanted.content_base64, validate=True)
        except binascii.Error as error:
            raise HostFailure("refused", f"{wanted.path}: content_base64 is not base64") from error
    elif wanted.secret is not None:
        content = doing.secret(wanted.secret)
    return FileSpec(wanted.path, content, int(wanted.mode, 8), wanted.user, wanted.directory)
