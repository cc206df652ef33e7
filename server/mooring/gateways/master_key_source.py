"""Where the master keys come from: a file, a command, or a file of wrapped keys that a command unwraps.

A command is an argument list without a shell. It gets no terminal, a bounded time and a bounded output. What it prints
is never logged and in no error; an error names the setting, so that an operator can run it by hand.
"""

import base64
import binascii
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mooring.gateways.secrets import (
    KEY_BYTES,
    FileKeySource,
    KeySource,
    MasterKey,
    MasterKeyRefused,
    check_mode,
    file_version,
    parse_keys,
)

COMMAND_SECONDS_MAX: Final = 10.0
OUTPUT_BYTES_MAX: Final = 65_536
WRAPPED: Final = "wrapped:"
RUN_AGAIN_SECONDS: Final = 60.0


class CommandKeySource:
    """A command that prints the keys in the form of the file."""

    def __init__(self, command: str, setting: str) -> None:
        self._argv = split(command, setting)
        self._setting = setting
        self.name = setting
        self._keys: list[MasterKey] = []
        self._run_at = float("-inf")

    def version(self) -> tuple[int, int]:
        """A command has no version: a changed output counts from the next start, or when a secret needs a new key."""
        return 0, 0

    def read(self) -> list[MasterKey]:
        """Run the command, once a minute at the most."""
        if time.monotonic() - self._run_at > RUN_AGAIN_SECONDS:
            self._keys = parse_keys(run(self._argv, self._setting), f"the output of {self._setting}")
            self._run_at = time.monotonic()
        return self._keys

    def ready(self, needed: Sequence[str]) -> bool:
        _require(needed, self.read(), self.name)
        return False


class WrappedKeySource:
    """A file with wrapped keys, `<key id> wrapped:<base64>`, and a command that unwraps one of them, as a KMS does."""

    def __init__(self, path: Path, command: str, setting: str) -> None:
        self._path = path
        self._argv = split(command, setting)
        self._setting = setting
        self.name = str(path)
        self._known: dict[str, bytes] = {}

    def version(self) -> tuple[int, int]:
        return file_version(self._path)

    def read(self) -> list[MasterKey]:
        check_mode(self._path)
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise MasterKeyRefused(f"cannot read the master key file {self._path}: {error}") from error
        keys: list[MasterKey] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            key_id, _, text = line.strip().partition(" ")
            if not text.strip().startswith(WRAPPED):
                raise MasterKeyRefused(f"line {number} of {self._path} is not `<key id> {WRAPPED}<base64>`")
            if key_id in (each.id for each in keys):
                raise MasterKeyRefused(f"line {number} of {self._path} names the key {key_id} a second time")
            keys.append(MasterKey(key_id, self._unwrapped(text.strip()[len(WRAPPED) :], number)))
        if not keys:
            raise MasterKeyRefused(f"the master key file {self._path} holds no key; restore it from a backup")
        return keys

    def ready(self, needed: Sequence[str]) -> bool:
        if not self._path.exists():
            raise MasterKeyRefused(
                f"{self._path} is missing; with {self._setting} you create it yourself: wrap 32 random bytes with your "
                f"key service and write `<key id> {WRAPPED}<base64>` into it, mode 0600"
            )
        _require(needed, self.read(), self.name)
        return False

    def _unwrapped(self, encoded: str, number: int) -> bytes:
        if encoded not in self._known:
            try:
                wrapped = base64.b64decode(encoded, validate=True)
            except ValueError as error:
                raise MasterKeyRefused(f"line {number} of {self._path} is not base64 after `{WRAPPED}`") from error
            self._known[encoded] = _plain_key(run(self._argv, self._setting, wrapped), self._setting)
        return self._known[encoded]


def key_source(path: Path, command: str = "", unwrap_command: str = "") -> KeySource:
    """The source that the settings name."""
    if command:
        return CommandKeySource(command, "MOORING_MASTER_KEY_COMMAND")
    if unwrap_command:
        return WrappedKeySource(path, unwrap_command, "MOORING_MASTER_KEY_UNWRAP_COMMAND")
    return FileKeySource(path)


def split(command: str, setting: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise MasterKeyRefused(f"{setting} is not a command: {error}") from error
    if not argv:
        raise MasterKeyRefused(f"{setting} is empty")
    return argv


def run(argv: Sequence[str], setting: str, given: bytes = b"") -> str:
    """What the command prints. Nothing of it is ever shown."""
    seconds = COMMAND_SECONDS_MAX
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        raise MasterKeyRefused(f"{setting} cannot be started: {error.strerror}") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        _kill(process)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(given)
            process.stdin.close()
        printed = process.stdout.read(OUTPUT_BYTES_MAX + 1)
        if len(printed) <= OUTPUT_BYTES_MAX:
            process.wait()
    finally:
        timer.cancel()
        _kill(process)
        process.wait()
    if late.is_set():
        raise MasterKeyRefused(f"{setting} took longer than {seconds:g} s and was ended")
    if len(printed) > OUTPUT_BYTES_MAX:
        raise MasterKeyRefused(f"{setting} printed more than {OUTPUT_BYTES_MAX} bytes")
    if process.returncode != 0:
        raise MasterKeyRefused(f"{setting} ended with {process.returncode}; run it by hand to see why")
    try:
        return printed.decode("ascii")
    except UnicodeDecodeError:
        raise MasterKeyRefused(f"{setting} must print text; a key is printed in base64") from None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _plain_key(text: str, setting: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (ValueError, binascii.Error):
        raise MasterKeyRefused(f"{setting} must print the plain key in base64, and nothing else") from None
    if len(key) != KEY_BYTES:
        raise MasterKeyRefused(f"{setting} printed a key of {len(key)} bytes, not {KEY_BYTES}")
    return key


def _require(needed: Sequence[str], keys: Sequence[MasterKey], name: str) -> None:
    if lacking := sorted(set(needed) - {each.id for each in keys}):
        raise MasterKeyRefused(
            f"{name} does not give the key {lacking[0]}, which stored secrets need; add it again after the current key"
        )
