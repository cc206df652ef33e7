"""Follow the check of an artifact's bytes: a progress bar in a terminal, otherwise a line from time to time.

Registering, verifying and staging may read hundreds of gigabytes. With --follow the command waits until the check has
ended. The server answers when there is progress, so the command never polls faster than that.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from mooring_cli.invocation import Invocation
from mooring_cli.nouns import CommandEndpoint, Verb

UNDER_WAY = ("accepted", "running")
WAIT_SECONDS = 20
LINE_SECONDS = 10.0
BAR_WIDTH = 30
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def follows(verb: Verb) -> bool:
    """Whether this verb starts a check that can be followed."""
    waits = any(field.path == ("wait",) for endpoint in verb.endpoints for field in endpoint.query)
    return waits and verb.name in ("register", "verify", "promote")


def follow_option() -> click.Option:
    about = "Wait until the check of its bytes has ended, and show its progress."
    return click.Option(["--follow"], is_flag=True, help=about)


def followed(
    invocation: Invocation, endpoint: CommandEndpoint, path: dict[str, str], send: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Send the request, wait for its check to end, and return the answer; raises if the check failed."""
    from mooring_sdk import MooringError

    try:
        answer = send()
    except MooringError as error:
        if error.code != "check_running" or "check_id" not in error.details:
            raise
        named = {**path, "artifact_id": str(error.details["artifact_id"])}
        ended = watch(invocation, endpoint.scope, named, {"id": error.details["check_id"]})
        require_success(ended)
        return send()
    check = answer.get("check")
    if not check:
        return answer
    named = {**path, "artifact_id": str(answer["id"])}
    require_success(watch(invocation, endpoint.scope, named, check))
    if is_over(check):
        return answer
    shown: dict[str, Any] = invocation.call(f"get_{endpoint.scope}_artifact", named)
    return shown


def watch(invocation: Invocation, scope: str, path: dict[str, str], check: dict[str, Any]) -> dict[str, Any]:
    """Show the progress of a check until it has ended, and return the check."""
    named = {**path, "check_id": str(check["id"])}
    progress = CheckProgress(sys.stderr.isatty() and invocation.output == "table")
    try:
        if is_over(check):
            progress.show(check)
        while not is_over(check):
            query = {"wait": WAIT_SECONDS, "changed_from": check["etag"]} if "etag" in check else {}
            check = invocation.call(f"get_{scope}_artifact_check", named, query)
            progress.show(check)
    finally:
        progress.close()
    return check


def is_over(check: dict[str, Any]) -> bool:
    """Whether a check has ended; unknown, and so False, for a check of which only the id is known."""
    return check.get("status") not in (None, *UNDER_WAY)


def require_success(check: dict[str, Any]) -> None:
    """Raise the check's own error unless it succeeded."""
    from mooring_sdk import MooringError

    if check["status"] == "succeeded":
        return
    code = check["failure_code"] or f"check_{check['status']}"
    known = MooringError.known_codes.get(code, MooringError)
    details = {"check_id": check["id"], "artifact_id": check["artifact_id"]}
    raise known(check["detail"], code=code, status=422, correlation_id=check["correlation_id"] or None, details=details)


class CheckProgress:
    """Shows progress: one line that is updated, or a new line from time to time."""

    def __init__(self, in_terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._in_terminal = in_terminal
        self._clock = clock
        self._begun: tuple[float, int] | None = None
        self._last_line = float("-inf")
        self._width = 0

    def show(self, check: dict[str, Any]) -> None:
        now = self._clock()
        if self._begun is None:
            self._begun = (now, int(check["bytes_done"]))
        text = self._text(check, now)
        if self._in_terminal:
            click.echo(f"\r{text.ljust(self._width)}", err=True, nl=False)
            self._width = len(text)
        elif now - self._last_line >= LINE_SECONDS or check["status"] not in UNDER_WAY:
            click.echo(text, err=True)
            self._last_line = now

    def close(self) -> None:
        """End the line that is being updated."""
        if self._in_terminal and self._width:
            click.echo(err=True)

    def _text(self, check: dict[str, Any], now: float) -> str:
        done, total = int(check["bytes_done"]), check["bytes_total"]
        words = [f"{check['name']} check {check['status']}"]
        if total:
            share = min(1.0, done / int(total))
            if self._in_terminal:
                filled = int(share * BAR_WIDTH)
                words.append(f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}]")
            words.append(f"{int(share * 100)} %")
            words.append(f"{size(done)} of {size(int(total))}")
        else:
            words.append(size(done))
        speed = self._speed(done, now)
        if speed and check["status"] == "running":
            words.append(f"{size(int(speed))}/s")
        return "  ".join(words)

    def _speed(self, done: int, now: float) -> float:
        if self._begun is None:
            return 0.0
        moment, before = self._begun
        return max(0.0, (done - before) / (now - moment)) if now > moment else 0.0


def size(count: int) -> str:
    """A byte count in a readable unit, such as 1.5 MiB."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {UNITS[unit]}"
