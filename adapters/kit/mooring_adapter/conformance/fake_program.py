"""A program that answers for what an app's own programs would say on the simulated nodes.

Nothing runs on a simulated node, so whatever asks a program of the app gets an answer that says nothing. An adapter
that lives on such answers brings a stand-in: it is told each task as one line of JSON and answers with one line, what
came of it, or `{}` for "as usual". It is one process for as long as it lives, so that it can keep a state of its own.
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
    """The stand-in did not answer as it has to, and why."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What came of a task."""

    result: dict[str, Any] = field(default_factory=dict)
    failure_code: str | None = None
    failure_detail: str | None = None
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


def find_program(name: str) -> str | None:
    """Where a program is: beside this Python first, since an adapter's own programs were installed with it."""
    return shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


class FakeProgram:
    """The process of one stand-in; the first question starts it."""

    def __init__(self, argv: Sequence[str], seconds: float = ANSWER_SECONDS_MAX) -> None:
        self._argv = tuple(argv)
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - held as long as the process
        self._heard = b""
        self.trouble = ""  # why it answers no more

    def ask(self, task: FakeTask, member: FakeMember, instance_id: str) -> TaskOutcome | None:
        """What comes of the task; None: as usual. Once it failed it is not asked again until `restart`."""
        if self.trouble:
            raise FakeProgramFailed(self.trouble)
        try:
            self._send(json.dumps({"task": told(task, member, instance_id)}).encode() + b"\n")
            return read_answer(self._line())
        except FakeProgramFailed as failed:
            self.trouble = f"the stand-in {failed}, asked about {task.type} ({task.step})"
            raise FakeProgramFailed(self.trouble) from failed

    def restart(self) -> None:
        """The next question is put to a new process, if this one failed."""
        if self.trouble:
            self._end()
            self.trouble = ""

    def close(self) -> None:
        """End it."""
        self._end()
        self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._heard = b""
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
        while b"\n" not in self._heard:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise FakeProgramFailed(f"did not answer within {self._seconds:g} s")
            part = os.read(process.stdout.fileno(), 65_536)
            if not part:
                raise FakeProgramFailed(self._end_of(process))
            self._heard += part
            if len(self._heard) > LINE_BYTES_MAX:
                raise FakeProgramFailed(f"answered with a line of more than {LINE_BYTES_MAX} bytes")
        line, _, self._heard = self._heard.partition(b"\n")
        return line

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        """How it ended, with the last that it said."""
        try:
            code = process.wait(self._seconds)
        except subprocess.TimeoutExpired:
            return "closed its output"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - LAST_BYTES_SHOWN))
        said = self._errors.read().decode(errors="replace").strip()
        return f"ended with {code}" + (f": {said}" if said else "")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def told(task: FakeTask, member: FakeMember, instance_id: str) -> dict[str, Any]:
    """A task, as a stand-in is told it."""
    about = {name: getattr(member, name) for name in ("id", "name", "component_key", "ordinal", "status")}
    return {
        "id": task.id,
        "type": task.type,
        "step": task.step,
        "arguments": task.arguments,
        "member": about,
        "instance_id": instance_id,
    }


def read_answer(line: bytes) -> TaskOutcome | None:
    """What a stand-in answered; None: as usual."""
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise FakeProgramFailed(f"answered with what is no JSON: {line[:80]!r}") from error
    if not isinstance(answer, dict):
        raise FakeProgramFailed("answered with what is no object")
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
            raise FakeProgramFailed(f"answered with {name!r}: {str(value)[:80]}, which is no answer")
    return TaskOutcome(
        answer.get("result", {}),
        answer.get("failure_code"),
        answer.get("failure_detail"),
        answer.get("exit_code"),
        tuple(str(each) for each in answer.get("last_lines", ())),
    )
