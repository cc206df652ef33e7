"""Destroying a sandbox or one of its owners, and verifying that nothing is left."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from mooring_agent.hosts import safe_paths
from mooring_agent.hosts.contract import HostFailure, Resource, Stray, TeardownReport
from mooring_agent.hosts.process import inspect
from mooring_agent.hosts.process.inspect import InspectionScope, SandboxSnapshot
from mooring_agent.hosts.process.owner_files import OwnedFiles
from mooring_agent.hosts.process.sandbox_directory import SANDBOX_VARIABLE, SandboxDirectory
from mooring_agent.kernel import proc
from mooring_agent.supervisor.program_runner import is_name
from mooring_agent.supervisor.supervisor_client import SupervisorClient, SupervisorGone, SupervisorRefusal

log = logging.getLogger(__name__)

Response = TypeVar("Response")

_ROUNDS_MAX: Final = 250
_ROUND_SECONDS: Final = 0.02


async def scope_of(sandbox: SandboxDirectory, label: str | None, paths: Sequence[Path] = ()) -> InspectionScope:
    """The inspection scope of a sandbox or of one of its owners, with the supervisors that respond."""
    pids: list[int] = []
    status = await _unless_gone(SupervisorClient(sandbox.supervisor).status())
    if status is not None:
        pids = [status.pid] if label is None else [pid for name, pid in status.owners.items() if name == label]
    supervisors = frozenset(found for pid in pids if (found := proc.find_process(pid)) is not None)
    record = sandbox.read()
    origin = frozenset(record.origin) if record is not None else frozenset[str]()
    return InspectionScope(sandbox, label, supervisors, tuple(paths), origin)


async def close_owner(sandbox: SandboxDirectory, label: str) -> TeardownReport:
    """Kill and remove everything of one owner, then inspect."""
    files = OwnedFiles(sandbox)
    written = await asyncio.to_thread(files.of, label)
    paths = [sandbox.root / path for path in written] + [sandbox.owner_directory(label)]
    scope = await scope_of(sandbox, label, paths)
    before = await asyncio.to_thread(inspect.inspect_sandbox, scope)
    await _unless_gone(SupervisorClient(sandbox.supervisor).close_owner(label))
    await _kill(scope, before)
    await asyncio.to_thread(files.remove, label)
    await asyncio.to_thread(_remove, sandbox.supervisor, sandbox.owner_directory(label).name)
    await asyncio.to_thread(inspect.remove_cgroups, before.held["cgroups"])
    return inspect.compare(before, await _inspect_until_clean(scope, before))


@dataclass(slots=True)
class Teardown:
    """One teardown of a whole sandbox, step by step."""

    sandbox: SandboxDirectory
    scope: InspectionScope
    before: SandboxSnapshot
    after: SandboxSnapshot | None = None


Step = Callable[[Teardown], Awaitable[None]]


async def mark_destroying(work: Teardown) -> None:
    """Record that the sandbox must not be recovered any more."""
    record = work.sandbox.read()
    if record is not None:
        work.sandbox.write(replace(record, phase="destroying"))


async def shut_down(work: Teardown) -> None:
    """Ask its supervisor to stop what it runs, and itself."""
    await _unless_gone(SupervisorClient(work.sandbox.supervisor).shut_down())


async def kill_remaining(work: Teardown) -> None:
    """Kill what is left if the supervisor itself is gone."""
    await _kill(work.scope, work.before)


async def remove_cgroups(work: Teardown) -> None:
    """Remove the control groups that its programs created for themselves."""
    await asyncio.to_thread(inspect.remove_cgroups, work.before.held["cgroups"])


async def remove_files(work: Teardown) -> None:
    for name in ("root", "supervisor"):
        await asyncio.to_thread(_remove, work.sandbox.directory, name)


async def remove_record(work: Teardown) -> None:
    """Remove the record last, so that after a crash the sandbox is still known to be going."""
    await asyncio.to_thread(_remove, work.sandbox.directory.parent, work.sandbox.directory.name)


async def inspect_after(work: Teardown) -> None:
    work.after = await _inspect_until_clean(work.scope, work.before)


STEPS: tuple[Step, ...] = (
    mark_destroying,
    shut_down,
    kill_remaining,
    remove_cgroups,
    remove_files,
    remove_record,
    inspect_after,
)


async def destroy(sandbox: SandboxDirectory, steps: tuple[Step, ...] = STEPS) -> TeardownReport:
    """Kill and remove everything of an allocation, then inspect."""
    paths = await asyncio.to_thread(_top_paths, sandbox)
    scope = await scope_of(sandbox, None, paths)
    work = Teardown(sandbox, scope, await asyncio.to_thread(inspect.inspect_sandbox, scope))
    for step in steps:
        await step(work)
    return inspect.compare(work.before, work.after or work.before)


async def sweep(
    sandboxes: Path, node_id: str, known: Collection[str], reap: Callable[[str], Awaitable[TeardownReport]]
) -> list[Stray]:
    """Reap sandboxes and processes of ours that the platform does not know, and report what is not ours."""
    strays: list[Stray] = []
    for entry in await asyncio.to_thread(_entries, sandboxes):
        if entry.name in known:
            continue
        if not entry.is_dir(follow_symlinks=False) or not is_name(entry.name):
            strays.append(Stray(Resource("files", entry.name), "foreign"))
            continue
        report = await reap(entry.name)
        if report.remaining:
            # It still exists, so the next sweep tries again.
            log.error(
                "could not reap %d resources of %s; the next sweep tries again", len(report.remaining), entry.name
            )
            continue
        resources = [
            Resource("files", entry.name),
            *(resource for resource in report.removed if resource.kind != "files"),
        ]
        strays += [Stray(resource, "reaped", entry.name) for resource in resources]
    standing = {entry.name for entry in await asyncio.to_thread(_entries, sandboxes)}
    for process in await asyncio.to_thread(_marked_processes):
        owner, _, allocation_id = proc.environment(process.pid).get(SANDBOX_VARIABLE, "").partition("/")
        resource = Resource("processes", f"{process.pid} {process.name}")
        if owner and owner != node_id:
            strays.append(Stray(resource, "foreign", allocation_id or None))
        elif owner and allocation_id not in standing and proc.kill(process):
            strays.append(Stray(resource, "reaped", allocation_id))
    return strays


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _marked_processes() -> list[proc.Process]:
    """The living processes that carry the mark of any sandbox."""
    table = proc.processes().values()
    return [each for each in table if not each.ended and SANDBOX_VARIABLE in proc.environment(each.pid)]


def _top_paths(sandbox: SandboxDirectory) -> list[Path]:
    """The entries of a sandbox's directory and of its root: the paths that a receipt lists."""
    found = [sandbox.directory] if sandbox.directory.is_dir() else []
    for directory in (sandbox.directory, sandbox.root):
        if directory.is_dir():
            found += sorted(directory.iterdir())
    return found


