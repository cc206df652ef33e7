"""An agent of the process host in a process of its own: it executes commands, prints the results, and dies on demand.

`<directory> <node id> <words> [<word> <step>]`: words are separated by commas; with a word and one of its steps it is
killed after that step, as by the OOM killer. The step `begin` is before the first.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.tests.support.process_sandboxes import A, get, root_of, serve, shell, wanted
from mooring_agent.hosts.contract import FileSpec
from mooring_agent.hosts.process import ProcessHost, create, destroy

WAITS = "echo once >> times; while ! test -e go; do sleep 0.02; done; echo went on; exit 7"


async def die(work: Any) -> None:
    """Die without any cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def until(steps: tuple[Callable[[Any], Awaitable[None]], ...], name: str) -> tuple[Any, ...]:
    """The steps up to this one, then death."""
    names = ["begin", *(step.__name__ for step in steps)]
    return (*steps[: names.index(name)], die)


async def do(host: ProcessHost, directory: Path, word: str) -> object:
    """Execute one command."""
    match word:
        case "recover":
            return list(await host.recover())
        case "create":
            return (await host.create(wanted())).isolation
        case "files":
            return await host.write_files(A, [FileSpec("/etc/conf", b"x")])
        case "serve":
            return await serve(host, A, directory)
        case "get":
            port = int((root_of(directory) / "a.port").read_text())
            return (await get(host, port)).decode()[:15]
        case "run":
            return await host.run(A, "task-1", replace(shell(WAITS), output_bytes=100), 600)
        case "close":
            return (await host.close_owner(A)).clean
        case "destroy":
            report = await host.destroy("alc_1")
            return [report.clean, sorted({each.kind for each in report.found})]
        case "uid":
            return os.geteuid()
    raise ValueError(word)


async def main() -> None:
    """Execute every command in order."""
    directory, node_id, words, *end = sys.argv[1:]
    host = ProcessHost(Path(directory) / "host", node_id)
    if end[:1] == ["create"]:
        host.create_steps = until(create.STEPS, end[1])
    elif end:
        host.destroy_steps = until(destroy.STEPS, end[1])
    for word in words.split(","):
        print(json.dumps([word, await do(host, Path(directory), word)]), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
