"""`python -m mooring_adapter.dev -- COMMAND`: the program behind `mooring adapter dev`.

It starts the suite's simulated platform with one instance of the app, and the adapter. Each request of the adapter is
one line, each change of the instance another. When a file of the watched directory changes, the adapter is started
again; it continues from the records, as another replica would. Nothing runs on a node: the nodes are simulated.
"""

import argparse
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from mooring_adapter.conformance.fake_api import ApiRequest, ApiResponse
from mooring_adapter.conformance.simulated_platform import SimulatedPlatform
from mooring_adapter.conformance.suite import ProfileRefused, read_json, read_profile

INSTANCE: Final = "dev"
LOOK_SECONDS: Final = 0.3
STOP_SECONDS: Final = 10.0
SKIPPED: Final = frozenset({"node_modules", "venv", "__pycache__"})
FAULT_STATUS: Final = 400


@dataclass(slots=True)
class FileWatch:
    """The state of a directory's files, to notice when one of them changes."""

    directory: Path
    ignored: frozenset[Path] = frozenset()
    seen: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def changed(self) -> list[str]:
        """The files that were written, created or deleted since the last call."""
        now = dict(self._files())
        names = sorted({path for path, _ in now.items() ^ self.seen.items()})
        self.seen = now
        return [str(each.relative_to(self.directory)) for each in names]

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        waiting = [self.directory]
        while waiting:
            for path in waiting.pop().iterdir():
                if path.name.startswith(".") or path.name in SKIPPED or path in self.ignored or path.is_symlink():
                    continue
                if path.is_dir():
                    waiting.append(path)
                    continue
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue  # deleted meanwhile
                yield path, (found.st_mtime_ns, found.st_size)


def described(request: ApiRequest, status: int, code: str | None) -> str:
    """One line for a request; a refused one is marked with `!`."""
    body = request.body
    parts = [str(each.get("step", "")) for each in (body, *body.get("tasks", ())) if each.get("step")]
    if "begin" in body:
        parts.append("begin")
    for each in body.get("members", ()):
        parts.append(f"{str(each.get('id'))[:12]} {each.get('status') or each.get('version') or ''}")
    if "outcome" in body:
        parts.append(str(body["outcome"]))
    mark = "!" if status >= FAULT_STATUS else " "
    path = request.path.removeprefix("/api/v1")
    detail = f"  {', '.join(parts)}" if parts else ""
    return f"{mark} {status} {request.method:4} {path}{detail}{f'  {code}' if code else ''}"


class DevLoop:
    """The platform, the adapter and the watch over its files."""

    def __init__(self, platform: SimulatedPlatform, watch: FileWatch, before: str | None, out: TextIO) -> None:
        self.platform, self.watch, self.before, self.out = platform, watch, before, out
        self._lock = threading.Lock()
        self._status = ""
        self._log_at = 0
        platform.faults.after = self._answered

    def say(self, line: str) -> None:
        with self._lock:
            print(f"{time.strftime('%H:%M:%S')} {line}", file=self.out, flush=True)

    def _answered(self, request: ApiRequest, number: int, response: ApiResponse) -> ApiResponse:
        code = str(response.body.get("code")) if response.status >= FAULT_STATUS else None
        self.say(described(request, response.status, code))
        return response

    def start(self) -> None:
        """Build and start the adapter; a failed build leaves it stopped until the next change."""
        if self.before and (code := subprocess.run(shlex.split(self.before), check=False).returncode):
            self.say(f"! `{self.before}` failed with {code}; waiting for a change")
            return
        self.platform.start_adapter()

    def look(self) -> None:
        """One round: show what is new, and start the adapter again if a file has changed."""
        if names := self.watch.changed():
            self.say(f"- {', '.join(names[:5])} changed; starting the adapter again")
            self.platform.adapter.stop(STOP_SECONDS)
            self.platform.kill_adapter()
            self.start()
            self.watch.changed()  # what the build wrote
        self._show_log()
        for each in self.platform.broken():
            self.say(f"! {each}")
        if self.platform.adapter.ended_by_itself:
            self.platform.adapter.kill()
            self.say("! the adapter has ended; waiting for a change")
        (instance_id,) = self.platform.store.instances
        members = [f"{each.name} {each.status}" for each in self.platform.members(instance_id)]
        status = f"{self.platform.instance(instance_id).status}: {', '.join(members)}"
        if status != self._status:
            self._status = status
            self.say(f"= {INSTANCE} is {status}")

    def _show_log(self) -> None:
        log = self.platform.adapter.log
        if log.exists():
            with log.open("rb") as file:
                file.seek(self._log_at)
                written = file.read()
            complete = written[: written.rfind(b"\n") + 1]
            self._log_at += len(complete)
            for line in complete.decode("utf-8", errors="replace").splitlines():
                self.say(f"| {line}")