def _remove(parent: Path, name: str) -> None:
    try:
        place = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        safe_paths.remove_entry(place, name)
    except OSError as error:
        raise HostFailure("host_error", f"{name} could not be removed: {error.strerror}") from error
    finally:
        os.close(place)


async def _unless_gone(request: Awaitable[Response]) -> Response | None:
    """The supervisor's response; none if it is gone or stuck. Its processes are then found and killed without it."""
    try:
        return await request
    except SupervisorGone:
        return None
    except SupervisorRefusal as refusal:
        log.warning("the supervisor did not respond: %s; killing its processes without it", refusal)
        return None


async def _kill(scope: InspectionScope, before: SandboxSnapshot) -> None:
    """Kill what the supervisor could not, repeating as long as something is found."""
    found = before.processes
    for _ in range(_ROUNDS_MAX):
        found = await asyncio.to_thread(lambda known: inspect.find_processes(scope, proc.processes(), known), found)
        if not found:
            return
        for process in found:
            proc.kill(process)
        await asyncio.sleep(_ROUND_SECONDS)


async def _inspect_until_clean(scope: InspectionScope, before: SandboxSnapshot) -> SandboxSnapshot:
    """Inspect again while something is left: sockets and namespaces go a moment after their last process."""
    for _ in range(_ROUNDS_MAX):
        after = await asyncio.to_thread(inspect.inspect_sandbox, scope, before)
        if not after.resources:
            break
        await asyncio.sleep(_ROUND_SECONDS)
    return after
