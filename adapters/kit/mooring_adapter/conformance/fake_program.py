"""A fake of the app's own programs on the simulated nodes.

Nothing runs on a simulated node, so a task that runs a program of the app gets a generic outcome. An adapter that needs
real answers names a program as `stand_in` in its profile: it reads each task as one line of JSON and answers with one
line, the task's outcome, or `{}` for the usual one. It is one long-lived process, so that it can keep state.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mooring_adapter.conformance.fake_records import FakeMember, FakeTask

ANSWER_SECONDS_MAX: Final = 30.0
LINE_BYTES_MAX: Final = 1_048_576
LAST_BYTES_SHOWN: Final = 500


class FakeProgramFailed(Exception):
    """The fake program did not answer as it must; the message says why."""


@dataclass(frozen=True, slots=True)
class FakeOutcome:
    result: dict[str, Any] = field(default_factory=dict)
    failure_code: str | None = None
    failure_detail: str | None = None
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


def find_program(name: str) -> str | None:
    """Find a program: beside this Python first, because an adapter's own programs were installed with it."""
    return shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


class FakeProgram:
    """The process of one fake program; the first task starts it."""

    def __init__(self, argv: Sequence[str], seconds: float = ANSWER_SECONDS_MAX) -> None:
        self._argv = tuple(argv)
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - held as long as the process
        self._buffer = b""
        self.failure = ""  # why it no longer answers

    def ask(self, task: FakeTask, member: FakeMember, instance_id: str) -> FakeOutcome | None:
        """The outcome of a task, None for the usual one. After a failure it is not asked again until `restart`."""
        if self.failure:
            raise FakeProgramFailed(self.failure)
        try:
            self._send(json.dumps({"task": task_message(task, member, instance_id)}).encode() + b"\n")
            return read_answer(self._line())
        except FakeProgramFailed as failed:
            self.failure = f"the stand-in {failed}, on {task.type} ({task.step})"
            raise FakeProgramFailed(self.failure) from failed

    def restart(self) -> None:
        """Use a new process for the next task if this one failed."""
        if self.failure:
            self._end()
            self.failure = ""

    def close(self) -> None:
        self._end()
        self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._buffer = b""
            found = find_program(self._argv[0]) or self._argv[0]
            try:
                self._process = subprocess.Popen(
                    (found, *self._argv[1:]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    bufsize=0,
                )
            except OSError as error:
                raise FakeProgramFailed(f"could not be started: {error}") from error
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
        return self._process

    def _send(self, line: bytes) -> None:
        process, until = self._started(), time.monotonic() + self._seconds
        if process.stdin is None:
            raise FakeProgramFailed("has no standard input")
        while line:
            _, ready, _ = select.select([], [process.stdin], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise FakeProgramFailed(f"did not read within {self._seconds:g} s")
            try:
                line = line[os.write(process.stdin.fileno(), line) :]
            except BrokenPipeError as error:
                raise FakeProgramFailed(self._end_of(process)) from error

    def _line(self) -> bytes:
        process, until = self._started(), time.monotonic() + self._seconds
        if process.stdout is None:
            raise FakeProgramFailed("has no standard output")
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise FakeProgramFailed(f"did not answer within {self._seconds:g} s")
            part = os.read(process.stdout.fileno(), 65_536)
            if not part:
                raise FakeProgramFailed(self._end_of(process))
            self._buffer += part
            if len(self._buffer) > LINE_BYTES_MAX:
                raise FakeProgramFailed(f"answered with a line of more than {LINE_BYTES_MAX} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        """How it ended, with its last output."""
        try:
            code = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            return "closed its output"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - LAST_BYTES_SHOWN))
        output = self._errors.read().decode(errors="replace").strip()
        return f"ended with {code}" + (f": {output}" if output else "")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def task_message(task: FakeTask, member: FakeMember, instance_id: str) -> dict[str, Any]:
    """A task, as the fake program reads it."""
    about = {name: getattr(member, name) for name in ("id", "name", "component_key", "ordinal", "status")}
    return {
        "id": task.id,
        "type": task.type,
        "step": task.step,
        "arguments": task.arguments,
        "member": about,
        "instance_id": instance_id,
    }


def read_answer(line: bytes) -> FakeOutcome | None:
    """The outcome in an answer; None for the usual one."""
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise FakeProgramFailed(f"answered with invalid JSON: {line[:80]!r}") from error
    if not isinstance(answer, dict):
        raise FakeProgramFailed("answered with something other than an object")
    if not answer:
        return None
    kinds: dict[str, tuple[type, ...]] = {
        "result": (dict,),
        "failure_code": (str, type(None)),
        "failure_detail": (str, type(None)),
        "exit_code": (int, type(None)),
        "last_lines": (list,),
    }
    for name, value in answer.items():
        if name not in kinds or not isinstance(value, kinds[name]):
            raise FakeProgramFailed(f"answered with {name!r}: {str(value)[:80]}, which is not valid")
    return FakeOutcome(
        answer.get("result", {}),
        answer.get("failure_code"),
        answer.get("failure_detail"),
        answer.get("exit_code"),
        tuple(str(each) for each in answer.get("last_lines", ())),
    )