def do_command(platform: SimulatedPlatform, words: Sequence[str]) -> str:
    """A request of a person, typed while it runs; returns what to show."""
    (instance_id,) = platform.store.instances
    members = platform.members(instance_id)
    last = members[-1].id if members else ""
    verbs: dict[str, Callable[[], str | None]] = {
        **({"add": lambda: platform.add(instance_id, platform.profile.grows, 1)} if platform.profile.grows else {}),
        "drain": lambda: platform.drain(instance_id, last),
        "resume": lambda: platform.resume(instance_id, last),
        "remove": lambda: platform.remove(instance_id, last),
        "replace": lambda: platform.replace(instance_id, last),
        "upgrade": lambda: platform.upgrade(instance_id),
        "restart": lambda: platform.restart(instance_id),
        "repair": lambda: platform.repair(instance_id),
        "stop": lambda: platform.stop(instance_id),
    }
    if not words or words[0] not in verbs:
        return f"type one of {', '.join(verbs)}; they concern the last member"
    try:
        return f"{words[0]}: {verbs[words[0]]() or 'done'}"
    except KeyError:
        return f"{words[0]}: there is no member or component for that"


def listen(loop: DevLoop, source: TextIO) -> None:
    """Run the commands that are typed, until the input ends."""
    for line in source:
        if line.strip():
            loop.say(f"> {do_command(loop.platform, line.split())}")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="mooring adapter dev", description="Run an adapter on a simulated platform, and show its requests."
    )
    options.add_argument("--manifest", type=Path, required=True, help="the app's manifest, as JSON")
    options.add_argument("--profile", type=Path, help="the same values as for the suite, as JSON")
    options.add_argument("--before", metavar="COMMAND", help="run this before each start, such as a build")
    options.add_argument("--watch", type=Path, default=Path(), metavar="DIRECTORY", help="default: the current one")
    options.add_argument("command", nargs=argparse.REMAINDER, help="the adapter: a program and its arguments")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    reader = parser()
    given = reader.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        reader.error("the adapter's command is missing")
    try:
        profile = read_profile(read_json(given.manifest), read_json(given.profile) if given.profile else {})
    except ProfileRefused as error:
        reader.error(str(error))
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    directory = given.watch.resolve()
    watch = FileWatch(directory, frozenset({(directory / command[0]).resolve()} if given.before else ()))
    platform = SimulatedPlatform(command, profile)
    try:
        loop = DevLoop(platform, watch, given.before, sys.stdout)
        platform.create_instance(INSTANCE)
        loop.say(f"- the simulated platform listens on {platform.api.address}; Ctrl-C ends it")
        loop.say(f"- {do_command(platform, ())}")
        loop.start()
        watch.changed()
        threading.Thread(target=listen, args=(loop, sys.stdin), daemon=True).start()
        while not ending.wait(LOOK_SECONDS):
            loop.look()
        platform.adapter.stop(STOP_SECONDS)
        loop.look()
    finally:
        platform.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
