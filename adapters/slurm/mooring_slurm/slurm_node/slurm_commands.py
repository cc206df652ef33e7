"""Runs Slurm's commands with the member's own files, waits by polling, and classifies failures."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

PAUSE_SECONDS = 0.03
PORT_PAUSE_SECONDS = 0.01  # a connection attempt is cheap
COMMAND_SECONDS = 60.0
INPUT_BYTES_MAX = 131_072
LINE_MAX = 4_096
Found = TypeVar("Found")


class VerbFailed(Exception):
    """A verb failed; `code` is for the adapter, the detail for people, `more` are further fields of the answer."""

    def __init__(self, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.more = more


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.at

    def wait(
        self, look: Callable[[], Found | None], what: Callable[[], str], pause_seconds: float = PAUSE_SECONDS
    ) -> Found:
        """Poll `look` until it returns a value; `what` describes the failure on a time-out."""
        while True:
            found = look()
            if found is not None:
                return found
            if self.is_over:
                raise VerbFailed("timed_out", what())
            time.sleep(pause_seconds)


class SlurmCommands:
    """Slurm's commands with the configuration of one member."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.conf = self.below("etc", "slurm.conf")
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "SLURM_CONF": self.conf,
        }

    def below(self, *parts: str) -> str:
        return "/".join((self.home, *parts))

    def say(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever its exit code."""
        try:
            return subprocess.run(
                words,
                input=text or "",
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=self.environment,
                timeout=COMMAND_SECONDS,
                cwd="/",
            )
        except FileNotFoundError:
            raise VerbFailed("not_installed", f"{words[0]} is not installed on this machine") from None
        except subprocess.TimeoutExpired:
            raise VerbFailed("timed_out", f"{words[0]} did not end within {COMMAND_SECONDS:.0f} s") from None

    def first_line(self, *words: str, text: str) -> subprocess.CompletedProcess[str]:
        """Run a command until it has printed its first line, or to its end if it prints none.

        A script can make the submitting command wait for the job's end, which this program must not wait for.
        """
        given = os.memfd_create("stdin", os.MFD_CLOEXEC)
        with os.fdopen(given, "r+b") as file:
            file.write(text.encode())
            file.seek(0)
            try:
                process = subprocess.Popen(
                    words,
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=self.environment,
                    cwd="/",
                )
            except FileNotFoundError:
                raise VerbFailed("not_installed", f"{words[0]} is not installed on this machine") from None
        with process:
            try:
                line = _line_of(process, Deadline(COMMAND_SECONDS))
                errors = b"" if line else process.communicate(timeout=COMMAND_SECONDS)[1]
            except subprocess.TimeoutExpired:
                raise VerbFailed("timed_out", f"{words[0]} did not end within {COMMAND_SECONDS:.0f} s") from None
            finally:
                process.kill()
        output, error = line.decode(errors="replace"), errors.decode(errors="replace")
        return subprocess.CompletedProcess(words, process.returncode, output, error)

    def ask(self, *words: str, text: str | None = None) -> str:
        """The output of a command; raises `VerbFailed` if it fails."""
        done = self.say(*words, text=text)
        if done.returncode != 0:
            raise VerbFailed(code_of(done.stderr), f"{words[0]}: {sentence_of(done)}")
        return done.stdout

    def setting(self, name: str) -> str | None:
        """A setting in this member's slurm.conf."""
        with open(self.conf, encoding="utf-8") as file:
            found = re.search(rf"(?m)^{name}=(.*)$", file.read())
        return found[1] if found else None

    @property
    def accounts(self) -> bool:
        """Whether the cluster has accounting."""
        return self.setting("AccountingStorageType") == "accounting_storage/slurmdbd"

    def await_controller(self, deadline: Deadline) -> None:
        """Wait until the controller's port accepts connections."""
        host = self.setting("SlurmctldHost") or ""
        address = host.partition("(")[2].rstrip(")") or host
        await_port(address, int(self.setting("SlurmctldPort") or 6817), deadline, "the controller")


def _line_of(process: subprocess.Popen[bytes], deadline: Deadline) -> bytes:
    """The first line of a command's output; incomplete or empty if there is no more."""
    assert process.stdout is not None
    read, output = b"", process.stdout.fileno()
    while b"\n" not in read and len(read) < LINE_MAX:
        if not select.select([output], [], [], max(0.0, deadline.at - time.monotonic()))[0]:
            raise subprocess.TimeoutExpired(process.args, COMMAND_SECONDS)
        if not (more := os.read(output, LINE_MAX)):
            break
        read += more
    return read.partition(b"\n")[0]


def await_port(address: str, port: int, deadline: Deadline, who: str) -> None:
    """Wait until a port accepts connections: Slurm's own commands would block for many seconds."""

    def look() -> bool | None:
        try:
            with socket.create_connection((address, port), timeout=2):
                return True
        except OSError:
            return None

    try:
        deadline.wait(look, lambda: f"{who} does not answer at {address}:{port}", PORT_PAUSE_SECONDS)
    except VerbFailed as failed:
        raise VerbFailed("controller_down", failed.detail) from None


def sentence_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last error line of a command."""
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else f"it exited with {done.returncode}"


MESSAGES = (
    ("Unable to contact slurm controller", "controller_down"),
    ("Invalid job id", "not_found"),
    ("Invalid node name", "not_found"),
    ("not found", "not_found"),
    ("Invalid account", "account_refused"),
    ("Invalid partition", "partition_refused"),
    ("partition not available", "partition_down"),
    ("Access/permission denied", "permission_denied"),
    ("Invalid user id", "permission_denied"),
    ("Munge", "munge_down"),
    ("submission limit", "closed"),
    ("Job violates accounting", "closed"),
)


def code_of(text: str) -> str:
    """The error code for an error message of Slurm."""
    return next((code for message, code in MESSAGES if message in text), "slurm_refused")


def read_input() -> dict[str, Any]:
    """Read a JSON object of bounded size from standard input."""
    text = sys.stdin.read(INPUT_BYTES_MAX + 1)
    if len(text) > INPUT_BYTES_MAX:
        raise VerbFailed("usage", f"the input is longer than {INPUT_BYTES_MAX} characters")
    try:
        given = json.loads(text or "{}")
    except ValueError:
        raise VerbFailed("usage", "the input is not JSON") from None
    if not isinstance(given, dict):
        raise VerbFailed("usage", "the input is not an object")
    return given
