"""The operator's attestation command: it gets what a machine says about itself and accepts it, refuses it, or neither.

The command is a list of words, started without a shell and with no more of this process's environment than PATH, so
that no secret of the platform is in it. Time and output are bounded; at the end its whole process group is killed.
"""

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

OUTPUT_MAX: Final = 4_096
DETAIL_MAX: Final = 200
ACCEPTS: Final = 0
REFUSES: Final = 1


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Attestation:
    """The verdict of the command, and the first line that it printed, or why there is none."""

    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class AttestationCommand:
    argv: tuple[str, ...]
    timeout_seconds: float

    async def run(self, facts: Mapping[str, Any]) -> Attestation:
        """Let the command judge; whatever it does, this returns within the time."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return Attestation(Verdict.UNDECIDED, f"the attestation command cannot be started: {error}"[:DETAIL_MAX])
        try:
            async with asyncio.timeout(self.timeout_seconds):
                said = await _talk(process, json.dumps(facts, sort_keys=True).encode())
                code = await process.wait()
        except TimeoutError:
            return Attestation(Verdict.UNDECIDED, f"no answer within {self.timeout_seconds:g} s")
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await process.wait()
        verdict = {ACCEPTS: Verdict.ACCEPTED, REFUSES: Verdict.REFUSED}.get(code, Verdict.UNDECIDED)
        return Attestation(verdict, _line(said) or f"exit code {code}")


def attestation_command(text: str, timeout_seconds: float) -> AttestationCommand | None:
    """The command of this setting, if it names one."""
    words = tuple(shlex.split(text))
    return AttestationCommand(words, timeout_seconds) if words else None


async def _talk(process: asyncio.subprocess.Process, data: bytes) -> bytes:
    """Send the facts, and read what comes back up to the limit; the rest is read and dropped."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, RuntimeError):  # it may end without reading; uvloop raises RuntimeError then
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    said = b""
    while part := await process.stdout.read(OUTPUT_MAX):
        said = (said + part)[:OUTPUT_MAX]
    return said


def _line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    words = "".join(letter if letter.isprintable() else " " for letter in lines[0]) if lines else ""
    return " ".join(words.split())[:DETAIL_MAX]
